//! One decision from filter to accounting, as the data path takes it.
//!
//! Everything happens inside [`crate::pool::Pool::decide`]: the next decision of the pool sees this one's work in
//! flight, however many requests arrive at once.

use super::backlog::{self, Deferred};
use super::{Candidate, Decision, Exclusion, Filtered, Pass, Query, candidates, choose};
use crate::pool::{Admission, Answer, InFlight, PolicyKind, PoolSnapshot, ProbePermit};
use crate::time::Moment;

/// A chosen backend with the request accounted for. Dropping it undoes that.
#[derive(Debug)]
pub struct Dispatched {
    /// What was chosen, and why.
    pub decision: Decision,
    /// The request's share of the load there.
    pub in_flight: InFlight,
    /// Held if this request probes an ejected backend; to be handed in with its verdict.
    pub permit: Option<ProbePermit>,
    /// Which rule let the backend through.
    pub pass: Pass,
    /// From what it was chosen, as it was before.
    pub candidates: Vec<Candidate>,
}

/// No backend may be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("no backend can be used")]
pub struct NoBackend {
    /// Index in the pool's snapshot, and what keeps it out; empty if the pool has none.
    pub excluded: Vec<(usize, Exclusion)>,
    /// Those that will do as soon as they have room.
    pub full: Vec<Candidate>,
    /// Set if there is one, and the request is to wait nevertheless.
    pub deferred: Option<Deferred>,
}

/// Chooses a backend of `pool` for one attempt and accounts for it there.
///
/// The arguments are those of [`candidates`] and [`choose`]; the turn is the pool's next, whatever `query` says.
pub fn dispatch(
    pool: &PoolSnapshot,
    query: &Query,
    matched_tokens: &[u32],
    tried: &[usize],
    answer: Answer,
    now: Moment,
    rng: &mut fastrand::Rng,
) -> Result<Dispatched, NoBackend> {
    pool.pool.decide(|turn| {
        let query = Query { turn, ..*query };
        // A permit can be lost between filter and choice: to another pool that shares the backend. The backend is then
        // out at the next look, so no backend is looked at twice.
        for _ in 0..=pool.backends.len() {
            let filtered = candidates(pool, &query, matched_tokens, tried, now);
            let Some(decision) = choose(&pool.policy, &query, &filtered.candidates, rng) else {
                return Err(filtered.into());
            };
            if let Some(deferred) = deferral(pool, &query, &decision, &filtered.candidates, now) {
                return Err(NoBackend { deferred: Some(deferred), ..NoBackend::from(filtered) });
            }
            if let Some(dispatched) = admit(pool, decision, filtered, answer, now) {
                return Ok(dispatched);
            }
        }
        Err(candidates(pool, &query, matched_tokens, tried, now).into())
    })
}

// === impl NoBackend ===

impl From<Filtered> for NoBackend {
    fn from(filtered: Filtered) -> Self {
        Self { excluded: filtered.excluded, full: filtered.full, deferred: None }
    }
}

/// Whether the request is to wait because its prefill is long. The other policies know nothing of prefill.
pub fn deferral(
    pool: &PoolSnapshot,
    query: &Query,
    decision: &Decision,
    candidates: &[Candidate],
    now: Moment,
) -> Option<Deferred> {
    let may_be = query.may_be_deferred && pool.policy.kind == PolicyKind::Cost;
    may_be.then(|| backlog::defer(decision, candidates, now))?
}

/// Takes the probe permit if the backend needs one (none if it is gone), and accounts for the request.
fn admit(
    pool: &PoolSnapshot,
    decision: Decision,
    filtered: Filtered,
    answer: Answer,
    now: Moment,
) -> Option<Dispatched> {
    let Filtered { candidates, pass, .. } = filtered;
    let backend = &pool.backends.get(decision.index)?.backend;
    let permit = match backend.ejection().admission(now) {
        Admission::Open => None,
        Admission::Probe => Some(backend.ejection().try_probe(now)?),
        Admission::Closed { .. } if pass == Pass::FailOpen => None,
        Admission::Closed { .. } => return None,
    };
    let in_flight =
        backend.load().dispatch(decision.work, decision.matched_tokens + decision.uncached_tokens, answer, now);
    Some(Dispatched { decision, in_flight, permit, pass, candidates })
}
