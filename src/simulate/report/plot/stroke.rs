//! A policy's line: its colour, and its dashes where the colours are used up.

use plotters::backend::SVGBackend;
use plotters::coord::CoordTranslate;
use plotters::drawing::DrawingArea;
use plotters::element::{DashedPathElement, PathElement};
use plotters::style::Color;

use super::{PlotError, palette};

/// Pixels.
const WIDTH: u32 = 2;

/// Draws the line of the policy of this number through `points`.
pub(super) fn draw<C: CoordTranslate>(
    area: &DrawingArea<SVGBackend<'_>, C>,
    points: Vec<C::From>,
    number: usize,
) -> Result<(), PlotError>
where
    C::From: Clone,
{
    let style = palette::colour(number).stroke_width(WIDTH);
    match palette::dashes(number) {
        None => area.draw(&PathElement::new(points, style))?,
        Some((dash, gap)) => area.draw(&DashedPathElement::new(points, dash, gap, style))?,
    }
    Ok(())
}
