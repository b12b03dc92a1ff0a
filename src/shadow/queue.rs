//! Prefill at one backend, as a clock: requests are prefilled one after the other, at a known rate.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// A longer wait is not counted as longer. A policy that could not bear the traffic would otherwise be behind by more
/// and more, where real clients give up; and it would need as long to recover as it was overloaded.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Ends of prefill that are kept for one backend; with more, the first count as done.
const MAX_PREFILLING: usize = 1_024;

/// When all prefill is done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Queue {
    free_at: Moment,
}

/// When the prefill of each request is done, in order.
#[derive(Debug, Default)]
pub(super) struct Prefilling(VecDeque<Moment>);

// === impl Queue ===

impl Queue {
    /// Adds a request with this much work, at a rate in work units a second; its TTFT in seconds.
    pub(super) fn push(&mut self, work: f64, rate: f64, now: Moment) -> f64 {
        // Rates are at least 10 and work at most 1e9; the bound is for what else might be passed in.
        let prefill = Duration::try_from_secs_f64(work / rate.max(1.0)).unwrap_or(MAX_WAIT);
        let ttft = self.free_at.since(now) + prefill;
        self.free_at = now + ttft.min(MAX_WAIT);
        ttft.as_secs_f64()
    }

    /// When the request added last is prefilled.
    pub(super) fn end(self) -> Moment {
        self.free_at
    }

    /// Prefill that is not done, in work units at this rate.
    pub(super) fn pending_work(self, rate: f64, now: Moment) -> f64 {
        self.free_at.since(now).as_secs_f64() * rate
    }
}

// === impl Prefilling ===

impl Prefilling {
    /// Adds a request whose prefill is done at `end`, after that of those before it.
    pub(super) fn push(&mut self, end: Moment, now: Moment) {
        self.settle(now);
        if self.0.len() >= MAX_PREFILLING {
            self.0.pop_front();
        }
        self.0.push_back(end);
    }

    /// Requests whose prefill is not done. The real request of some may have ended.
    pub(super) fn waiting(&mut self, now: Moment) -> u32 {
        self.settle(now);
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn settle(&mut self, now: Moment) {
        while self.0.front().is_some_and(|&end| end <= now) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis))
    }

    #[test]
    fn requests_are_prefilled_one_after_the_other() {
        let mut queue = Queue::default();
        assert_eq!(queue.push(500.0, 1_000.0, at(1_000)), 0.5);
        assert_eq!(queue.push(250.0, 1_000.0, at(1_000)), 0.75, "it waits for the first");
        assert_eq!(queue.push(250.0, 1_000.0, at(1_500)), 0.5, "half a second later only the second is left");
        assert_eq!(queue.push(100.0, 1_000.0, at(9_000)), 0.1, "an idle engine starts at once");
    }

    #[test]
    fn a_request_decodes_once_its_prefill_is_done() {
        let (mut queue, mut prefilling) = (Queue::default(), Prefilling::default());
        for _ in 0..2 {
            queue.push(500.0, 1_000.0, at(0));
            prefilling.push(queue.end(), at(0));
        }
        let mut read = |millis| (queue.pending_work(1_000.0, at(millis)), prefilling.waiting(at(millis)));
        assert_eq!(read(0), (1_000.0, 2));
        assert_eq!(read(600), (400.0, 1));
        assert_eq!(read(1_000), (0.0, 0));
    }

    #[test]
    fn it_is_bounded_whatever_comes() {
        let (mut queue, mut prefilling) = (Queue::default(), Prefilling::default());
        for _ in 0..10 * MAX_PREFILLING {
            queue.push(1e9, 10.0, at(0));
            prefilling.push(queue.end(), at(0));
        }
        assert_eq!(prefilling.waiting(at(0)) as usize, MAX_PREFILLING);
        assert_eq!(queue.push(0.0, 10.0, at(0)), MAX_WAIT.as_secs_f64(), "the wait is the longest there is");
        assert_eq!(queue.push(0.0, 10.0, at(60_000)), 0.0, "and over after that time");
        for (work, rate) in [(f64::NAN, 10.0), (f64::INFINITY, 10.0), (1.0, 0.0), (1.0, f64::NAN), (-1.0, 10.0)] {
            assert!(Queue::default().push(work, rate, at(0)).is_finite(), "{work} at {rate}");
        }
    }
}
