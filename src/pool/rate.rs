//! The learned prefill rate of a backend, in work units a second.
//!
//! Decayed sums of work and of the time it took, 0.98 a sample. A sample is taken at the first token of a streamed
//! request with more than 1,024 work (smaller ones measure the engine's step time), and covers **all** prefill the
//! engine finished since the sample before it, or since such a request began to wait; not this request's work over its
//! own TTFT. With several requests waiting at one engine a TTFT contains the prefill of those ahead, so the sum of
//! TTFTs counts the same second once for each of them: with a queue of n the rate comes out n/2 too low, and the queue,
//! divided by that rate, would be counted twice. Without a queue the two are the same. The tests simulate both.
//!
//! An engine that prefills requests side by side, or a shorter one first, moves time from one sample to the next, and
//! the sums stay right.

use serde::{Deserialize, Serialize};

use super::number_within;
use crate::time::Moment;

/// Assumed before anything is learned, in work units a second...
const START_RATE: f64 = 8_000.0;
/// ...as if observed for this long, in seconds.
const START_SECONDS: f64 = 5.0;
/// What is kept of the sums at each sample: a memory of about 50 samples.
const KEPT_PER_SAMPLE: f64 = 0.98;
/// Requests with no more work than this are not timed.
const SAMPLE_MIN_WORK: f64 = 1_024.0;
/// A sample counts for at most this many seconds, its rate unchanged, so that one hung request does not outweigh
/// hundreds of good ones.
const SAMPLE_MAX_SECONDS: f64 = 10.0;
/// The pool's rate is mixed into a backend's as if observed for this long, in seconds.
const POOL_SECONDS: f64 = 10.0;
/// Within this share of the pool's rate, a backend's rate is the pool's, so that noise makes no favourites.
const POOL_BAND: f64 = 0.30;
/// Bounds of every rate: wide enough for a CPU engine and for a whole rack, narrow enough to divide by.
const RATE_RANGE: (f64, f64) = (10.0, 1e7);

/// Work and the seconds it took, as decayed sums.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RateSums {
    /// Work units.
    pub work: f32,
    /// Seconds.
    pub seconds: f32,
}

/// The rate of all backends of a pool together, in work units a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolRate(f64);

/// Keeps one backend's sums.
#[derive(Debug)]
pub(super) struct RateLearner {
    work: f64,
    seconds: f64,
    /// Waiting requests large enough to be timed. While there is one, the engine is known to be at work.
    large_waiting: u32,
    /// Start of the time that the next sample covers; means something while `large_waiting` is above 0.
    span_since: Moment,
    /// Prefill finished in that time.
    span_work: f64,
}

// === impl RateSums ===

impl RateSums {
    /// What is assumed of a new backend.
    pub const START: Self = Self { work: (START_RATE * START_SECONDS) as f32, seconds: START_SECONDS as f32 };

    /// Work units a second, within bounds.
    pub fn rate(self) -> f64 {
        bounded_rate(f64::from(self.work), f64::from(self.seconds))
    }

    /// Both sums in one word, so that an atomic holds a consistent pair.
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.work.to_bits()) << 32 | u64::from(self.seconds.to_bits())
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self { work: f32::from_bits((bits >> 32) as u32), seconds: f32::from_bits(bits as u32) }
    }
}

// === impl PoolRate ===

impl PoolRate {
    /// The common rate of `backends`; the assumed one if there is none.
    ///
    /// Summed anew for each decision: two loads a backend, and nothing shared that could drift or outlive a backend.
    pub fn of(backends: impl Iterator<Item = RateSums>) -> Self {
        let (work, seconds) = backends
            .fold((0.0, 0.0), |(work, seconds), sums| (work + f64::from(sums.work), seconds + f64::from(sums.seconds)));
        if seconds > 0.0 { Self(bounded_rate(work, seconds)) } else { Self(START_RATE) }
    }

    /// Work units a second.
    pub fn rate(self) -> f64 {
        self.0
    }

    /// The rate to use for a backend with these sums, in work units a second: shrunk towards the pool's, and the
    /// pool's while near it.
    pub fn for_backend(self, sums: RateSums) -> f64 {
        let shrunk = bounded_rate(f64::from(sums.work) + self.0 * POOL_SECONDS, f64::from(sums.seconds) + POOL_SECONDS);
        if (shrunk / self.0 - 1.0).abs() <= POOL_BAND { self.0 } else { shrunk }
    }
}

// === impl RateLearner ===

impl Default for RateLearner {
    fn default() -> Self {
        Self {
            work: START_RATE * START_SECONDS,
            seconds: START_SECONDS,
            large_waiting: 0,
            span_since: Moment::ORIGIN,
            span_work: 0.0,
        }
    }
}

