//! How fast a queue moves: what was let go from it in the time that anything waited.
//!
//! Both sums fade with a time constant of ten seconds of waiting. Time without a queue does not count: what goes through
//! then says what was asked for, not what could be done.

use crate::time::Moment;

/// The time constant, in seconds.
const FADE_SECONDS: f64 = 10.0;
/// Nothing is told from less waiting than this, in seconds.
const LEAST_SECONDS: f64 = 1.0;
/// Nor from fewer requests.
const LEAST_SERVED: f64 = 3.0;

#[derive(Debug, Default)]
pub(super) struct Drain {
    cost: f64,
    served: f64,
    seconds: f64,
    /// Since when the sums are up to date, while anything waits.
    as_of: Option<Moment>,
}

// === impl Drain ===

impl Drain {
    /// The queue has begun to be one, or has ended.
    pub(super) fn set_waiting(&mut self, is_waiting: bool, now: Moment) {
        self.advance(now);
        self.as_of = is_waiting.then_some(now);
    }

    /// A request that waited was let go.
    pub(super) fn served(&mut self, cost: u64, now: Moment) {
        self.advance(now);
        self.cost += cost as f64;
        self.served += 1.0;
    }

    /// Units a second; none while too little was seen.
    pub(super) fn rate(&self, now: Moment) -> Option<f64> {
        let waited = self.as_of.map_or(0.0, |as_of| now.since(as_of).as_secs_f64());
        let kept = (-waited / FADE_SECONDS).exp();
        let seconds = self.seconds * kept + FADE_SECONDS * (1.0 - kept);
        let is_enough = seconds >= LEAST_SECONDS && self.served * kept >= LEAST_SERVED;
        is_enough.then(|| self.cost * kept / seconds)
    }

    fn advance(&mut self, now: Moment) {
        let Some(as_of) = self.as_of else { return };
        let kept = (-now.since(as_of).as_secs_f64() / FADE_SECONDS).exp();
        self.cost *= kept;
        self.served *= kept;
        // The integral of what fades.
        self.seconds = self.seconds * kept + FADE_SECONDS * (1.0 - kept);
        self.as_of = Some(as_of.max(now));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::at(Duration::from_secs_f64(seconds))
    }

    /// Serves `cost` every 100 ms of the time from `from` to `to` seconds.
    fn serve(drain: &mut Drain, cost: u64, from: f64, to: f64) {
        for step in 1..=((to - from) * 10.0) as u32 {
            drain.served(cost, at(from + f64::from(step) / 10.0));
        }
    }

    #[test]
    fn the_rate_is_what_is_served_while_anything_waits() {
        let mut drain = Drain::default();
        drain.set_waiting(true, at(0.0));
        serve(&mut drain, 100, 0.0, 20.0);
        let rate = drain.rate(at(20.0)).unwrap();
        assert!((rate - 1_000.0).abs() < 20.0, "100 units ten times a second: {rate}");

        drain.set_waiting(false, at(20.0));
        assert_eq!(drain.rate(at(900.0)), Some(rate), "an hour without a queue says nothing");
        drain.set_waiting(true, at(900.0));
        serve(&mut drain, 300, 900.0, 940.0);
        let rate = drain.rate(at(940.0)).unwrap();
        assert!((rate - 3_000.0).abs() < 120.0, "the newest counts: {rate}");
    }

    #[test]
    fn little_says_nothing() {
        let mut drain = Drain::default();
        assert_eq!(drain.rate(at(5.0)), None);
        drain.set_waiting(true, at(5.0));
        serve(&mut drain, 100, 5.0, 5.5);
        assert_eq!(drain.rate(at(5.5)), None, "half a second");
        let mut slow = Drain::default();
        slow.set_waiting(true, at(0.0));
        slow.served(100, at(3.0));
        assert_eq!(slow.rate(at(4.0)), None, "one request");
    }

    #[test]
    fn a_queue_that_stands_still_gets_slower_by_itself() {
        let mut drain = Drain::default();
        drain.set_waiting(true, at(0.0));
        serve(&mut drain, 100, 0.0, 10.0);
        let (before, after) = (drain.rate(at(10.0)).unwrap(), drain.rate(at(15.0)).unwrap());
        assert!(after < before * 0.7, "{before}, then {after}");
    }
}
