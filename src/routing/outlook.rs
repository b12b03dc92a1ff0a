//! What a request can expect while no backend that would do has room.

use std::time::Duration;

use super::{Candidate, Query, cost, work};
use crate::pool::{CostModel, Limits};
use crate::time::Moment;

/// What is known of a request before it waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// Index in the pool's snapshot of the backend that holds most of the prompt; none if none holds any.
    pub warmest: Option<usize>,
    /// Its prefill there, in work units.
    pub work: f64,
    /// The time that this takes by itself.
    pub prefill: Duration,
    /// How long its first token will take once it is sent: the mean of what is pending, and its own prefill.
    pub ttft: Duration,
    /// When time alone makes room, if all goes on as it is.
    pub look_again: Option<Moment>,
}

// === impl Outlook ===

impl Outlook {
    /// The outlook of `query` while the backends of `full` have no room.
    pub fn of(model: &CostModel, limits: &Limits, query: &Query, full: &[Candidate], now: Moment) -> Self {
        let warmest = full.iter().max_by_key(|candidate| candidate.matched_tokens);
        let matched = warmest.map_or(0, |candidate| candidate.matched_tokens);
        let work = work(cost::uncached_tokens(query.prompt_tokens, matched), query.prompt_tokens, model);
        let mean = |of: fn(&Candidate) -> f64| full.iter().map(of).sum::<f64>() / full.len().max(1) as f64;
        let rate = mean(|candidate| candidate.rate).max(1.0);
        let pending = mean(|candidate| candidate.load.queued_work(candidate.rate) / candidate.rate.max(1.0));
        let changes = full.iter().filter_map(|candidate| limits.has_room_at(&candidate.load, candidate.rate, now));
        Self {
            warmest: warmest.filter(|_| matched > 0).map(|candidate| candidate.index),
            work,
            prefill: Duration::try_from_secs_f64(work / rate).unwrap_or(Duration::MAX),
            ttft: Duration::try_from_secs_f64(pending + work / rate).unwrap_or(Duration::MAX),
            look_again: changes.min(),
        }
    }
}
