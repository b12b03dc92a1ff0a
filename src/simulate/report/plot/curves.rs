//! The distribution of TTFT: for each time the share of requests that had their first token by then.

use plotters::chart::ChartBuilder;
use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::style::{BLACK, IntoFont};

use super::{AXIS, Area, MARGIN, PlotError, Series, palette, scale, stroke};

/// Points of a curve: one every 0.25 %, finer than a pixel.
const POINTS: usize = 400;

pub(super) fn draw(area: &Area<'_>, series: &[Series]) -> Result<(), PlotError> {
    let range = scale::seconds_range(series.iter().flat_map(|one| one.ttft_seconds.iter().copied()));
    let seconds =
        range.clone().log_scale().with_key_points(scale::labelled(&range)).with_light_points(scale::unlabelled(&range));
    let mut chart = ChartBuilder::on(area)
        .margin_top(22)
        .margin_left(MARGIN)
        .margin_right(MARGIN)
        .x_label_area_size(42)
        .y_label_area_size(AXIS)
        .build_cartesian_2d(seconds, 0.0..100.0)?;
    chart
        .configure_mesh()
        .bold_line_style(palette::GRID)
        .light_line_style(palette::FINE_GRID)
        .y_labels(11)
        .y_max_light_lines(1)
        .axis_style(palette::FAINT)
        .label_style(("sans-serif", 12).into_font().color(&BLACK))
        .axis_desc_style(("sans-serif", 13).into_font().color(&BLACK))
        .x_desc("time to first token")
        .y_desc("share of requests")
        .x_label_formatter(&|seconds| scale::time_mark(*seconds))
        .y_label_formatter(&|percent| format!("{percent:.0} %"))
        .draw()?;
    for (number, one) in series.iter().enumerate().filter(|(_, one)| !one.ttft_seconds.is_empty()) {
        stroke::draw(chart.plotting_area(), points(&one.ttft_seconds, range.end), number)?;
    }
    Ok(())
}

/// Time and percent of the requests, as steps, from nothing at the first one to all at the end of the axis.
fn points(ttft_seconds: &[f64], end: f64) -> Vec<(f64, f64)> {
    let requests = ttft_seconds.len();
    let shown = requests.min(POINTS);
    let mut points = Vec::with_capacity(2 * shown + 1);
    let mut below = 0.0;
    for point in 1..=shown {
        let counted = requests * point / shown;
        let (seconds, percent) = (scale::on_axis(ttft_seconds[counted - 1]), 100.0 * counted as f64 / requests as f64);
        points.extend([(seconds, below), (seconds, percent)]);
        below = percent;
    }
    points.push((end, below));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_steps_from_nothing_to_all() {
        assert_eq!(points(&[1.0, 3.0], 4.0), [(1.0, 0.0), (1.0, 50.0), (3.0, 50.0), (3.0, 100.0), (4.0, 100.0)]);
        assert_eq!(points(&[0.0], 4.0)[0].0, scale::LEAST_SECONDS, "the axis has no zero");
    }

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_end() {
        let times: Vec<_> = (0..12_031).map(f64::from).collect();
        let points = points(&times, 20_000.0);
        assert_eq!(points.len(), 2 * POINTS + 1);
        assert_eq!(points[points.len() - 2], (12_030.0, 100.0));
    }
}
