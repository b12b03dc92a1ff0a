//! The settings of the choice between a pool's backends. They are data of the snapshot; `routing` gives them meaning.

use std::time::Duration;

/// How a pool chooses among its candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// The rule.
    pub kind: PolicyKind,
    /// What a request's prefill costs. Every policy accounts for work with it; `cost` also decides by it.
    pub cost: CostModel,
    /// Scraped values older than this are not used.
    pub stale_after: Duration,
}

/// The rule of a [`Policy`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PolicyKind {
    /// The lowest predicted cost in seconds.
    Cost,
    /// The warmest backend, unless it has more than `overload_factor` times the mean number in flight; then the one
    /// with the least in flight.
    LocalityFirst {
        /// Above 1; 2.0 by default.
        overload_factor: f64,
    },
    /// The hash of the prompt's first blocks names the backend; load plays no part.
    PrefixAffinity,
    /// The hash of the session (else of the prompt's first blocks) names an order of backends; the first that has no
    /// more than `overload_factor` times its share in flight is taken.
    ConsistentHash {
        /// Above 1; 1.25 by default.
        overload_factor: f64,
    },
    /// The least in flight.
    LeastRequest,
    /// Two at random; of these the one with less in flight.
    PowerOfTwo,
    /// Each in turn.
    RoundRobin,
    /// Any.
    Random,
}

/// The constants of the cost rule. The defaults were found by simulating real traces over several engine models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Growth of a token's prefill work with each token before it, per token: 2.2e-5 for a 70B-class model, 0 if
    /// unknown.
    pub work_per_context_token: f64,
    /// Price of a second of prefill to the fleet, in seconds: what makes a warm backend worth a detour.
    pub prefill_price: f64,
    /// What each decoding neighbour adds to that price: prefill slows their decoding.
    pub prefill_price_per_decoding: f64,
    /// The most that decoding neighbours add to that price.
    pub prefill_price_decoding_limit: f64,
    /// Decode interference, in seconds for each context token that is read beside a decoding neighbour's. An answer of
    /// 300 tokens, at the 2.6e-8 s that a token's keys and values take, comes to 8e-6; and most sessions come back.
    pub decode_seconds_per_token: f64,
    /// The most that it differs by while the pool is behind with prefill, in seconds; infinite where that changes nothing.
    pub decode_limit_behind: f64,
    /// What it costs a backend to have got requests lately by as much as the mean above its fair share, in seconds...
    pub balance_seconds: f64,
    /// ...where a fair share is this many times the mean...
    pub balance_share: f64,
    /// ...and so many requests more count for each backend: a few say nothing about shares. All of it while there is at
    /// least one request in flight for each backend, and less below.
    pub balance_prior: f64,
    /// The longest that a request is believed to hold its KV blocks and its slot, in seconds: the turnover for which a
    /// request waits where there is no room. What is seen is used where it is less.
    pub residence_seconds: f64,
    /// Costs within this many seconds of the lowest count as equal...
    pub near_seconds: f64,
    /// ...and so do costs within this share of it.
    pub near_share: f64,
}

// === impl PolicyKind ===

impl PolicyKind {
    /// `locality_first` with its default.
    pub const LOCALITY_FIRST: Self = Self::LocalityFirst { overload_factor: 2.0 };
    /// `consistent_hash` with its default: the bound of Mirrokni, Thorup and Zadimoghaddam's paper.
    pub const CONSISTENT_HASH: Self = Self::ConsistentHash { overload_factor: 1.25 };

    /// The name in the configuration, in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::LocalityFirst { .. } => "locality_first",
            Self::PrefixAffinity => "prefix_affinity",
            Self::ConsistentHash { .. } => "consistent_hash",
            Self::LeastRequest => "least_request",
            Self::PowerOfTwo => "power_of_two",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
        }
    }

    /// Whether it matters to a request where it goes.
    pub fn goes_by_locality(self) -> bool {
        matches!(self, Self::Cost | Self::LocalityFirst { .. } | Self::PrefixAffinity | Self::ConsistentHash { .. })
    }
}

impl CostModel {
    /// The default, which limits what decoding differs by while the pool is behind; not so where nothing is deferred, and
    /// a backlog is to change nothing.
    pub fn with_deferral(is_deferring: bool) -> Self {
        let default = Self::default();
        let limit = if is_deferring { default.decode_limit_behind } else { f64::INFINITY };
        Self { decode_limit_behind: limit, ..default }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { kind: PolicyKind::Cost, cost: CostModel::default(), stale_after: Duration::from_secs(5) }
    }
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            work_per_context_token: 0.0,
            prefill_price: 4.0,
            prefill_price_per_decoding: 0.05,
            prefill_price_decoding_limit: 3.0,
            decode_seconds_per_token: 1.3e-5,
            decode_limit_behind: 0.3,
            balance_seconds: 6.0,
            balance_share: 1.15,
            balance_prior: 20.0,
            residence_seconds: 10.0,
            near_seconds: 0.005,
            near_share: 0.01,
        }
    }
}
