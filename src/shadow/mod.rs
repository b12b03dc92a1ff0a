//! Shadow decisions: what other policies would have got on the same traffic.
//!
//! Every request that the proxy has sent to a backend is replayed, in thought, under each [`ShadowPolicy`]: `actual`
//! follows the real decision, the others choose by themselves among the same candidates, by [`crate::routing::choose`].
//! Each policy has its own picture of every backend: what its cache holds, when its prefill is done (`queue.rs`) and
//! what is in flight there. All pictures, that of `actual` too, follow the same rules, so they can be compared with each
//! other; none is to be compared with what engines report.
//!
//! **Caches** are tenants of a [`LocalityIndex`] of their own, one for each policy and backend. To be cheap, only every
//! [`THINNING`]th block of a prompt is kept: chained hashes make that block stand for those before it, so a lookup finds
//! what a full index would, less up to `THINNING - 1` blocks (`thin.rs`). A prompt counts as cached from its decision
//! on: engines prefill in order, so who comes later finds it. **Queues** are a clock for each backend.
//!
//! Pure: no clock, no sockets, no randomness. One lock for each pool, held for one replay; a request's end takes none.

mod detour;
mod place;
mod queue;
mod thin;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use self::place::Site;
use self::thin::Thinned;
use crate::locality::{LocalityIndex, Matches};
use crate::pool::{CostModel, EngineState, Policy, PolicyKind};
use crate::routing::{Candidate, Query, choose};
use crate::time::Moment;

pub use self::detour::{Detour, detour};
pub use self::place::{ShadowBackend, ShadowInFlight};
pub use self::thin::{Prompt, THINNING};

/// The policies that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShadowPolicy {
    /// Whatever was really chosen.
    Actual,
    /// `cost`, be it in force or not.
    Cost,
    /// `least_request`.
    LeastRequest,
    /// `round_robin`.
    RoundRobin,
}

/// A request as it was really decided.
#[derive(Debug, Clone, Copy)]
pub struct Replay<'a> {
    /// Its prompts; empty for a request without one, which is not replayed.
    pub prompts: &'a [Prompt<'a>],
    /// What the choice knew of it. The turn is not used: each pool's shadow counts its own.
    pub query: Query,
    /// From what it was chosen.
    pub candidates: &'a [Candidate],
    /// [`Candidate::index`] of the chosen one.
    pub chosen: usize,
    /// The prices that the pool's policy goes by.
    pub cost: CostModel,
}

/// What one policy got so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Requests replayed.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Those of them that were cached where the request went.
    pub cached_tokens: u64,
    /// Predicted TTFT, summed, in seconds.
    pub ttft_seconds: f64,
}

/// A number for each policy, in the order of [`ShadowPolicy::ALL`].
type Each<T> = [T; ShadowPolicy::ALL.len()];

/// One pool's shadow, kept through reloads; dropping it empties its part of the index.
#[derive(Debug)]
pub struct Shadow {
    /// Written by requests, and by the control loop when backends change.
    state: Mutex<State>,
}

/// The shadows of all pools that have one, by the pool's name.
pub type Shadows = BTreeMap<Arc<str>, Arc<Shadow>>;

#[derive(Debug)]
struct State {
    index: Arc<LocalityIndex>,
    turn: u64,
    /// In the order of the pool.
    sites: Vec<Site>,
    totals: Each<Totals>,
    /// Buffers to be used again.
    thinned: Thinned,
    matches: Matches,
}

/// A candidate of a replay.
struct Seen<'a> {
    /// Its place among the sites.
    site: usize,
    candidate: &'a Candidate,
    /// Leading tokens of the prompts that it holds, by policy.
    matched_tokens: Each<u64>,
}

// === impl ShadowPolicy ===

impl ShadowPolicy {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Actual, Self::Cost, Self::LeastRequest, Self::RoundRobin];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Actual => "actual",
            Self::Cost => "cost",
            Self::LeastRequest => "least_request",
            Self::RoundRobin => "round_robin",
        }
    }

    /// The rule by which it chooses. `actual` has one candidate, so any rule will do.
    fn kind(self) -> PolicyKind {
        match self {
            Self::Actual | Self::Cost => PolicyKind::Cost,
            Self::LeastRequest => PolicyKind::LeastRequest,
            Self::RoundRobin => PolicyKind::RoundRobin,
        }
    }
}

// === impl Shadow ===

impl Shadow {
    /// Of a pool without backends; what caches hold is kept in `index`, which pools may share.
    pub fn new(index: Arc<LocalityIndex>) -> Self {
        let state = State {
            index,
            turn: 0,
            sites: Vec::new(),
            totals: Each::default(),
            thinned: Thinned::default(),
            matches: Matches::new(),
        };
        Self { state: Mutex::new(state) }
    }

    /// Makes the backends those of the pool. One that stays keeps its caches and queues, unless its engine is another
    /// process; what is in flight ends with the real requests in any case.
    pub fn set_backends(&self, backends: &[ShadowBackend]) {
        self.state.lock().set_backends(backends);
    }

