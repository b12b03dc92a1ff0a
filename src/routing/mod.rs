//! The choice of a backend: locality first, then load.
//!
//! [`candidates`] filters a pool's backends and reads their load, [`choose`] picks one, [`dispatch()`] does both and
//! accounts for the choice before the next decision of the pool is taken. [`choose`] is one pure function for every
//! endpoint and policy, and for the simulator: what it decides depends on its arguments alone. It allocates nothing for
//! up to [`INLINE`] candidates.

mod backlog;
mod cost;
mod detour;
mod dispatch;
mod drain;
mod filter;
mod outlook;
mod pick;

pub use backlog::Deferred;
pub use cost::{CostTerms, Costs, score, work};
pub use detour::Detour;
pub use dispatch::{Dispatched, NoBackend, deferral, dispatch};
pub use drain::OWN_TOKENS;
pub use filter::{Exclusion, Filtered, Pass, candidates};
pub use outlook::Outlook;

pub(crate) use cost::uncached_tokens;
pub(crate) use pick::{in_turn, least_by};

use std::num::NonZeroU32;

use crate::pool::{EngineState, LoadView, OtherRouters, Policy, PolicyKind};
use crate::prefix::BlockHash;

/// Up to so many candidates what a decision works out about each is held without allocation.
pub const INLINE: usize = 16;

/// What a decision needs to know of the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Query {
    /// Tokens of its prompt; 0 for a request without one, which then goes by load.
    pub prompt_tokens: u32,
    /// The number of the decision, for ties and `round_robin`.
    pub turn: u64,
    /// Hash of the session key, if the request has one.
    pub session_key: Option<u64>,
    /// Hash of the prompt's first blocks, for the policies that hash.
    pub prefix_key: Option<u64>,
    /// Index of the backend that stores what the request names.
    pub owner: Option<usize>,
    /// Whether it may be told to wait because its prefill is long ([`Deferred`]).
    pub may_be_deferred: bool,
}

/// What a decision needs to know of a backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its index in the pool's snapshot.
    pub index: usize,
    /// [`crate::pool::Backend::identity`].
    pub identity: u64,
    /// Leading tokens of the prompt that it holds.
    pub matched_tokens: u32,
    /// What this process has in flight there.
    pub load: LoadView,
    /// Its prefill rate, in work units a second ([`crate::pool::PoolRate::for_backend`]).
    pub rate: f64,
    /// What other routers report to have in flight there.
    pub others: OtherRouters,
    /// What its engine reports, without a reading that is stale.
    pub engine: EngineState,
}

/// The chosen backend, and what led to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Its index in the pool's snapshot.
    pub index: usize,
    /// Leading tokens of the prompt that it holds.
    pub matched_tokens: u32,
    /// Tokens it has to prefill.
    pub uncached_tokens: u32,
    /// That prefill in work units: what to account for at [`crate::pool::Load::dispatch`].
    pub work: f64,
    /// The terms of its cost; [`score`] gives everyone's.
    pub cost: CostTerms,
    /// What it pays for locality.
    pub detour: Detour,
    /// Whether another candidate holds more of the prompt.
    pub is_spill: bool,
}

/// Leading tokens whose hash names a backend in the policies that hash. Fewer would give everyone with the same system
/// prompt to one backend; more would part a conversation from its next turn.
const PREFIX_KEY_TOKENS: u32 = 256;

/// The hash of a prompt's first blocks, for [`Query::prefix_key`]; none if it has no whole block.
pub fn prefix_key(blocks: &[BlockHash], block_tokens: NonZeroU32) -> Option<u64> {
    let most = (PREFIX_KEY_TOKENS / block_tokens).max(1) as usize;
    blocks.get(blocks.len().min(most).checked_sub(1)?).map(|hash| hash.0)
}

/// Chooses one of `candidates` for `query`; none if there are none.
pub fn choose(policy: &Policy, query: &Query, candidates: &[Candidate], rng: &mut fastrand::Rng) -> Option<Decision> {
    let means = cost::Means::of(query, candidates);
    let all = candidates.iter().map(|candidate| CostTerms::of(&policy.cost, query, candidate, means));
    let mut costs = Costs::new();
    let chosen = match policy.kind {
        PolicyKind::Cost => {
            costs.extend(all.clone());
            pick::cheapest(&policy.cost, query, candidates, &costs)
        }
        PolicyKind::LocalityFirst { overload_factor } => pick::warmest(overload_factor, query, candidates),
        PolicyKind::PrefixAffinity => pick::by_hash(query.prefix_key, query, candidates),
        PolicyKind::ConsistentHash { overload_factor } => {
            pick::by_bounded_hash(query.session_key.or(query.prefix_key), overload_factor, query, candidates)
        }
        PolicyKind::LeastRequest => pick::least_in_flight(query, candidates),
        PolicyKind::PowerOfTwo => pick::better_of_two(candidates, rng),
        PolicyKind::RoundRobin => pick::in_turn(query.turn, candidates),
        PolicyKind::Random => pick::any(candidates, rng),
    }?;
    let place = candidates.iter().position(|candidate| std::ptr::eq(candidate, chosen))?;
    let matched = candidates.iter().map(|candidate| candidate.matched_tokens);
    let is_warmer = matched.clone().any(|matched| matched < chosen.matched_tokens);
    if is_warmer && costs.is_empty() {
        costs.extend(all);
    }
    let uncached_tokens = cost::uncached_tokens(query.prompt_tokens, chosen.matched_tokens);
    Some(Decision {
        index: chosen.index,
        matched_tokens: query.prompt_tokens - uncached_tokens,
        uncached_tokens,
        work: work(uncached_tokens, query.prompt_tokens, &policy.cost),
        cost: costs.get(place).copied().unwrap_or_else(|| CostTerms::of(&policy.cost, query, chosen, means)),
        detour: if is_warmer { detour::detour(&costs, place) } else { Detour::default() },
        is_spill: matched.max()? > chosen.matched_tokens,
    })
}

#[cfg(test)]
mod tests;
