//! Which backends may be used for a request, and why the others may not.
//!
//! No backend is tried twice for a request. Health, ejection and draining keep others out independently. When they leave
//! none, rules give way in an order, the first [`Pass`] that lets any backend through deciding:
//!
//! 1. usable;
//! 2. draining, usable otherwise, and its deadline not over. It still works, which cannot be said of those below: while a
//!    fleet is replaced, the old backends serve until the new ones have loaded their model;
//! 3. fail open: unhealthy or ejected. Probes and failures can be wrong about all backends at once (a bad probe path, a
//!    network that just came back), and a reject would be certain.
//!
//! Of those that are let through, the ones that are full by [`crate::pool::Limits`] are no candidates, and busy ones only
//! while another has room and nobody waits for some. Full backends are no reason to look at a later pass.
//!
//! A draining backend is as good as any for the conversations that live there ([`super::drain`]), until its deadline. After
//! that it is never used: somebody wants it empty. Nor is a draining one that is out for another reason. A starting one is
//! not used either: it has never answered, it most likely still loads its model, and an honest 503 is better than a hanging
//! request.

use smallvec::SmallVec;

use super::drain::lives_at;
use super::{Candidate, INLINE, Query};
use crate::pool::{Admission, BackendSnapshot, Fill, Health, PoolSnapshot};
use crate::time::Moment;

/// Why a backend is not a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// It is to leave, and the request does not belong to a conversation that may go on there.
    Draining,
    /// Its name has not been resolved.
    NoAddress,
    /// It has not had a good probe yet.
    Starting,
    /// Its probes fail.
    Unhealthy,
    /// Real requests failed there.
    Ejected {
        /// When one request may probe it; none while one does.
        until: Option<Moment>,
    },
    /// This request was there already.
    Tried,
    /// It has as much as it is to have.
    Full,
}

/// Which rule let the candidates through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Usable.
    Normal,
    /// Draining, but usable; no other is.
    Draining,
    /// Out; used nevertheless, as no other is left.
    FailOpen,
    /// None may be used.
    None,
}

/// The candidates of a decision, and the backends that are none.
#[derive(Debug, Clone)]
pub struct Filtered {
    /// In the order of the pool.
    pub candidates: Vec<Candidate>,
    /// Index in the pool's snapshot, and the reason.
    pub excluded: Vec<(usize, Exclusion)>,
    /// Those of them that would be candidates if they were not full.
    pub full: Vec<Candidate>,
    /// How the candidates got through.
    pub pass: Pass,
}

/// What keeps one backend out.
#[derive(Debug, Clone, Copy)]
struct Standing {
    exclusion: Option<Exclusion>,
    /// It drains, is usable otherwise, and its deadline is not over.
    is_leaving: bool,
    is_tried: bool,
}

/// Filters the backends of `pool` for a request that was at those of `tried` before, and reads the load of the rest.
///
/// `matched_tokens` holds the leading prompt tokens that each backend has, by index; what is missing counts as none. A
/// backend whose ejection admits a probe is a candidate; who picks it must take the permit ([`super::dispatch()`] does).
pub fn candidates(
    pool: &PoolSnapshot,
    query: &Query,
    matched_tokens: &[u32],
    tried: &[usize],
    now: Moment,
) -> Filtered {
    let matched = |index: usize| matched_tokens.get(index).copied().unwrap_or(0);
    let standing = |(index, backend)| Standing::of(backend, tried.contains(&index), now);
    let mut standings: SmallVec<[Standing; INLINE]> = pool.backends.iter().enumerate().map(standing).collect();
    if standings.iter().any(|standing| standing.is_leaving) {
        let staying = standings.iter().enumerate().filter(|(_, standing)| standing.exclusion.is_none());
        let elsewhere = staying.map(|(index, _)| matched(index)).max().unwrap_or(0);
        for (index, standing) in standings.iter_mut().enumerate().filter(|(_, standing)| standing.is_leaving) {
            if lives_at(query, index, matched(index), elsewhere) {
                standing.exclusion = None;
            }
        }
    }
    let passes = [Pass::Normal, Pass::Draining, Pass::FailOpen];
    let lets_any = |pass: &Pass| standings.iter().any(|standing| standing.is_let_by(*pass));
    let pass = passes.into_iter().find(lets_any).unwrap_or(Pass::None);

    let pool_rate = pool.rate();
    let mut filtered =
        Filtered { candidates: Vec::with_capacity(pool.backends.len()), excluded: Vec::new(), full: Vec::new(), pass };
    for (index, (backend, standing)) in pool.backends.iter().zip(&standings).enumerate() {
        if !standing.is_let_by(pass) {
            filtered.excluded.push((index, standing.exclusion.unwrap_or(Exclusion::Tried)));
            continue;
        }
        let load = backend.backend.load().view(now);
        let candidate = Candidate {
            index,
            identity: backend.backend.identity(),
            matched_tokens: matched(index),
            rate: pool_rate.for_backend(load.rate),
            load,
            others: backend.others,
            engine: backend.engine.current(pool.policy.stale_after, now),
        };
        filtered.candidates.push(candidate);
    }
    filtered.set_full_aside(pool);
    filtered
}

