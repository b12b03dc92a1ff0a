//! The cost of sending a request to a candidate, in seconds: its own predicted TTFT, plus what it costs the others.
//!
//! ```text
//! queue + prefill               q / rate, w / rate        this request's wait for its first token...
//! slowdown                      (queue + prefill) * f/F   ...stretched by neighbours
//! price                         (4 + min(0.05 d, 3)) * w / rate   prefill put on the fleet: the locality term
//! decode                        1.3e-5 (t + n f)            decode interference: its context on theirs and theirs on its;
//!                                                           0.3 above the least at most while the pool is behind
//! balance                       6 max(0, (r + 20) / (R + 20) - 1.15) * min(1, F)   requests lately above a fair share
//! memory, slots                 waits when the engine reports no room
//! ```
//!
//! with `q` the pending prefill there, `w` the work of this request's uncached tokens, `n` its prompt tokens, `f` the
//! requests in flight there, `t` their prompt tokens and `d` those of them that decode, `r` the requests sent there lately
//! (each by the time it takes there against a mean backend), and `F` and `R` the means of `f` and `r` over the candidates,
//! `F` at least 1 in `slowdown`. Requests without a first token count in `f` and `t`: they decode soon, and without them a
//! backend that just came back would look empty until the first of many is through. Every term grows with load and none
//! with cached tokens, and a warmer backend is worth an extra TTFT of at most 7 times the prefill seconds it saves. Terms
//! are finite for any input: what is no number counts as nothing, and what is too large as [`LARGE`].

use smallvec::SmallVec;

use super::backlog::Backlog;
use super::{Candidate, INLINE, Query};
use crate::pool::{CostModel, MAX_WORK, RECENT_MEMORY, number_within};

/// Stands for every larger quantity of work.
const LARGE: f64 = 1e15;
/// A wait for room is at most this many turnovers of the engine: longer ones cannot be told apart by one reading.
const MAX_TURNOVERS: f64 = 10.0;

/// The terms of one candidate's cost, each in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CostTerms {
    /// Prefill ahead of this request.
    pub queue: f64,
    /// Its own prefill.
    pub prefill: f64,
    /// How much neighbours stretch these two.
    pub slowdown: f64,
    /// Price of its prefill to the fleet.
    pub price: f64,
    /// Interference with decoding.
    pub decode: f64,
    /// What its share of the requests lately costs.
    pub balance: f64,
    /// Wait for KV blocks.
    pub memory: f64,
    /// Wait for a place in the batch.
    pub slots: f64,
}

/// What a candidate is compared with: means over all candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Means {
    /// Requests in flight, of all routers; at least 1, so that the first one does not count for much.
    pub(super) neighbours: f64,
    /// Requests lately, each by the time it takes at the backend's rate against a mean one's.
    pub(super) recent: f64,
    /// Prefill rate.
    pub(super) rate: f64,
    /// How long a request stays, seconds; infinite while that cannot be told, with none in flight.
    pub(super) residence: f64,
    /// Requests in flight, of this router.
    pub(super) in_flight: f64,
    /// The least context that the request would be read beside ([`Candidate::shared_context`]), in tokens.
    pub(super) least_context: f64,
    /// Whether first tokens wait for prefill everywhere.
    pub(super) is_behind: bool,
}

/// The costs of all candidates, in their order.
pub type Costs = SmallVec<[CostTerms; INLINE]>;

/// Prefill work of the last `uncached_tokens` of a prompt, in work units. A unit is one token without context; each
/// token costs more by the context before it.
pub fn work(uncached_tokens: u32, prompt_tokens: u32, model: &CostModel) -> f64 {
    let (uncached, prompt) = (f64::from(uncached_tokens.min(prompt_tokens)), f64::from(prompt_tokens));
    let context = 2.0 * (prompt - uncached) + uncached;
    (uncached * (1.0 + bounded(model.work_per_context_token) * context)).min(MAX_WORK)
}

