//! The load of each backend: a group of bars for each policy, the busiest backend first.
//!
//! Level bars are even work, short ones are much found in caches. Above a group stands how much more than the mean its
//! busiest backend did.

use plotters::chart::ChartBuilder;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, TextStyle};

use super::{AXIS, Area, MARGIN, PlotError, Series, WIDTH, palette, scale};

/// The share of a group's place that bars fill; the rest keeps groups apart.
const FILLED: f64 = 0.84;
/// The share of a bar's place that it fills, while there are few of them. Many would be stripes.
const BAR: f64 = 0.86;
const FEW_BARS: usize = 120;

/// What the picture does not say by itself, and the pixels above it.
const CAPTION: &str =
    "Each bar is a backend, the busiest first. The line is the mean, the number the busiest one's multiple of it.";
const CAPTION_TOP: i32 = 18;
/// Pixels from one row of names to the next below it, and of a character, about.
const ROW: i32 = 16;
const CHAR: usize = 7;
/// Rows of names at most; with more names than these hold the legend has to do.
const MAX_ROWS: usize = 3;

/// What a group's label says.
struct Load {
    most: f64,
    mean: f64,
}

pub(super) fn draw(area: &Area<'_>, series: &[Series]) -> Result<(), PlotError> {
    let most = series.iter().flat_map(|one| one.tokens_by_backend.iter().copied()).fold(0.0, f64::max);
    let groups = series.len().max(1) as f64;
    let rows = name_rows(series);
    let caption = ("sans-serif", 12).into_font().color(&palette::FAINT);
    area.draw(&Text::new(CAPTION, ((MARGIN + AXIS) as i32, CAPTION_TOP), caption))?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(42)
        .margin_left(MARGIN)
        .margin_right(MARGIN)
        .x_label_area_size(ROW * (rows as i32 + 1))
        .y_label_area_size(AXIS)
        .build_cartesian_2d(0.0..groups, 0.0..(most * 1.12).max(1.0))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(6)
        .y_max_light_lines(1)
        .bold_line_style(palette::GRID)
        .light_line_style(palette::FINE_GRID)
        .axis_style(palette::FAINT)
        .label_style(("sans-serif", 12).into_font().color(&BLACK))
        .axis_desc_style(("sans-serif", 13).into_font().color(&BLACK))
        .y_desc("prompt tokens computed")
        .y_label_formatter(&|tokens| scale::tokens(*tokens))
        .draw()?;
    let plot = chart.plotting_area();
    let are_few = series.iter().map(|one| one.tokens_by_backend.len()).sum::<usize>() <= FEW_BARS;
    let (origin_x, origin_y) = area.get_base_pixel();
    for (number, one) in series.iter().enumerate() {
        let middle = number as f64 + 0.5;
        for corners in bars(number, &one.tokens_by_backend, are_few) {
            plot.draw(&Rectangle::new(corners, palette::colour(number).filled()))?;
        }
        if let Some(load) = Load::of(&one.tokens_by_backend) {
            let ends = [-FILLED / 2.0, FILLED / 2.0].map(|side| (middle + side, load.mean));
            plot.draw(&PathElement::new(ends.to_vec(), BLACK.stroke_width(1)))?;
            let (x, y) = plot.map_coordinate(&(middle, load.most));
            let label = (x - origin_x, y - origin_y - 4);
            area.draw(&Text::new(format!("{:.2}×", load.most / load.mean), label, style(12, VPos::Bottom)))?;
        }
        if rows > 0 {
            let (x, y) = plot.map_coordinate(&(middle, 0.0));
            let label = (x - origin_x, y - origin_y + 6 + ROW * (number % rows) as i32);
            area.draw(&Text::new(one.policy.as_str(), label, style(13, VPos::Top)))?;
        }
    }
    Ok(())
}

// === impl Load ===

impl Load {
    /// None where no backend did anything.
    fn of(tokens_by_backend: &[f64]) -> Option<Self> {
        let most = tokens_by_backend.iter().copied().fold(0.0, f64::max);
        let mean = tokens_by_backend.iter().sum::<f64>() / tokens_by_backend.len() as f64;
        (most > 0.0).then_some(Self { most, mean })
    }
}

/// The bars of one policy: two corners of each, in the units of the axes.
fn bars(number: usize, tokens_by_backend: &[f64], are_few: bool) -> Vec<[(f64, f64); 2]> {
    let mut tokens = tokens_by_backend.to_vec();
    tokens.sort_by(|left, right| right.total_cmp(left));
    let place = FILLED / tokens.len().max(1) as f64;
    let width = if are_few { place * BAR } else { place };
    let first = number as f64 + (1.0 - FILLED) / 2.0 + (place - width) / 2.0;
    let bar = |(at, &tokens): (usize, &f64)| {
        let left = first + at as f64 * place;
        [(left, 0.0), (left + width, tokens)]
    };
    tokens.iter().enumerate().map(bar).collect()
}

/// Rows that the names need so that none runs into the next; 0 if they need too many.
fn name_rows(series: &[Series]) -> usize {
    let longest = series.iter().map(|one| one.policy.chars().count()).max().unwrap_or(0);
    let place = (WIDTH - AXIS - 2 * MARGIN) as usize / series.len().max(1);
    let rows = (longest * CHAR).div_ceil(place.max(1));
    if rows <= MAX_ROWS { rows } else { 0 }
}

fn style(pixels: u32, below_or_above: VPos) -> TextStyle<'static> {
    ("sans-serif", pixels).into_font().color(&BLACK).pos(Pos::new(HPos::Center, below_or_above))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(policy: &str, times: usize) -> Vec<Series> {
        let one = Series { policy: policy.to_owned(), ttft_seconds: Vec::new(), tokens_by_backend: Vec::new() };
        vec![one; times]
    }

    #[test]
    fn bars_stand_side_by_side_in_their_groups_place_the_busiest_first() {
        let bars = bars(2, &[1.0, 5.0, 3.0], true);
        assert_eq!(bars.iter().map(|bar| bar[1].1).collect::<Vec<_>>(), [5.0, 3.0, 1.0]);
        assert!(bars[0][0].0 > 2.0 && bars[2][1].0 < 3.0, "{bars:?}");
        assert!(bars.windows(2).all(|pair| pair[0][1].0 < pair[1][0].0), "{bars:?}");
    }

    #[test]
    fn the_label_compares_the_busiest_with_the_mean() {
        let load = Load::of(&[3.0, 1.0]).unwrap();
        assert_eq!((load.most, load.mean), (3.0, 2.0));
        assert!(Load::of(&[]).is_none() && Load::of(&[0.0; 4]).is_none());
    }

    #[test]
    fn names_take_as_many_rows_as_keep_them_apart() {
        let rows = [3, 12, 20, 60].map(|policies| name_rows(&named("prefix_affinity", policies)));
        assert_eq!(rows, [1, 2, 3, 0]);
        assert_eq!(name_rows(&[]), 0);
    }
}
