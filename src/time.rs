//! Time as a value: pure code takes a [`Moment`] as an argument, and only the rim reads [`now`].
//!
//! A moment counts from an arbitrary origin (process start, or the start of a simulation), so it orders and subtracts
//! but says nothing about the calendar, and a step of the wall clock does not move it.

use std::ops::Add;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A point in monotonic time, in nanoseconds since the origin (enough for 584 years).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

// === impl Moment ===

impl Moment {
    /// The origin.
    pub const ORIGIN: Self = Self(0);

    /// The moment `since_origin` after the origin; saturates.
    pub fn at(since_origin: Duration) -> Self {
        Self(u64::try_from(since_origin.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since the origin: for storing a moment in an atomic.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment that [`Moment::as_nanos`] gave.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(Self::at(after).0))
    }
}

/// The present moment of this process. The rim calls this; pure code is given the result.
pub fn now() -> Moment {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment::at(ORIGIN.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_never_subtracts_below_zero() {
        let later = Moment::ORIGIN + Duration::from_secs(3);
        assert_eq!(later.since(Moment::ORIGIN), Duration::from_secs(3));
        assert_eq!(Moment::ORIGIN.since(later), Duration::ZERO, "an earlier moment is not after a later one");
    }

    #[test]
    fn adding_saturates_at_the_end_of_time() {
        assert_eq!(Moment::from_nanos(u64::MAX) + Duration::from_secs(1), Moment::from_nanos(u64::MAX));
    }
}
