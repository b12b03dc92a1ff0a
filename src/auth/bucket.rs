//! A limit of so many units a minute, as the generic cell rate algorithm (GCRA; ITU-T I.371) has it: all that is kept
//! is the moment at which the bucket will be full again.
//!
//! A bucket holds one minute's units and fills evenly. It differs from the plain algorithm, and from the `governor`
//! crate, in that what was taken by an estimate is settled later: units come back, or the bucket goes into debt and
//! gives nothing until that is made up. More units than it ever holds are given when it is full, and make a debt too:
//! over time the limit holds all the same, and no request waits for ever.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::time::Moment;

/// What a full bucket holds, in the time that it takes to fill.
const WINDOW_NANOS: u64 = 60_000_000_000;

/// What is left of a limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    /// When it is full again; it is full if that has passed.
    full_at: Moment,
}

// === impl Bucket ===

impl Bucket {
    /// Takes `units`, or says how long until they can be taken if nobody else takes any.
    pub(super) fn take(&mut self, units: u64, a_minute: NonZeroU32, now: Moment) -> Result<(), Duration> {
        let missing = self.full_at.as_nanos().saturating_sub(now.as_nanos());
        let after = missing.saturating_add(filling(units, a_minute));
        if missing > 0 && after > WINDOW_NANOS {
            return Err(Duration::from_nanos((after - WINDOW_NANOS).min(missing)));
        }
        self.full_at = Moment::from_nanos(now.as_nanos().saturating_add(after));
        Ok(())
    }

    /// Puts `actual` units in the place of `taken` ones.
    pub(super) fn settle(&mut self, taken: u64, actual: u64, a_minute: NonZeroU32, now: Moment) {
        // Only what is missing can come back: a full bucket does not run over.
        let missing = self.full_at.as_nanos().saturating_sub(now.as_nanos());
        let change = filling(taken.abs_diff(actual), a_minute);
        let missing = if actual > taken { missing.saturating_add(change) } else { missing.saturating_sub(change) };
        self.full_at = Moment::from_nanos(now.as_nanos().saturating_add(missing));
    }

    /// Units that could be taken now.
    pub(super) fn left(&self, a_minute: NonZeroU32, now: Moment) -> u64 {
        let missing = self.full_at.as_nanos().saturating_sub(now.as_nanos());
        let left = u128::from(WINDOW_NANOS.saturating_sub(missing)) * u128::from(a_minute.get());
        u64::try_from(left / u128::from(WINDOW_NANOS)).unwrap_or(u64::MAX)
    }

    /// How long until it is full.
    pub(super) fn full_in(&self, now: Moment) -> Duration {
        self.full_at.since(now)
    }
}