impl RateLearner {
    pub(super) fn sums(&self) -> RateSums {
        RateSums { work: self.work as f32, seconds: self.seconds as f32 }
    }

    /// Goes on from what another process has learned; sums that cannot be are left alone.
    pub(super) fn restore(&mut self, sums: RateSums) {
        let (work, seconds) = (f64::from(sums.work), f64::from(sums.seconds));
        if (work.is_finite() && work >= 0.0) && (seconds.is_finite() && seconds > 0.0) {
            (self.work, self.seconds) = (work, seconds);
        }
    }

    /// A request with this much work was sent to the engine.
    pub(super) fn dispatched(&mut self, work: f64, now: Moment) {
        if work <= SAMPLE_MIN_WORK {
            return;
        }
        if self.large_waiting == 0 {
            self.start_span(now);
        }
        self.large_waiting += 1;
    }

    /// Its prefill is done: by its first token (`is_observed`), or as far as can be told without one.
    pub(super) fn prefilled(&mut self, work: f64, is_observed: bool, now: Moment) {
        if self.large_waiting > 0 {
            self.span_work += work;
        }
        if work <= SAMPLE_MIN_WORK {
            return;
        }
        self.large_waiting = self.large_waiting.saturating_sub(1);
        if is_observed {
            self.sample(now.since(self.span_since).as_secs_f64());
            self.start_span(now);
        }
    }

    /// It ended without its prefill done. If it `was_head` the engine has worked on it for a time that no first token
    /// will account for.
    pub(super) fn abandoned(&mut self, work: f64, was_head: bool, now: Moment) {
        if work <= SAMPLE_MIN_WORK {
            return;
        }
        self.large_waiting = self.large_waiting.saturating_sub(1);
        if was_head {
            self.start_span(now);
        }
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.large_waiting == 0
    }

    fn start_span(&mut self, now: Moment) {
        self.span_since = now;
        self.span_work = 0.0;
    }

    fn sample(&mut self, seconds: f64) {
        let share = if seconds > SAMPLE_MAX_SECONDS { SAMPLE_MAX_SECONDS / seconds } else { 1.0 };
        self.work = self.work * KEPT_PER_SAMPLE + self.span_work * share;
        self.seconds = self.seconds * KEPT_PER_SAMPLE + seconds * share;
    }
}

