//! Colours and strokes that stay apart for colour-blind people, and a policy's in all parts of a plot.
//!
//! The colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), with grey for their yellow, which is
//! hardly seen on white.

use plotters::style::RGBColor;

/// Text that is not a name or a value.
pub(super) const FAINT: RGBColor = RGBColor(100, 100, 100);
/// Lines behind the data.
pub(super) const GRID: RGBColor = RGBColor(215, 215, 215);
/// Finer lines behind the data.
pub(super) const FINE_GRID: RGBColor = RGBColor(240, 240, 240);

const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 140),
];

/// The policy of this number's colour; they come again after eight.
pub(super) fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// The policy of this number's dashes and the gaps between them, in pixels: none for the first eight, which their colours
/// tell apart.
pub(super) fn dashes(number: usize) -> Option<(i32, i32)> {
    match number / COLOURS.len() {
        0 => None,
        1 => Some((8, 4)),
        _ => Some((2, 4)),
    }
}
