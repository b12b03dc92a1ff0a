//! Figures of several rounds: a median, and how far they went.

use std::fmt;
use std::time::Duration;

/// One figure of each round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds(pub(crate) Vec<f64>);

// === impl Rounds ===

impl Rounds {
    /// This figure by that of another proxy in the same round: what changes from round to round is in both.
    pub(crate) fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(this, other)| this / other).collect())
    }

    pub(crate) fn minus(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(this, other)| this - other).collect())
    }

    /// Not a number if there are none.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        if sorted.is_empty() { f64::NAN } else { within(&sorted, 0.5) }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl fmt::Display for Rounds {
    /// `52.1 (50.3 to 55.0)`, with the precision asked for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sorted, digits) = (self.sorted(), f.precision().unwrap_or(1));
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { return f.write_str("-") };
        let median = within(&sorted, 0.5);
        match sorted.len() {
            1 => write!(f, "{median:.digits$}"),
            _ => write!(f, "{median:.digits$} ({least:.digits$} to {most:.digits$})"),
        }
    }
}

/// The figure that this share of them does not exceed.
pub(crate) fn within(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Latencies in microseconds: half and 99 % of them are within these.
pub(crate) fn percentiles(latencies: &[Duration]) -> (f64, f64) {
    let mut sorted: Vec<f64> = latencies.iter().map(|took| took.as_secs_f64() * 1e6).collect();
    sorted.sort_by(f64::total_cmp);
    (within(&sorted, 0.5), within(&sorted, 0.99))
}
