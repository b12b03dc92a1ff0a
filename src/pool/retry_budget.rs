//! How many retries a pool may spend: a share of its requests and a small floor, so that a failing pool is not sent a
//! multiple of its load.
//!
//! A balance of retries: each request adds a share of one, time adds the floor, a retry takes one. What is unspent
//! fades with a time constant of ten seconds (the window of tower's retry budget), so the balance never exceeds ten
//! seconds' worth of either, whatever the load, and calm hours save nothing up for a storm.

use parking_lot::Mutex;

use super::number_within;
use crate::time::Moment;

/// The time constant with which unspent retries fade, in seconds.
const FADE_SECONDS: f64 = 10.0;

/// The size of a retry budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrySettings {
    /// Retries allowed for each request, 0 to 1.
    pub share: f64,
    /// Retries a second allowed at any load.
    pub floor_per_second: f64,
}

/// The retries a pool may spend.
#[derive(Debug, Default)]
pub struct RetryBudget(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Retries saved; the floor's part is filled up at the first use.
    balance: f64,
    as_of: Option<Moment>,
}

// === impl RetrySettings ===

impl Default for RetrySettings {
    fn default() -> Self {
        Self { share: 0.2, floor_per_second: 3.0 }
    }
}

// === impl RetryBudget ===

impl RetryBudget {
    /// A request came in (its first attempt).
    pub fn note_request(&self, settings: &RetrySettings, now: Moment) {
        let mut state = self.0.lock();
        state.advance(settings, now);
        state.balance += sane(settings.share);
    }

    /// Takes one retry; false if there is none left.
    #[must_use]
    pub fn try_spend(&self, settings: &RetrySettings, now: Moment) -> bool {
        let mut state = self.0.lock();
        state.advance(settings, now);
        let is_covered = state.balance >= 1.0;
        if is_covered {
            state.balance -= 1.0;
        }
        is_covered
    }

    /// Retries that could be spent at once.
    pub fn balance(&self, settings: &RetrySettings, now: Moment) -> f64 {
        let mut state = self.0.lock();
        state.advance(settings, now);
        state.balance
    }
}

// === impl State ===

impl State {
    fn advance(&mut self, settings: &RetrySettings, now: Moment) {
        let full_floor = sane(settings.floor_per_second) * FADE_SECONDS;
        let Some(as_of) = self.as_of else {
            (self.balance, self.as_of) = (full_floor, Some(now));
            return;
        };
        let kept = (-now.since(as_of).as_secs_f64() / FADE_SECONDS).exp();
        self.balance = self.balance * kept + full_floor * (1.0 - kept);
        self.as_of = Some(as_of.max(now));
    }
}

/// Settings are checked elsewhere; what is not a usable number here is no allowance.
fn sane(value: f64) -> f64 {
    number_within(0.0, 1e6, value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SETTINGS: RetrySettings = RetrySettings { share: 0.2, floor_per_second: 1.0 };

    fn at(seconds: f64) -> Moment {
        Moment::at(Duration::from_secs_f64(seconds))
    }

    fn spend_all(budget: &RetryBudget, now: Moment) -> u32 {
        let mut spent = 0;
        while budget.try_spend(&SETTINGS, now) {
            spent += 1;
        }
        spent
    }

    #[test]
    fn a_pool_without_traffic_has_the_floor() {
        let budget = RetryBudget::default();
        assert_eq!(spend_all(&budget, at(100.0)), 10, "ten seconds of one a second");
        assert_eq!(spend_all(&budget, at(100.5)), 0);
        assert!((2..=3).contains(&spend_all(&budget, at(103.0))));
        assert_eq!(spend_all(&budget, at(1e6)), 10, "calm hours save up ten seconds' worth at most");
    }

    #[test]
    fn requests_earn_their_share_of_retries() {
        let budget = RetryBudget::default();
        spend_all(&budget, at(0.0));
        for _ in 0..100 {
            budget.note_request(&SETTINGS, at(0.0));
        }
        assert!((19..=20).contains(&spend_all(&budget, at(0.0))));
    }

    #[test]
    fn a_storm_is_held_to_the_share() {
        let (budget, mut retries) = (RetryBudget::default(), 0);
        for request in 0..10_000 {
            let now = at(f64::from(request) / 100.0);
            budget.note_request(&SETTINGS, now);
            retries += u32::from(budget.try_spend(&SETTINGS, now));
        }
        assert!((1_900..=2_150).contains(&retries), "20 % of 10,000, and 100 s of the floor: {retries}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn no_history_spends_more_than_it_earned(events in prop::collection::vec((any::<bool>(), 0.0..3.0_f64), 1..300)) {
            let (budget, mut seconds, mut requests, mut retries) = (RetryBudget::default(), 0.0, 0.0, 0.0);
            for (is_request, wait) in events {
                seconds += wait * wait * wait / 9.0;
                if is_request {
                    budget.note_request(&SETTINGS, at(seconds));
                    requests += 1.0;
                } else if budget.try_spend(&SETTINGS, at(seconds)) {
                    retries += 1.0;
                }
                prop_assert!(retries <= 0.2 * requests + seconds + 10.0 + 1e-6);
                prop_assert!(budget.balance(&SETTINGS, at(seconds)) >= 0.0);
            }
        }

        #[test]
        fn no_setting_breaks_the_balance(share in any::<f64>(), floor_per_second in any::<f64>(), nanos in any::<u64>()) {
            let (budget, settings) = (RetryBudget::default(), RetrySettings { share, floor_per_second });
            budget.note_request(&settings, Moment::from_nanos(nanos));
            let _ = budget.try_spend(&settings, Moment::ORIGIN);
            budget.note_request(&settings, Moment::from_nanos(u64::MAX));
            let balance = budget.balance(&settings, Moment::from_nanos(u64::MAX));
            prop_assert!(balance.is_finite() && balance >= 0.0);
        }
    }
}