// === impl Filtered ===

impl Filtered {
    fn set_full_aside(&mut self, pool: &PoolSnapshot) {
        let fill = |candidate: &Candidate| pool.limits.fill(&candidate.load, &candidate.engine, candidate.rate);
        let fills: SmallVec<[Fill; INLINE]> = self.candidates.iter().map(fill).collect();
        if fills.iter().all(|fill| *fill == Fill::Room) {
            return;
        }
        let is_strict = !fills.contains(&Fill::Room) || pool.pool.line().is_taken();
        let mut fills = fills.into_iter();
        self.candidates.retain(|candidate| {
            let stays = match fills.next() {
                Some(Fill::Full) => false,
                Some(Fill::Busy) => !is_strict,
                Some(Fill::Room) | None => true,
            };
            if !stays {
                self.full.push(*candidate);
            }
            stays
        });
        self.excluded.extend(self.full.iter().map(|full| (full.index, Exclusion::Full)));
    }
}

// === impl Exclusion ===

impl Exclusion {
    /// The name in logs and explanations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::NoAddress => "no_address",
            Self::Starting => "starting",
            Self::Unhealthy => "unhealthy",
            Self::Ejected { .. } => "ejected",
            Self::Tried => "tried",
            Self::Full => "full",
        }
    }

    fn fails_open(self) -> bool {
        matches!(self, Self::Unhealthy | Self::Ejected { .. })
    }
}

// === impl Standing ===

impl Standing {
    fn of(backend: &BackendSnapshot, is_tried: bool, now: Moment) -> Self {
        let exclusion = exclusion(backend, now);
        match &backend.drain {
            None => Self { exclusion, is_leaving: false, is_tried },
            Some(drain) => {
                let is_leaving = exclusion.is_none() && drain.admits(now);
                Self { exclusion: Some(Exclusion::Draining), is_leaving, is_tried }
            }
        }
    }

    fn is_let_by(self, pass: Pass) -> bool {
        let is_of_pass = match pass {
            Pass::Normal => self.exclusion.is_none(),
            Pass::Draining => self.is_leaving,
            Pass::FailOpen => self.exclusion.is_some_and(Exclusion::fails_open),
            Pass::None => false,
        };
        is_of_pass && !self.is_tried
    }
}

/// The first reason besides a drain to keep `backend` out, those that never give way before those that may.
fn exclusion(backend: &BackendSnapshot, now: Moment) -> Option<Exclusion> {
    if backend.address.is_none() {
        return Some(Exclusion::NoAddress);
    }
    match backend.health {
        Health::Starting => return Some(Exclusion::Starting),
        Health::Unhealthy => return Some(Exclusion::Unhealthy),
        Health::Healthy => {}
    }
    match backend.backend.ejection().admission(now) {
        Admission::Open | Admission::Probe => None,
        Admission::Closed { until } => Some(Exclusion::Ejected { until }),
    }
}
