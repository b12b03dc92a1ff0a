//! How many requests a backend got lately.
//!
//! In flight tells of this moment, and with short answers of next to nothing: a backend that holds the prefixes everyone
//! asks for is idle between two requests, and gets nearly all of them.

use std::time::Duration;

use crate::time::Moment;

/// After this long a request counts for 1/e: long enough for a mean, short enough to follow an hour's traffic. At a steady
/// rate the count is that of the requests in so much time.
pub const RECENT_MEMORY: Duration = Duration::from_secs(60);

/// A count of requests that each fade away.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Recent {
    count: f64,
    /// When `count` was true.
    at: Moment,
}

// === impl Recent ===

impl Recent {
    /// Counts one more.
    pub fn add(&mut self, now: Moment) {
        *self = Self { count: self.count_at(now) + 1.0, at: self.at.max(now) };
    }

    /// This count at `now`; 0 if it is none.
    pub(super) fn starting_at(count: f64, now: Moment) -> Self {
        Self { count: if count.is_finite() { count.max(0.0) } else { 0.0 }, at: now }
    }

    /// The count at `now`.
    pub fn count_at(self, now: Moment) -> f64 {
        let faded = now.since(self.at).as_secs_f64() / RECENT_MEMORY.as_secs_f64();
        if faded == 0.0 { self.count } else { self.count * (-faded).exp() }
    }

    /// The count and its moment, for storing them in atomics.
    pub(super) fn to_bits(self) -> (u64, u64) {
        (self.count.to_bits(), self.at.as_nanos())
    }

    /// What [`Recent::to_bits`] gave.
    pub(super) fn from_bits(count: u64, at: u64) -> Self {
        Self { count: f64::from_bits(count), at: Moment::from_nanos(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn requests_fade_away_together() {
        let mut recent = Recent::default();
        assert_eq!(recent.count_at(at(5)), 0.0);
        recent.add(at(10));
        recent.add(at(10));
        assert_eq!(recent.count_at(at(10)), 2.0);
        recent.add(at(70));
        let expected = 2.0 / std::f64::consts::E + 1.0;
        assert!((recent.count_at(at(70)) - expected).abs() < 1e-12);
        assert!(recent.count_at(at(10_000)) < 1e-9);
    }

    #[test]
    fn a_steady_rate_counts_as_a_minute_of_it() {
        let mut recent = Recent::default();
        (0..1_000).for_each(|second| recent.add(at(second)));
        assert!((recent.count_at(at(1_000)) / 60.0 - 1.0).abs() < 0.02, "{}", recent.count_at(at(1_000)));
    }

    #[test]
    fn a_clock_behind_the_last_request_changes_nothing() {
        let mut recent = Recent::default();
        recent.add(at(10));
        recent.add(at(5));
        assert_eq!((recent.count_at(at(5)), recent.count_at(at(10))), (2.0, 2.0));
    }
}
