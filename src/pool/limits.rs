//! How much one backend is given at a time. What is beyond waits in the pool's queue, not in the engine's.
//!
//! An engine's own queue has no bound by default, and a request in it can no longer go elsewhere. So a backend is *full*
//! when as many requests are in flight as [`InFlightLimit`] says: a number, or what the engine runs at once, and some more.
//! It is *busy* when one of these holds:
//! - by [`InFlightLimit::Auto`], the engine says that requests wait inside, and as many of ours have had no token since.
//!   Engines that do not tell their limit (vLLM) are kept from taking more than they can run in this way;
//! - what is pending there takes longer than [`Limits::max_pending_prefill`], by its learned rate.
//!
//! While any backend has room, a busy one may be chosen all the same: what is cached there can be worth the wait, which
//! policies reckon with. When none has, requests wait, and go only where there is room.
//!
//! All but the engine's word is counted here, so it holds for requests that arrive together. A backend with nothing in
//! flight always has room.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{EngineState, LoadView};
use crate::time::Moment;

/// Requests beyond what an engine runs at once, so that it has the next one at hand when one ends: at least these.
const LEAST_SPARE: u32 = 8;
/// The same as a part of what it runs: one in so many.
const SPARE_PART: u32 = 8;

/// The limits of one backend of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight.
    pub in_flight: InFlightLimit,
    /// Pending prefill, in the time that it takes.
    pub max_pending_prefill: Option<Duration>,
}

/// How a backend stands to its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// It has room.
    Room,
    /// It has enough to do.
    Busy,
    /// It must not get more.
    Full,
}

/// A limit of requests in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InFlightLimit {
    /// None.
    #[default]
    Unlimited,
    /// What the engine can do, by what it says.
    Auto,
    /// This many.
    Requests(NonZeroU32),
}

// === impl Limits ===

impl Limits {
    /// How a backend stands. `engine` is without a stale reading, `rate` its prefill rate in work units a second.
    pub fn fill(&self, load: &LoadView, engine: &EngineState, rate: f64) -> Fill {
        if load.in_flight == 0 {
            return Fill::Room;
        }
        if self.in_flight.is_reached(load, engine) {
            return Fill::Full;
        }
        let is_pending = |limit: Duration| load.queued_work(rate) >= rate * limit.as_secs_f64();
        let lets_wait = self.in_flight == InFlightLimit::Auto && lets_wait(load, engine);
        if lets_wait || self.max_pending_prefill.is_some_and(is_pending) { Fill::Busy } else { Fill::Room }
    }

    /// When a backend whose pending prefill is beyond its limit has room again, if all goes on as it is.
    pub fn has_room_at(&self, load: &LoadView, rate: f64, now: Moment) -> Option<Moment> {
        let beyond = load.queued_work(rate) / rate - self.max_pending_prefill?.as_secs_f64();
        // Work that does not begin before something else ends is no matter of time alone.
        let head_left = (load.head_work / rate - load.head_for.as_secs_f64()).max(0.0);
        let wait = Duration::try_from_secs_f64(beyond).ok().filter(|_| beyond <= head_left)?;
        Some(now + wait + ROUNDING)
    }
}

/// Added to a time that was computed from a rate, so that it is not just before.
const ROUNDING: Duration = Duration::from_millis(1);

// === impl InFlightLimit ===

impl InFlightLimit {
    fn is_reached(self, load: &LoadView, engine: &EngineState) -> bool {
        match self {
            Self::Unlimited => false,
            Self::Requests(most) => load.in_flight >= most.get(),
            Self::Auto => is_past_its_limit(load, engine),
        }
    }
}

fn is_past_its_limit(load: &LoadView, engine: &EngineState) -> bool {
    engine.max_running.is_some_and(|most| load.in_flight >= most.get().saturating_add(spare(most.get())))
}

/// Whether requests wait inside the engine, and ours are among them.
fn lets_wait(load: &LoadView, engine: &EngineState) -> bool {
    engine.polled.is_some_and(|polled| {
        let spare = spare(polled.running);
        let without_a_token = load.in_flight.saturating_sub(load.decoding);
        polled.waiting >= spare && without_a_token >= spare
    })
}