/// The costs of `candidates` for `query`, as the `cost` policy sees them.
pub fn score(model: &CostModel, query: &Query, candidates: &[Candidate]) -> Costs {
    let means = Means::of(query, candidates);
    candidates.iter().map(|candidate| CostTerms::of(model, query, candidate, means)).collect()
}

/// Tokens to prefill. At least one of a prompt always is: the last token's output is what is wanted.
pub(crate) fn uncached_tokens(prompt_tokens: u32, matched_tokens: u32) -> u32 {
    prompt_tokens - matched_tokens.min(prompt_tokens.saturating_sub(1))
}

// === impl Means ===

impl Means {
    pub(super) fn of(query: &Query, candidates: &[Candidate]) -> Self {
        let mean = |of: fn(&Candidate) -> f64| candidates.iter().map(of).sum::<f64>() / candidates.len().max(1) as f64;
        let rate = mean(|candidate| number_within(1.0, LARGE, candidate.rate)).max(1.0);
        let in_flight = mean(|candidate| f64::from(candidate.load.in_flight));
        let requests = mean(|candidate| bounded(candidate.load.recent));
        let recent = candidates.iter().map(|candidate| candidate.weighed_recent(rate)).sum::<f64>();
        Self {
            neighbours: mean(Candidate::neighbours).max(1.0),
            recent: recent / candidates.len().max(1) as f64,
            rate,
            residence: if in_flight > 0.0 && requests > 0.0 {
                // Little's law.
                RECENT_MEMORY.as_secs_f64() * in_flight / requests
            } else {
                f64::INFINITY
            },
            in_flight,
            least_context: candidates
                .iter()
                .map(|candidate| candidate.shared_context(query))
                .fold(f64::INFINITY, f64::min),
            is_behind: Backlog::of(candidates).is_behind(),
        }
    }
}

// === impl CostTerms ===

impl CostTerms {
    /// The whole cost, in seconds.
    pub fn total(&self) -> f64 {
        self.predicted_ttft() + self.price + self.decode + self.balance
    }

    /// The part that this request itself waits, in seconds.
    pub fn predicted_ttft(&self) -> f64 {
        self.queue + self.prefill + self.slowdown + self.memory + self.slots
    }

    /// The terms with their names, for logs and explanations.
    pub fn named(&self) -> [(&'static str, f64); 8] {
        [
            ("queue", self.queue),
            ("prefill", self.prefill),
            ("slowdown", self.slowdown),
            ("price", self.price),
            ("decode", self.decode),
            ("balance", self.balance),
            ("memory", self.memory),
            ("slots", self.slots),
        ]
    }

    pub(super) fn of(model: &CostModel, query: &Query, candidate: &Candidate, means: Means) -> Self {
        let rate = number_within(1.0, LARGE, candidate.rate);
        let uncached = uncached_tokens(query.prompt_tokens, candidate.matched_tokens);
        let queued = bounded(candidate.load.queued_work(rate)) + bounded(candidate.others.pending_work);
        let (queue, prefill) = (queued / rate, work(uncached, query.prompt_tokens, model) / rate);
        let price = bounded(model.prefill_price)
            + bounded(model.prefill_price_per_decoding * candidate.decoding())
                .min(bounded(model.prefill_price_decoding_limit));
        Self {
            queue,
            prefill,
            slowdown: (queue + prefill) * (candidate.neighbours() / means.neighbours),
            price: price * prefill,
            decode: decode(model, query, candidate, means),
            balance: balance(model, candidate, means),
            memory: residence(model, means) * turnovers_for_memory(uncached, candidate),
            slots: residence(model, means) * turnovers_for_a_slot(candidate),
        }
    }
}

// === impl Candidate ===

impl Candidate {
    /// Requests decoding there, of all routers.
    fn decoding(&self) -> f64 {
        f64::from(self.load.decoding) + f64::from(self.others.decoding)
    }

    /// Requests in flight there, of all routers.
    fn neighbours(&self) -> f64 {
        f64::from(self.load.in_flight) + f64::from(self.others.in_flight)
    }

