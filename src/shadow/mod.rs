//! Shadow decisions: what other policies would have got on the same traffic.
//!
//! Every request that the proxy has sent to a backend is replayed, in thought, under each [`ShadowPolicy`]: `actual`
//! follows the real decision, the others choose by themselves among the same candidates, by the rules of
//! [`crate::routing`]. Each policy has its own picture of every backend: what its cache holds and when its prefill is done
//! (`queue.rs`). All pictures, that of `actual` too, follow the same rules, so they can be compared with each other; none
//! is to be compared with what engines report.
//!
//! **`cost`** is simulated only where another policy is in force; where it is the policy, it got what `actual` got.
//!
//! **Caches** keep some blocks of each prompt, the *marks* (`marks.rs`), from which the cached tokens of every request are
//! known to a sixteenth. The last use of each is one entry of a hash table (`table.rs`), and what is held follows from sums
//! over the last uses (`cache.rs`). So a policy that does not choose by what is cached looks into one cache, once. A prompt
//! counts as cached from its decision on: engines prefill in order, so who comes later finds it, and so do later prompts of
//! a batch. **Queues** are a clock for each backend.
//!
//! Pure: no clock, no sockets, no randomness. One lock for each pool, held for one replay; a request's end takes none.
//! Memory is bounded for all pools together (`memory.rs`); where it ends caches hold less, under all policies alike.

mod cache;
mod marks;
mod memory;
mod place;
mod queue;
mod table;

#[cfg(test)]
mod accuracy_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::marks::Marks;
use self::place::Site;
use crate::pool::{CostModel, EngineState, Policy, PolicyKind};
use crate::routing::{self, Candidate, INLINE, Query};
use crate::time::Moment;

pub use self::marks::Prompt;
pub use self::memory::ShadowMemory;
pub use self::place::{ShadowBackend, ShadowInFlight};

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
    /// From what it was chosen. What they really hold tells where the prompt leaves others.
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

/// One pool's shadow, kept through reloads; dropping it gives its memory back.
#[derive(Debug)]
pub struct Shadow {
    memory: Arc<ShadowMemory>,
    /// Written by requests, and by the control loop when backends change.
    state: Mutex<State>,
}

/// The shadows of all pools that have one, by the pool's name.
pub type Shadows = BTreeMap<Arc<str>, Arc<Shadow>>;

#[derive(Debug)]
struct State {
    memory: Arc<ShadowMemory>,
    turn: u64,
    /// Those that have pictures of their own.
    policies: &'static [ShadowPolicy],
    /// In the order of the pool.
    sites: Vec<Site>,
    totals: Each<Totals>,
}

/// A candidate of a replay, and its place among the sites.
#[derive(Clone, Copy)]
struct Seen<'a> {
    site: usize,
    candidate: &'a Candidate,
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

    /// The same, without `cost`.
    const WITHOUT_COST: [Self; 3] = [Self::Actual, Self::LeastRequest, Self::RoundRobin];
}

// === impl Shadow ===

impl Shadow {
    /// Of a pool without backends; what caches hold takes room in `memory`, which pools share.
    pub fn new(memory: Arc<ShadowMemory>) -> Self {
        let state = State {
            memory: Arc::clone(&memory),
            turn: 0,
            policies: &ShadowPolicy::WITHOUT_COST,
            sites: Vec::new(),
            totals: Each::default(),
        };
        Self { memory, state: Mutex::new(state) }
    }

    /// Makes the backends those of the pool, and `in_force` its policy. A backend that stays keeps its caches and queues,
    /// unless its engine is another process; what is in flight ends with the real requests in any case.
    pub fn set_backends(&self, backends: &[ShadowBackend], in_force: PolicyKind) {
        let mut state = self.state.lock();
        state.set_backends(backends);
        state.simulate_cost(in_force != PolicyKind::Cost);
    }