/// Nanoseconds in which `units` flow in, rounded up.
fn filling(units: u64, a_minute: NonZeroU32) -> u64 {
    let nanos = (u128::from(units) * u128::from(WINDOW_NANOS)).div_ceil(u128::from(a_minute.get()));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::config;
    use proptest::prelude::*;

    fn limit(a_minute: u32) -> NonZeroU32 {
        NonZeroU32::new(a_minute).unwrap()
    }

    fn at(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis))
    }

    #[test]
    fn a_minute_worth_is_there_at_once_and_comes_back_evenly() {
        let mut bucket = Bucket::default();
        for _ in 0..60 {
            bucket.take(1, limit(60), at(0)).unwrap();
        }
        assert_eq!(bucket.take(1, limit(60), at(0)), Err(Duration::from_secs(1)));
        assert_eq!(bucket.take(3, limit(60), at(500)), Err(Duration::from_millis(2500)));
        bucket.take(1, limit(60), at(1000)).unwrap();
        assert_eq!((bucket.left(limit(60), at(1000)), bucket.left(limit(60), at(31_000))), (0, 30));
        assert_eq!(bucket.full_in(at(1000)), Duration::from_secs(60));
    }

    #[test]
    fn more_than_it_holds_is_given_when_it_is_full_and_leaves_a_debt() {
        let mut bucket = Bucket::default();
        bucket.take(180, limit(60), at(0)).unwrap();
        assert_eq!(bucket.take(1, limit(60), at(0)), Err(Duration::from_secs(121)));
        assert_eq!(bucket.take(1000, limit(60), at(60_000)), Err(Duration::from_secs(120)), "it has to be full first");
        bucket.take(1000, limit(60), at(180_000)).unwrap();
    }

    #[test]
    fn what_is_settled_comes_back_or_is_owed() {
        let mut bucket = Bucket::default();
        bucket.take(50, limit(60), at(0)).unwrap();
        bucket.settle(50, 10, limit(60), at(0));
        assert_eq!(bucket.left(limit(60), at(0)), 50);
        bucket.settle(10, 100, limit(60), at(0));
        assert_eq!(bucket.left(limit(60), at(0)), 0);
        assert_eq!(bucket.take(0, limit(60), at(0)), Err(Duration::from_secs(40)), "nothing is given in debt");
        bucket.settle(100, 0, limit(60), at(50_000));
        assert_eq!(bucket.left(limit(60), at(50_000)), 60, "a full bucket does not run over");
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        let mut bucket = Bucket::default();
        bucket.take(u64::MAX, limit(1), Moment::from_nanos(u64::MAX)).unwrap();
        bucket.settle(u64::MAX, 0, limit(1), Moment::from_nanos(u64::MAX));
        bucket.settle(0, u64::MAX, limit(u32::MAX), at(0));
        assert_eq!(bucket.left(limit(u32::MAX), at(0)), 0);
    }

    /// The same by its definition: a level that rises with time.
    struct Naive {
        level: f64,
        seen: u64,
    }

    impl Naive {
        fn rise(&mut self, a_minute: u32, millis: u64) {
            let more = (millis - self.seen) as f64 / 60_000.0 * f64::from(a_minute);
            self.level = (self.level + more).min(f64::from(a_minute));
            self.seen = millis;
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(u64),
        Settle(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let step = prop_oneof![
            3 => (0_u64..400).prop_map(Step::Take),
            1 => (0_u64..400, 0_u64..400).prop_map(|(taken, actual)| Step::Settle(taken, actual)),
        ];
        prop::collection::vec((0_u64..30_000, step), 1..60)
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn it_gives_what_a_level_that_rises_with_time_would(a_minute in 1_u32..1000, steps in steps()) {
            let mut bucket = Bucket::default();
            let mut naive = Naive { level: f64::from(a_minute), seen: 0 };
            let mut millis = 0;
            for (pause, step) in steps {
                millis += pause;
                naive.rise(a_minute, millis);
                match step {
                    Step::Take(units) => {
                        let is_full = naive.level >= f64::from(a_minute);
                        let spare = naive.level - units as f64;
                        let taken = bucket.take(units, limit(a_minute), at(millis));
                        // Where rounding decides, the bucket does.
                        if spare.abs() > 1e-3 && (f64::from(a_minute) - naive.level > 1e-3 || is_full) {
                            prop_assert_eq!(taken.is_ok(), spare > 0.0 || is_full, "{} of {}", units, naive.level);
                        }
                        match taken {
                            Ok(()) => naive.level -= units as f64,
                            Err(wait) => {
                                let then = Moment::at(Duration::from_millis(millis) + wait);
                                prop_assert!(bucket.clone().take(units, limit(a_minute), then).is_ok(), "the wait is enough");
                            }
                        }
                    }
                    Step::Settle(taken, actual) => {
                        bucket.settle(taken, actual, limit(a_minute), at(millis));
                        naive.level = (naive.level + taken as f64 - actual as f64).min(f64::from(a_minute));
                    }
                }
                let left = bucket.left(limit(a_minute), at(millis)) as f64;
                prop_assert!((left - naive.level.max(0.0)).abs() <= 1.001, "{left} against {}", naive.level);
            }
        }
    }
}