/// `work / seconds`, finite and within [`RATE_RANGE`] whatever they are.
fn bounded_rate(work: f64, seconds: f64) -> f64 {
    number_within(RATE_RANGE.0, RATE_RANGE.1, work / seconds.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TRUE_RATE: f64 = 20_000.0;

    /// A first-come-first-served engine: feeds `learner` with Poisson arrivals at the given utilisation, and returns
    /// (learned rate, rate by whole TTFTs).
    fn serve(utilisation: f64, rng: &mut fastrand::Rng) -> (f64, f64) {
        let mut learner = RateLearner::default();
        let (mut by_ttft_work, mut by_ttft_seconds) = (START_RATE * START_SECONDS, START_SECONDS);
        let (mut arrival, mut free_at) = (0.0_f64, 0.0_f64);
        // Events in time order: (seconds, is_first_token, work).
        let mut events: Vec<(f64, bool, f64)> = Vec::new();
        for _ in 0..600 {
            let work = 200.0 + 9_800.0 * rng.f64();
            arrival -= (1.0 - rng.f64()).ln() * 5_100.0 / TRUE_RATE / utilisation;
            free_at = free_at.max(arrival) + work / TRUE_RATE;
            events.push((arrival, false, work));
            events.push((free_at, true, work));
            if work > SAMPLE_MIN_WORK {
                by_ttft_work = by_ttft_work * KEPT_PER_SAMPLE + work;
                by_ttft_seconds = by_ttft_seconds * KEPT_PER_SAMPLE + (free_at - arrival);
            }
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (at, is_first_token, work) in events {
            let now = Moment::at(Duration::from_secs_f64(at));
            if is_first_token { learner.prefilled(work, true, now) } else { learner.dispatched(work, now) }
        }
        (learner.sums().rate(), by_ttft_work / by_ttft_seconds)
    }

    #[test]
    fn the_rate_is_learned_right_whatever_the_queue() {
        let mut rng = fastrand::Rng::with_seed(7);
        for utilisation in [0.1, 0.5, 0.8, 0.95] {
            let (learned, by_ttft) = serve(utilisation, &mut rng);
            assert!((learned / TRUE_RATE - 1.0).abs() < 0.05, "learned {learned} at utilisation {utilisation}");
            if utilisation >= 0.8 {
                assert!(by_ttft < TRUE_RATE / 2.0, "whole TTFTs mislead by 2 or more under load: {by_ttft}");
            }
        }
    }

    #[test]
    fn out_of_order_first_tokens_move_time_between_samples_only() {
        let mut learner = RateLearner::default();
        for round in 0..400 {
            let at = |seconds: f64| Moment::at(Duration::from_secs_f64(f64::from(round) * 10.0 + seconds));
            learner.dispatched(40_000.0, at(0.0));
            learner.dispatched(10_000.0, at(1.0));
            learner.prefilled(10_000.0, true, at(1.5)); // overtakes
            learner.prefilled(40_000.0, true, at(2.5));
        }
        assert!((learner.sums().rate() / TRUE_RATE - 1.0).abs() < 0.02, "learned {}", learner.sums().rate());
    }

    #[test]
    fn abandoned_and_small_requests_do_not_count_as_slowness() {
        let mut learner = RateLearner::default();
        for round in 0..400 {
            let at = |seconds: f64| Moment::at(Duration::from_secs_f64(f64::from(round) * 10.0 + seconds));
            learner.dispatched(8_000.0, at(0.0)); // its client leaves after 4 s of a stall
            learner.dispatched(8_000.0, at(0.0));
            learner.abandoned(8_000.0, true, at(4.0));
            learner.prefilled(8_000.0, true, at(4.4));
            learner.dispatched(10.0, at(5.0));
            learner.prefilled(10.0, true, at(6.0));
        }
        assert!((learner.sums().rate() / TRUE_RATE - 1.0).abs() < 0.02, "learned {}", learner.sums().rate());
    }

    #[test]
    fn one_hung_request_does_not_ruin_the_rate() {
        let mut learner = RateLearner::default();
        learner.dispatched(2_000.0, Moment::ORIGIN);
        learner.prefilled(2_000.0, true, Moment::ORIGIN + Duration::from_secs(3_600));
        assert!(learner.sums().rate() > START_RATE / 4.0, "left {}", learner.sums().rate());
    }

    #[test]
    fn a_backend_has_the_pools_rate_unless_clearly_different() {
        let pool = PoolRate(10_000.0);
        let sums = |rate: f32, seconds: f32| RateSums { work: rate * seconds, seconds };
        assert_eq!(pool.for_backend(sums(14_000.0, 10.0)), 10_000.0, "shrunk to 12,000: within the band");
        assert_eq!(pool.for_backend(sums(30_000.0, 10.0)), 20_000.0, "shrunk half-way");
        assert_eq!(pool.for_backend(sums(100_000.0, 0.2)), 10_000.0, "a fifth of a second of evidence is not enough");
    }

    #[test]
    fn the_pools_rate_weighs_backends_by_time() {
        let sums = [RateSums { work: 9_000.0, seconds: 1.0 }, RateSums { work: 3_000.0, seconds: 3.0 }];
        assert_eq!(PoolRate::of(sums.into_iter()).rate(), 3_000.0);
        assert_eq!(PoolRate::of(std::iter::empty()).rate(), START_RATE, "an empty pool has the assumed rate");
    }

    #[test]
    fn no_sums_give_an_unusable_rate() {
        let extremes = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, f32::MAX];
        for work in extremes {
            for seconds in extremes {
                let sums = RateSums { work, seconds };
                let pool = PoolRate::of([sums].into_iter());
                for rate in [sums.rate(), pool.rate(), pool.for_backend(sums), PoolRate(5.0).for_backend(sums)] {
                    assert!(rate.is_finite() && rate >= RATE_RANGE.0, "{work} / {seconds} gave {rate}");
                }
            }
        }
    }

    #[test]
    fn what_another_process_has_learned_goes_on_and_nonsense_does_not() {
        let mut learner = RateLearner::default();
        learner.restore(RateSums { work: 600_000.0, seconds: 20.0 });
        assert_eq!(learner.sums().rate(), 30_000.0);
        for (work, seconds) in [(f32::NAN, 1.0), (1.0, 0.0), (-1.0, 1.0), (f32::INFINITY, 1.0), (1.0, f32::NAN)] {
            learner.restore(RateSums { work, seconds });
            assert_eq!(learner.sums().rate(), 30_000.0, "{work} in {seconds}");
        }
    }

    #[test]
    fn sums_survive_their_packing() {
        let sums = RateSums { work: 123_456.0, seconds: 0.25 };
        assert_eq!(RateSums::from_bits(sums.to_bits()), sums);
    }
}
