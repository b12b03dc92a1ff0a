//! Backends and pools as the program knows them while it runs.
//!
//! What is here is pure: no sockets, no clock. A [`Backend`] is the identity and live state that every [`Snapshot`]
//! shares, so an unchanged backend keeps its load, learned rate and ejection through a reload; everything that the
//! control loop observes (health, address, engine values) is in the immutable snapshot instead.

mod drain;
mod ejection;
mod feed;
mod limits;
mod load;
mod model;
mod policy;
mod rate;
mod recent;
mod retry_budget;
mod snapshot;
mod timeouts;
mod trust;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::prefix::Scale;
use crate::queue::{Line, Order, Room};

pub use drain::{Drain, DrainCause, DrainPhase};
pub use ejection::{
    Admission, Ejection, EjectionCause, EjectionRecord, EjectionSettings, FailureKind, ProbePermit, Transition,
};
pub use feed::{EventFeed, EventView, TierCredits};
pub use limits::{Fill, InFlightLimit, Limits};

pub use load::{Answer, InFlight, Load, LoadView, MAX_WORK};
pub use model::ModelEntry;
pub use policy::{CostModel, Policy, PolicyKind};
pub use rate::{PoolRate, RateSums};
pub use recent::{RECENT_MEMORY, Recent};
pub use retry_budget::{RetryBudget, RetrySettings};
pub use snapshot::{
    BackendSnapshot, Credentials, EngineState, Health, Hedging, OtherRouters, Polled, PoolSnapshot, Priorities,
    Snapshot,
};
pub use timeouts::{TimeLimit, Timeouts};
pub use trust::{Change, Changes, ExactPrediction, Prediction, Reason as TrustReason, Trust, TrustMeter, TrustRecord};

/// Where a backend is reached, as plain data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the scheme is https.
    pub is_tls: bool,
    /// Host name or IP address, without brackets; also the TLS server name.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
}

/// One backend's identity and live state, shared by all snapshots that contain it.
#[derive(Debug)]
pub struct Backend {
    name: Arc<str>,
    origin: Origin,
    identity: u64,
    load: Arc<Load>,
    ejection: Arc<Ejection>,
    trust: TrustMeter,
}

/// One pool's identity and live state, shared by all snapshots that contain it.
#[derive(Debug)]
pub struct Pool {
    name: Arc<str>,
    retry_budget: RetryBudget,
    scale: Scale,
    hedge_budget: RetryBudget,
    line: Arc<Line>,
    deferred: Arc<Line>,
    /// The number of the next decision. Its lock also makes decisions of the pool follow one another.
    turn: Mutex<u64>,
}

// === impl Origin ===

impl Origin {
    /// `HOST:PORT`, as in a `Host` header: an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

// === impl Backend ===

impl Backend {
    /// A backend with nothing in flight, not ejected. `name` is its label in logs and metrics, unique in the process.
    pub fn new(name: impl Into<Arc<str>>, origin: Origin) -> Self {
        let name = name.into();
        Self {
            identity: stable_hash(&name),
            name,
            origin,
            load: Arc::default(),
            ejection: Arc::default(),
            trust: TrustMeter::default(),
        }
    }

    /// The label.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Where it is reached.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A hash of the name: equal in every process and after every reload, so that hashing policies agree on it.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// What is in flight there.
    pub fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Whether real requests failed there.
    pub fn ejection(&self) -> &Arc<Ejection> {
        &self.ejection
    }

    /// How far what is believed of its cache may be trusted.
    pub fn trust(&self) -> &TrustMeter {
        &self.trust
    }
}

// === impl Pool ===

impl Pool {
    /// A pool that has taken no decision yet. `name` is its label in logs and metrics, `scale` its model's.
    pub fn new(name: impl Into<Arc<str>>, scale: Scale) -> Self {
        Self {
            name: name.into(),
            retry_budget: RetryBudget::default(),
            scale,
            hedge_budget: RetryBudget::default(),
            line: Arc::default(),
            deferred: Arc::new(Line::new(Order::ShortFirst)),
            turn: Mutex::new(0),
        }
    }

    /// The label.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What may be spent on retries.
    pub fn retry_budget(&self) -> &RetryBudget {
        &self.retry_budget
    }

    /// What may be spent on second attempts beside the first.
    pub fn hedge_budget(&self) -> &RetryBudget {
        &self.hedge_budget
    }

    /// The requests that wait for room at its backends.
    pub fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// The requests that wait although backends have room, because their prefill is long ([`crate::routing::Deferred`]).
    pub fn deferred(&self) -> &Arc<Line> {
        &self.deferred
    }

    /// Lets those that wait look: there may be more room.
    pub fn stir(&self, room: Room) {
        self.line.stir(room);
        self.deferred.stir(room);
    }

    /// How the bytes of its prompts become tokens and blocks.
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Runs `decision` with its turn number while no other decision of this pool runs.
    ///
    /// A decision must be accounted for before the next one reads the load; otherwise requests that arrive together
    /// all see the same idle backend. So `decision` chooses and dispatches, which takes about a microsecond, and does
    /// nothing that waits.
    pub fn decide<R>(&self, decision: impl FnOnce(u64) -> R) -> R {
        let mut turn = self.turn.lock();
        let this_turn = *turn;
        *turn = turn.wrapping_add(1);
        decision(this_turn)
    }
}

/// `value` within `low..=high`; `low` if it is not a number.
pub(crate) fn number_within(low: f64, high: f64, value: f64) -> f64 {
    // Of a number and what is none, `max` is the number.
    value.max(low).min(high)
}

/// FNV-1a. Names come from the configuration, so nobody can choose them to collide.
fn stable_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn decisions_of_a_pool_have_consecutive_turns() {
        let pool = Pool::new("llama", Scale::new(NonZeroU32::MIN));
        let turns: Vec<u64> = (0..4).map(|_| pool.decide(|turn| turn)).collect();
        assert_eq!(turns, [0, 1, 2, 3]);
    }

    #[test]
    fn no_two_decisions_of_a_pool_run_at_once() {
        let (pool, is_deciding) = (Pool::new("llama", Scale::new(NonZeroU32::MIN)), AtomicBool::new(false));
        let decide = || {
            pool.decide(|_| {
                assert!(!is_deciding.swap(true, Ordering::SeqCst), "another decision runs");
                std::thread::yield_now();
                is_deciding.store(false, Ordering::SeqCst);
            });
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..200).for_each(|_| decide()));
            }
        });
    }

    #[test]
    fn the_identity_of_a_backend_depends_on_its_name_alone() {
        let origin = |port| Origin { is_tls: false, host: "10.0.0.1".into(), port };
        assert_eq!(Backend::new("a", origin(1)).identity(), Backend::new("a", origin(2)).identity());
        assert_ne!(Backend::new("a", origin(1)).identity(), Backend::new("b", origin(1)).identity());
    }
}