fn spare(running: u32) -> u32 {
    LEAST_SPARE.max(running / SPARE_PART)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Polled;

    fn load(in_flight: u32, decoding: u32, pending_work: f64) -> LoadView {
        LoadView { in_flight, decoding, pending_work, head_work: pending_work.min(500.0), ..LoadView::IDLE }
    }

    fn engine(running: u32, waiting: u32) -> EngineState {
        let polled = Polled { running, waiting, kv_usage: None, observed_at: Moment::ORIGIN };
        EngineState { polled: Some(polled), ..EngineState::default() }
    }

    const AUTO: Limits = Limits { in_flight: InFlightLimit::Auto, max_pending_prefill: Some(Duration::from_secs(2)) };

    #[test]
    fn without_limits_nothing_is_full() {
        assert_eq!(Limits::default().fill(&load(u32::MAX, 0, 1e15), &engine(1, 1_000), 1.0), Fill::Room);
    }

    #[test]
    fn a_number_is_a_number() {
        let two = NonZeroU32::new(2).unwrap();
        let limits = Limits { in_flight: InFlightLimit::Requests(two), max_pending_prefill: None };
        let fill = |in_flight| limits.fill(&load(in_flight, in_flight, 0.0), &EngineState::default(), 100.0);
        assert_eq!([1, 2, 3].map(fill), [Fill::Room, Fill::Full, Fill::Full]);
    }

    #[test]
    fn what_the_engine_runs_at_once_is_the_limit_with_some_to_spare() {
        let engine = EngineState { max_running: NonZeroU32::new(64), ..EngineState::default() };
        let fill = |in_flight| AUTO.fill(&load(in_flight, in_flight, 0.0), &engine, 100.0);
        assert_eq!([64, 71, 72].map(fill), [Fill::Room, Fill::Room, Fill::Full]);
    }

    #[test]
    fn an_engine_that_lets_our_requests_wait_is_busy() {
        assert_eq!(AUTO.fill(&load(16, 8, 10.0), &engine(8, 8), 1_000.0), Fill::Busy);
        assert_eq!(
            AUTO.fill(&load(16, 8, 10.0), &engine(8, 7), 1_000.0),
            Fill::Room,
            "a few are at hand for the next step"
        );
        assert_eq!(
            AUTO.fill(&load(16, 9, 10.0), &engine(8, 9), 1_000.0),
            Fill::Room,
            "ours have come through since, or are others'"
        );
    }

    #[test]
    fn pending_prefill_counts_by_the_time_that_it_takes() {
        let none = EngineState::default();
        assert_eq!(AUTO.fill(&load(3, 0, 2_000.0), &none, 1_000.0), Fill::Busy);
        assert_eq!(AUTO.fill(&load(3, 0, 1_999.0), &none, 1_000.0), Fill::Room);
        assert_eq!(AUTO.fill(&load(3, 0, 2_000.0), &none, 1_001.0), Fill::Room, "a quicker one has room");
        assert_eq!(AUTO.fill(&load(0, 0, 0.0), &none, 1e-9), Fill::Room, "an idle one always has");
    }

    #[test]
    fn the_head_makes_room_as_it_is_computed() {
        let view = load(3, 0, 2_300.0);
        let at = AUTO.has_room_at(&view, 1_000.0, Moment::ORIGIN).unwrap();
        assert_eq!(at.since(Moment::ORIGIN), Duration::from_millis(301));
        let later = LoadView { head_for: at.since(Moment::ORIGIN), ..view };
        assert_eq!(AUTO.fill(&view, &EngineState::default(), 1_000.0), Fill::Busy);
        assert_eq!(AUTO.fill(&later, &EngineState::default(), 1_000.0), Fill::Room);
        let much = load(3, 0, 2_600.0);
        assert_eq!(AUTO.has_room_at(&much, 1_000.0, Moment::ORIGIN), None, "not before the head is done");
    }
}