    /// Replays a request that was sent to a backend at `now`. It is in flight in all shadows until what is returned is
    /// dropped; none if it has no prompt, or the chosen backend has left the pool.
    pub fn replay(&self, replay: &Replay<'_>, now: Moment) -> Option<ShadowInFlight> {
        if replay.query.prompt_tokens == 0 {
            return None;
        }
        let marks = Marks::of(replay.prompts, replay.candidates, self.memory.secret());
        self.state.lock().replay(replay, &marks, now)
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
                None => Site::new(*backend),
            };
            self.sites.push(site);
        }
    }

    /// Whether `cost` has pictures of its own.
    fn simulate_cost(&mut self, simulate: bool) {
        if simulate == self.simulates_cost() {
            return;
        }
        if simulate {
            self.policies = &ShadowPolicy::ALL;
            self.sites.iter_mut().for_each(|site| site.begin_cost(&self.memory));
        } else {
            self.policies = &ShadowPolicy::WITHOUT_COST;
            self.sites.iter_mut().for_each(Site::end_cost);
        }
    }

    fn simulates_cost(&self) -> bool {
        self.policies.len() == ShadowPolicy::ALL.len()
    }

    fn replay(&mut self, replay: &Replay<'_>, marks: &Marks, now: Moment) -> Option<ShadowInFlight> {
        let seen = self.seen(replay.candidates);
        let actual = *seen.iter().find(|seen| seen.candidate.index == replay.chosen)?;
        let turn = self.turn;
        self.turn = turn.wrapping_add(1);
        let mut in_flight = ShadowInFlight::new(replay.query.prompt_tokens);
        for &policy in self.policies {
            let chosen = match policy {
                ShadowPolicy::Actual => actual,
                ShadowPolicy::Cost => self.cheapest(replay, turn, &seen, marks, now)?,
                ShadowPolicy::LeastRequest => {
                    *routing::least_by(turn, seen.iter(), |seen| self.sites[seen.site].in_flight())?
                }
                ShadowPolicy::RoundRobin => *routing::in_turn(turn, &seen)?,
            };
            let site = &mut self.sites[chosen.site];
            let matched = u32::try_from(site.touch(policy, marks, self.policies, &self.memory)).unwrap_or(u32::MAX);
            let prompt_tokens = replay.query.prompt_tokens;
            let uncached = routing::uncached_tokens(prompt_tokens, matched);
            let work = routing::work(uncached, prompt_tokens, &replay.cost);
            let ttft = site.dispatch(policy, work, chosen.candidate.rate, now, &mut in_flight);
            self.count(policy, prompt_tokens, prompt_tokens - uncached, ttft);
        }
        Some(in_flight)
    }

    fn count(&mut self, policy: ShadowPolicy, prompt_tokens: u32, cached_tokens: u32, ttft_seconds: f64) {
        self.totals[policy as usize].add(prompt_tokens, cached_tokens, ttft_seconds);
        if policy == ShadowPolicy::Actual && !self.simulates_cost() {
            self.totals[ShadowPolicy::Cost as usize].add(prompt_tokens, cached_tokens, ttft_seconds);
        }
    }

    /// The candidates that are still in the pool.
    fn seen<'a>(&self, candidates: &'a [Candidate]) -> SmallVec<[Seen<'a>; INLINE]> {
        let site_of = |candidate: &Candidate| {
            let is_it = |site: &Site| site.backend().identity == candidate.identity;
            // A request may hold an older view of the pool, with other places.
            let usual = self.sites.get(candidate.index).filter(|site| is_it(site)).map(|_| candidate.index);
            usual.or_else(|| self.sites.iter().position(is_it))
        };
        candidates.iter().filter_map(|candidate| Some(Seen { site: site_of(candidate)?, candidate })).collect()
    }

    /// Whom `cost` would choose, with the caches and queues that it has made.
    fn cheapest<'a>(
        &mut self,
        replay: &Replay<'_>,
        turn: u64,
        seen: &[Seen<'a>],
        marks: &Marks,
        now: Moment,
    ) -> Option<Seen<'a>> {
        let mut candidate = |seen: &Seen<'_>| {
            let site = &mut self.sites[seen.site];
            Candidate {
                matched_tokens: u32::try_from(site.matched_tokens(ShadowPolicy::Cost, marks)).unwrap_or(u32::MAX),
                load: site.load(seen.candidate, now),
                // Readings are of the real traffic.
                engine: EngineState { polled: None, ..seen.candidate.engine },
                ..*seen.candidate
            }
        };
        let candidates: SmallVec<[Candidate; 8]> = seen.iter().map(&mut candidate).collect();
        let rule = Policy { kind: PolicyKind::Cost, cost: replay.cost, ..Policy::default() };
        // The rule draws no lots.
        let mut no_lots = fastrand::Rng::with_seed(0);
        let decision = routing::choose(&rule, &Query { turn, ..replay.query }, &candidates, &mut no_lots)?;
        seen.iter().find(|seen| seen.candidate.index == decision.index).copied()
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