    /// Replays a request that was sent to a backend at `now`. It is in flight in all shadows until what is returned is
    /// dropped; none if it has no prompt, or the chosen backend has left the pool.
    pub fn replay(&self, replay: &Replay<'_>, now: Moment) -> Option<ShadowInFlight> {
        self.state.lock().replay(replay, now)
    }

    /// What each policy got so far.
    pub fn totals(&self) -> [(ShadowPolicy, Totals); ShadowPolicy::ALL.len()] {
        let totals = self.state.lock().totals;
        std::array::from_fn(|number| (ShadowPolicy::ALL[number], totals[number]))
    }
}

// === impl State ===

impl State {
    fn set_backends(&mut self, backends: &[ShadowBackend]) {
        // What is reported every second changes next to never.
        if self.sites.iter().map(Site::backend).eq(backends.iter().copied()) {
            return;
        }
        let mut old: HashMap<u64, Site> = self.sites.drain(..).map(|site| (site.backend().identity, site)).collect();
        for backend in backends {
            let site = match old.remove(&backend.identity) {
                Some(mut site) => {
                    site.update(*backend);
                    site
                }
                None => Site::new(&self.index, *backend),
            };
            self.sites.push(site);
        }
    }

    fn replay(&mut self, replay: &Replay<'_>, now: Moment) -> Option<ShadowInFlight> {
        if replay.query.prompt_tokens == 0 {
            return None;
        }
        let seen = self.look_up(replay);
        let actual = seen.iter().position(|seen| seen.candidate.index == replay.chosen)?;
        let query = Query { turn: self.turn, ..replay.query };
        self.turn = self.turn.wrapping_add(1);
        let mut in_flight = ShadowInFlight::new(replay.query.prompt_tokens);
        let mut candidates = Vec::with_capacity(seen.len());
        for (number, policy) in ShadowPolicy::ALL.into_iter().enumerate() {
            let seen = if policy == ShadowPolicy::Actual { &seen[actual..=actual] } else { &seen[..] };
            candidates.clear();
            candidates.extend(seen.iter().map(|seen| self.candidate(seen, number, now)));
            let rule = Policy { kind: policy.kind(), cost: replay.cost, ..Policy::default() };
            // The rules in use draw no lots.
            let decision = choose(&rule, &query, &candidates, &mut fastrand::Rng::with_seed(0))?;
            let chosen = seen.iter().find(|seen| seen.candidate.index == decision.index)?;
            let place = self.sites[chosen.site].place(number);
            let ttft = place.dispatch(decision.work, chosen.candidate.rate, &self.thinned, now);
            in_flight.hold(place);
            self.totals[number].add(query.prompt_tokens, decision.matched_tokens, ttft);
        }
        self.thinned.trim();
        Some(in_flight)
    }

    /// The candidates that are still in the pool, and what every policy has cached there.
    fn look_up<'a>(&mut self, replay: &Replay<'a>) -> Vec<Seen<'a>> {
        self.thinned.set(replay.prompts);
        let site_of = |candidate: &Candidate| {
            let is_it = |site: &Site| site.backend().identity == candidate.identity;
            // A request may hold an older view of the pool, with other places.
            let usual = self.sites.get(candidate.index).filter(|site| is_it(site)).map(|_| candidate.index);
            usual.or_else(|| self.sites.iter().position(is_it))
        };
        let mut seen: Vec<Seen<'a>> = replay
            .candidates
            .iter()
            .filter_map(|candidate| {
                Some(Seen { site: site_of(candidate)?, candidate, matched_tokens: Each::default() })
            })
            .collect();
        for (prompt, chain) in replay.prompts.iter().zip(self.thinned.chains()) {
            self.index.lookup(chain, &mut self.matches);
            for seen in &mut seen {
                for (tokens, tenant) in seen.matched_tokens.iter_mut().zip(self.sites[seen.site].tenants()) {
                    *tokens += prompt.tokens_in(self.matches.blocks(tenant));
                }
            }
        }
        seen
    }

    /// A candidate as the policy of this number has to see it: with the cache and queue that it has made.
    fn candidate(&mut self, seen: &Seen<'_>, number: usize, now: Moment) -> Candidate {
        Candidate {
            matched_tokens: u32::try_from(seen.matched_tokens[number]).unwrap_or(u32::MAX),
            load: self.sites[seen.site].place(number).load(seen.candidate, now),
            // Readings are of the real traffic.
            engine: EngineState { polled: None, ..seen.candidate.engine },
            ..*seen.candidate
        }
    }
}

// === impl Totals ===

impl Totals {
    fn add(&mut self, prompt_tokens: u32, cached_tokens: u32, ttft_seconds: f64) {
        self.requests += 1;
        self.prompt_tokens += u64::from(prompt_tokens);
        self.cached_tokens += u64::from(cached_tokens);
        self.ttft_seconds += ttft_seconds;
    }
}
