//! What a run simulates, besides what arrives.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::fault::Fault;
use crate::pool::{Limits, PolicyKind};
use crate::queue::MAX_DEFER;
use crate::sim::engine::{BlockCache, Parameters};

/// The fleet and how it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Backends at the start; at least 1.
    pub backends: usize,
    /// Size and speed of each engine. Its blocks are the workload's.
    pub engine: Parameters,
    /// Routers, each with its own accounting and index; requests go to any. At least 1.
    pub routers: usize,
    /// How often routers tell each other what they have in flight; never, if none.
    pub sharing: Option<Duration>,
    /// How routers know what is cached where.
    pub locality: Locality,
    /// Whether requests carry their session's key.
    pub session_keys: bool,
    /// Starts of sessions come so many times as fast as the workload says; above 0.
    pub speed: f64,
    /// How much a backend is given at a time. What is beyond waits at its router, for as long as it takes.
    pub limits: Limits,
    /// How long routers let a request wait because its prefill is long; none if they let none.
    pub max_defer: Option<Duration>,
    /// In any order.
    pub faults: Vec<Fault>,
}

/// How a router knows what an engine's cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locality {
    /// As the engine does: what KV events tell, without their delay.
    Exact,
    /// From its own decisions: an LRU of the engine's size.
    Assumed,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Contender {
    /// One of the policies.
    Policy(PolicyKind),
    /// `cost` over engines that share one cache of the fleet's size: a bound, not a policy.
    Pooled,
}

// === impl Setup ===

impl Setup {
    /// One router that assumes what is cached, at the workload's own speed, and nothing goes wrong.
    pub fn new(backends: usize, engine: Parameters) -> Self {
        Self {
            backends,
            engine,
            routers: 1,
            sharing: None,
            locality: Locality::Assumed,
            session_keys: false,
            speed: 1.0,
            limits: Limits::default(),
            max_defer: Some(MAX_DEFER),
            faults: Vec::new(),
        }
    }
}

// === impl Contender ===

impl Contender {
    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::Policy(PolicyKind::Cost),
        Self::Policy(PolicyKind::LOCALITY_FIRST),
        Self::Policy(PolicyKind::PrefixAffinity),
        Self::Policy(PolicyKind::CONSISTENT_HASH),
        Self::Policy(PolicyKind::LeastRequest),
        Self::Policy(PolicyKind::PowerOfTwo),
        Self::Policy(PolicyKind::RoundRobin),
        Self::Policy(PolicyKind::Random),
        Self::Pooled,
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name() == name)
    }

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(kind) => kind.name(),
            Self::Pooled => "pooled",
        }
    }

    /// What its routers choose by.
    pub fn policy(self) -> PolicyKind {
        match self {
            Self::Policy(kind) => kind,
            Self::Pooled => PolicyKind::Cost,
        }
    }

    /// The cache that all its engines share, of the fleet's size, if they do.
    pub fn shared_cache(self, setup: &Setup) -> Option<Arc<Mutex<BlockCache>>> {
        let blocks = setup.engine.kv_blocks.saturating_mul(u32::try_from(setup.backends).unwrap_or(u32::MAX));
        (self == Self::Pooled).then(|| Arc::new(Mutex::new(BlockCache::new(blocks))))
    }

    /// How its routers know what is cached. A shared cache is nobody's own, so there is nothing to assume of it.
    pub fn locality(self, setup: &Setup) -> Locality {
        match self {
            Self::Policy(_) => setup.locality,
            Self::Pooled => Locality::Exact,
        }
    }
}
