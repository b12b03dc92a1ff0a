//! How far a pool is behind with prefill, and which requests wait for that.
//!
//! Engines compute prompts in order of arrival, and nothing stops one that has begun. After a cache is lost, or in a burst,
//! long prefills can so begin at all engines at once, and every short request waits for one of them. So a prefill is *long*
//! if more than [`LONG_REQUESTS`] others come to a mean backend in its time, and while more than a [`SHARE`] of the backends
//! have that much pending, long ones are deferred: they wait at the router, and the others have the rest of the fleet. That
//! one of the rest is idle for a moment is no reason to let a long one begin there: the next short ones would wait for it.
//! While a mean backend has the same share of that pending the pool is *behind*, and decoding decides less of where a request
//! goes.
//!
//! Both are relative to the traffic: where few requests come nothing is long, as nobody is there to wait behind it.

use std::time::Duration;

use super::{Candidate, Decision};
use crate::pool::{Limits, RECENT_MEMORY};
use crate::time::Moment;

/// A prefill in whose time more than so many requests come to a mean backend is long.
const LONG_REQUESTS: f64 = 2.0;
/// What takes less is not long, however many come in its time: they would hardly notice. Where engines are much faster than
/// is known of them yet, everything would be long otherwise.
const LEAST_LONG_SECONDS: f64 = 0.25;
/// More than this share of the backends have no time for a long one. With a fifth or three tenths of eight, after a restart in
/// busy conversations, long ones wait for too long or leave the others too little: docs/routing.md.
const SHARE: f64 = 0.25;

/// A request that is to wait, because its prefill is long and the backends are busy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deferred {
    /// Its prefill, in work units.
    pub work: f64,
    /// The time that this takes.
    pub prefill: Duration,
    /// When time alone gives a backend time for it, if all goes on as it is.
    pub look_again: Option<Moment>,
}

/// What is pending at the candidates of a decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Backlog {
    /// Prefill that takes longer than this is long, in seconds; infinite where nothing came lately.
    long_seconds: f64,
    /// The mean of what is pending, in seconds.
    pending_seconds: f64,
    /// Whether too many candidates have a long prefill's time pending.
    is_busy: bool,
}

// === impl Backlog ===

impl Backlog {
    pub(super) fn of(candidates: &[Candidate]) -> Self {
        let count = candidates.len().max(1) as f64;
        let recent = candidates.iter().map(|candidate| candidate.load.recent.max(0.0)).sum::<f64>() / count;
        let long_seconds = (LONG_REQUESTS * RECENT_MEMORY.as_secs_f64() / recent).max(LEAST_LONG_SECONDS);
        let busy = candidates.iter().filter(|candidate| candidate.pending_seconds() >= long_seconds).count();
        Self {
            long_seconds,
            pending_seconds: candidates.iter().map(Candidate::pending_seconds).sum::<f64>() / count,
            is_busy: busy as f64 > most_busy(count),
        }
    }

    /// Whether there is so much to compute that first tokens wait for it.
    pub(super) fn is_behind(&self) -> bool {
        self.pending_seconds >= SHARE * self.long_seconds
    }
}

/// What a request has to wait for that was to go where `decision` says.
pub(super) fn defer(decision: &Decision, candidates: &[Candidate], now: Moment) -> Option<Deferred> {
    // Most are short, and need no look at the others.
    let prefill = Some(decision.cost.prefill).filter(|&seconds| seconds > LEAST_LONG_SECONDS)?;
    let Backlog { long_seconds, is_busy, .. } = Backlog::of(candidates);
    if prefill <= long_seconds || !is_busy {
        return None;
    }
    let limits = Limits { max_pending_prefill: Duration::try_from_secs_f64(long_seconds).ok(), ..Limits::default() };
    let busy = candidates.iter().filter(|candidate| candidate.pending_seconds() >= long_seconds);
    let changes = busy.filter_map(|busy| limits.has_room_at(&busy.load, busy.rate, now));
    let prefill = Duration::try_from_secs_f64(prefill).unwrap_or(Duration::MAX);
    Some(Deferred { work: decision.work, prefill, look_again: changes.min() })
}

/// How many of so many backends may have long prefills at a time: one in any case, unless there is no other.
fn most_busy(backends: f64) -> f64 {
    (SHARE * backends).max(1.0).min(backends - 1.0)
}

// === impl Candidate ===

impl Candidate {
    /// What is pending there, of all routers, in seconds.
    fn pending_seconds(&self) -> f64 {
        let rate = self.rate.max(1.0);
        (self.load.queued_work(rate) + self.others.pending_work.max(0.0)) / rate
    }
}
