//! A picture of a comparison: how long first tokens took, and how evenly backends worked, by policy.
//!
//! One SVG for a browser or a document, without scripts or fonts of its own. It grows with the number of policies, so it
//! has room for any. Nothing is written here; the caller has the text.

mod bars;
mod curves;
mod legend;
mod palette;
mod scale;
mod stroke;
mod title;

use std::io;

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::WHITE;

/// One policy's results.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::simulate) struct Series {
    /// Its name.
    pub policy: String,
    /// TTFT of every answered request, ascending; may be empty. Less than a microsecond is shown as one.
    pub ttft_seconds: Vec<f64>,
    /// Prompt tokens computed by each backend; may be empty.
    pub tokens_by_backend: Vec<f64>,
}

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot cannot be drawn")]
pub(in crate::simulate) struct PlotError(#[from] DrawingAreaErrorKind<io::Error>);

/// A part of the picture, its pixels counted from its upper left corner.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Pixels from left to right: fits a page, and eight names of policies side by side.
const WIDTH: u32 = 1_000;
/// Pixels of an axis on the left, with its labels.
const AXIS: u32 = 68;
/// Pixels between anything and the edge on its left or right.
const MARGIN: u32 = 20;
/// Pixels of the legend beside the curves.
const LEGEND_WIDTH: u32 = 210;
/// Least pixels from top to bottom of the curves; more if the legend needs them.
const CURVES_HEIGHT: u32 = 400;
/// Pixels from top to bottom of the bars.
const BARS_HEIGHT: u32 = 310;

/// The SVG text of a plot. The first line of `title` is large, those after it (the workload, the settings) are small; all
/// are wrapped.
///
/// # Errors
///
/// If the library that draws refuses; no input is known to make it.
pub(in crate::simulate) fn draw(title: &str, series: &[Series]) -> Result<String, PlotError> {
    let title = title::Title::new(title);
    let curves_height = CURVES_HEIGHT.max(legend::height(series.len()));
    let size = (WIDTH, title.height() + curves_height + BARS_HEIGHT);
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(title.height());
    let (upper, lower) = body.split_vertically(curves_height);
    let (left, right) = upper.split_horizontally(WIDTH - LEGEND_WIDTH);
    title.draw(&head)?;
    curves::draw(&left, series)?;
    legend::draw(&right, series)?;
    bars::draw(&lower, series)?;
    root.present()?;
    // The text is whole when the last area that writes to it is gone.
    drop((root, head, body, upper, lower, left, right));
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    fn series(policy: &str, ttft_seconds: &[f64], tokens_by_backend: &[f64]) -> Series {
        Series {
            policy: policy.to_owned(),
            ttft_seconds: ttft_seconds.to_vec(),
            tokens_by_backend: tokens_by_backend.to_vec(),
        }
    }

    fn count(svg: &str, what: &str) -> usize {
        svg.matches(what).count()
    }

    #[test]
    fn each_policy_has_a_curve_and_a_bar_for_each_backend() {
        let svg = draw("t", &[series("cost", &[0.1, 0.2], &[5.0; 4]), series("random", &[0.3], &[1.0; 4])]).unwrap();
        for colour in ["#0072B2", "#D55E00"] {
            let strokes = count(&svg, &format!("stroke=\"{colour}\""));
            assert_eq!(strokes, 2, "a curve, and a sample of it in the legend");
            assert_eq!(count(&svg, &format!("fill=\"{colour}\"")), 4, "a bar for each backend");
        }
        assert_eq!(count(&svg, "\ncost\n"), 2, "the name is in the legend and below the bars");
        for text in ["p50 100 ms", "p90 200 ms", "p50 300 ms", "1.00×"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn names_are_text_and_not_markup() {
        let svg = draw("<title> & \"more\"", &[series("<script>", &[1.0], &[1.0])]).unwrap();
        assert!(!svg.contains("<script>") && !svg.contains("<title>"));
        assert!(svg.contains("&lt;script&gt;"));
    }

    #[test]
    fn a_policy_without_answers_says_so() {
        let svg = draw("t", &[series("cost", &[], &[])]).unwrap();
        assert!(svg.contains("no answers"));
    }

    proptest! {
        #![proptest_config(config(64))]

        #[test]
        fn whatever_was_measured_is_drawn_on_the_canvas(
            title in ".{0,200}",
            mut runs in prop::collection::vec((
                prop::collection::vec(prop_oneof![Just(0.0), 1e-9..1e9_f64, 0.01..1.0_f64], 0..40),
                prop::collection::vec(prop_oneof![Just(0.0), 0.0..1e12_f64], 0..65),
            ), 0..20),
        ) {
            runs.iter_mut().for_each(|(times, _)| times.sort_by(f64::total_cmp));
            let runs: Vec<_> = runs.iter().map(|(times, tokens)| series("policy", times, tokens)).collect();
            let svg = draw(&title, &runs).unwrap();
            prop_assert!(svg.trim_end().ends_with("</svg>"));
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"));
            for points in svg.split("points=\"").skip(1) {
                for point in points.split('"').next().unwrap().split_whitespace() {
                    let (x, y) = point.split_once(',').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    prop_assert!((0.0..=1_000.0).contains(&x) && (0.0..=2_000.0).contains(&y), "{point}");
                }
            }
        }
    }
}
