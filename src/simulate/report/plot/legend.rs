//! Which stroke is which policy, with the percentiles that curves do not show to the digit.

use plotters::element::Text;
use plotters::style::{BLACK, FontStyle, IntoFont};

use super::{Area, PlotError, Series, palette, scale, stroke};

/// Pixels above the first entry.
const TOP: i32 = 30;
/// Pixels of an entry.
const ENTRY: i32 = 38;
/// Pixels of the sample of a stroke, and from there to the text.
const SAMPLE: i32 = 26;
const TEXT_LEFT: i32 = 36;

/// Pixels that so many entries take.
pub(super) fn height(entries: usize) -> u32 {
    TOP.unsigned_abs().saturating_add(ENTRY.unsigned_abs().saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX)))
}

pub(super) fn draw(area: &Area<'_>, series: &[Series]) -> Result<(), PlotError> {
    let (name, detail) = (("sans-serif", 13).into_font(), ("sans-serif", 12).into_font());
    let (name, detail) = (name.style(FontStyle::Bold).color(&BLACK), detail.color(&palette::FAINT));
    let mut top = TOP;
    for (number, one) in series.iter().enumerate() {
        stroke::draw(area, vec![(0, top + 7), (SAMPLE, top + 7)], number)?;
        area.draw(&Text::new(one.policy.as_str(), (TEXT_LEFT, top), name.clone()))?;
        area.draw(&Text::new(percentiles(&one.ttft_seconds), (TEXT_LEFT, top + 16), detail.clone()))?;
        top += ENTRY;
    }
    Ok(())
}

/// The median and the 90th percentile of ascending times.
fn percentiles(ttft_seconds: &[f64]) -> String {
    let at = |percent: usize| ttft_seconds.get((ttft_seconds.len() * percent).div_ceil(100).saturating_sub(1));
    match (at(50), at(90)) {
        (Some(&p50), Some(&p90)) => format!("p50 {}, p90 {}", scale::time(p50), scale::time(p90)),
        _ => "no answers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<_> = (1..=10).map(f64::from).collect();
        assert_eq!(percentiles(&times), "p50 5.00 s, p90 9.00 s");
        assert_eq!(percentiles(&[0.25]), "p50 250 ms, p90 250 ms");
        assert_eq!(percentiles(&[]), "no answers");
    }
}