    /// Requests lately; one at a slow backend keeps it busy for longer.
    fn weighed_recent(&self, mean_rate: f64) -> f64 {
        bounded(self.load.recent) * (mean_rate / number_within(1.0, LARGE, self.rate))
    }

    /// Context tokens that are read beside one another if the request decodes there: those of its neighbours beside it,
    /// and its own beside each of them. Those that wait for their first token will be there by then.
    fn shared_context(&self, query: &Query) -> f64 {
        let theirs = self.load.prompt_tokens as f64 + self.others.prompt_tokens as f64;
        theirs + f64::from(query.prompt_tokens) * self.neighbours()
    }
}

/// What the request costs in decoding. While the pool is behind, a backend that has little of it (one that was away) must not
/// draw everyone there: what it saves in decoding they would spend in its queue.
fn decode(model: &CostModel, query: &Query, candidate: &Candidate, means: Means) -> f64 {
    let seconds = |context: f64| bounded(model.decode_seconds_per_token) * bounded(context);
    let most = if means.is_behind { seconds(means.least_context) + bounded(model.decode_limit_behind) } else { LARGE };
    seconds(candidate.shared_context(query)).min(most)
}

/// What it costs that the candidate got more than a fair share of the requests lately. Nothing waits for it now; but hot
/// prefixes that came together by chance stay together where nothing moves them, and one backend serves most of the
/// traffic. Less than a request in flight at each is no traffic to share out: a lone conversation stays where it is.
fn balance(model: &CostModel, candidate: &Candidate, means: Means) -> f64 {
    let prior = number_within(1.0, LARGE, model.balance_prior);
    let share = (candidate.weighed_recent(means.rate) + prior) / (means.recent + prior);
    bounded(model.balance_seconds) * (share - bounded(model.balance_share)).max(0.0) * means.in_flight.min(1.0)
}

/// How long a request stays, in seconds: what a place in a full engine takes to become free. Until enough have come and
/// gone to tell, it is the longest that is believed.
fn residence(model: &CostModel, means: Means) -> f64 {
    bounded(model.residence_seconds).min(means.residence)
}

/// How often the engine has to turn over before it has room for the rest of the prompt, by the last reading of its KV
/// usage. What is cached needs no room.
///
/// An engine that lets requests wait is full, and a full one turns all its blocks over in about the time that a request
/// stays. The requests that wait inside the engine need room first, and are assumed to be like this one. (Dividing by the
/// blocks in use now, not by all, would make a busier engine look cheaper once the queue exceeds the cache.)
fn turnovers_for_memory(uncached_tokens: u32, candidate: &Candidate) -> f64 {
    let engine = &candidate.engine;
    let (Some(capacity), Some(polled)) = (engine.capacity_tokens, engine.polled) else { return 0.0 };
    let Some(usage) = polled.kv_usage else { return 0.0 };
    let capacity = capacity.get() as f64;
    let used = capacity * number_within(0.0, 1.0, usage);
    let needed = f64::from(uncached_tokens) * (1.0 + f64::from(polled.waiting));
    let missing = (needed - (capacity - used)).max(0.0);
    (missing / capacity).min(MAX_TURNOVERS)
}

/// How often it has to turn over before it has a place in its batch. Own requests count at once, those of others when
/// polled.
fn turnovers_for_a_slot(candidate: &Candidate) -> f64 {
    let Some(max_running) = candidate.engine.max_running else { return 0.0 };
    let polled = candidate.engine.polled.map_or(0.0, |polled| f64::from(polled.running) + f64::from(polled.waiting));
    let occupied = f64::from(candidate.load.in_flight).max(polled);
    let max_running = f64::from(max_running.get());
    let missing = (occupied + 1.0 - max_running).max(0.0);
    (missing / max_running).min(MAX_TURNOVERS)
}

/// `value` within 0..=[`LARGE`]; 0 if it is not a number.
fn bounded(value: f64) -> f64 {
    number_within(0.0, LARGE, value)
}
