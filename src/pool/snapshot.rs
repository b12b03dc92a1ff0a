//! The immutable view of all pools that a decision reads. The control loop builds one, publishes it, and builds the
//! next; a request keeps the one it started with.
//!
//! What the data path changes (load, ejection, turns, retry budget) is not copied here but shared, behind `Arc`, by all
//! snapshots with the same backend or pool.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use smallvec::SmallVec;

use super::{
    Admission, Backend, EjectionSettings, EventView, ModelEntry, Policy, Pool, PoolRate, RetrySettings, TierCredits,
    Trust,
};
use crate::locality::{ExactTenant, Tenant};
use crate::time::Moment;
use crate::tls::Upstream;
use crate::tokens;

/// Sizes of block for which prompts are cut anew: engines of one model have one, or a few in the course of a change.
const MAX_BLOCK_SIZES: usize = 4;

/// All pools at one time.
#[derive(Debug, Default)]
pub struct Snapshot {
    generation: u64,
    pools: Vec<PoolSnapshot>,
    by_model: HashMap<Arc<str>, usize>,
    any_model: Option<usize>,
}

/// One pool at one time.
#[derive(Debug, Clone)]
pub struct PoolSnapshot {
    /// What all snapshots of the pool share.
    pub pool: Arc<Pool>,
    /// The models it serves; empty for the pool that takes any other.
    pub models: Vec<Arc<str>>,
    /// Tokens that a block of its prompts stands for.
    pub block_tokens: NonZeroU32,
    /// How it chooses.
    pub policy: Policy,
    /// When it ejects.
    pub ejection: EjectionSettings,
    /// What it may retry.
    pub retry: RetrySettings,
    /// How long one attempt may take.
    pub timeouts: Timeouts,
    /// The header that names a request's session, if one does.
    pub session_header: Option<HeaderName>,
    /// Makes prompts into the token ids that its engines make of them.
    pub tokenizer: Option<Arc<tokens::Service>>,
    /// What KV events of other media than the GPU's are worth.
    pub credits: TierCredits,
    /// Answered requests with new blocks, without an event, that make a backend silent.
    pub silent_after: NonZeroU32,
    /// Its backends. Decisions name them by their index here.
    pub backends: Vec<BackendSnapshot>,
}

/// Limits of one attempt at a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect, TLS included.
    pub connect: Duration,
    /// To the response's header, and between two reads of it.
    pub read: Duration,
    /// Between two writes of the request.
    pub write: Duration,
    /// How long an idle connection is kept for the next request.
    pub keepalive_idle: Duration,
}

/// One backend at one time.
#[derive(Debug, Clone)]
pub struct BackendSnapshot {
    /// What all snapshots of the backend share.
    pub backend: Arc<Backend>,
    /// Where to connect; none while its name has not been resolved.
    pub address: Option<SocketAddr>,
    /// The data-parallel rank of its engine that it stands for, if the engine has several.
    pub rank: Option<u32>,
    /// How it is spoken to, if over TLS.
    pub tls: Option<Arc<Upstream>>,
    /// What the active probes say.
    pub health: Health,
    /// Whether it takes no new requests, by reload or by the operator.
    pub is_draining: bool,
    /// Where its blocks stand in the locality index.
    pub tenant: Tenant,
    /// What its engine reports.
    pub engine: EngineState,
    /// What other routers in front of the same engine have told of their share.
    pub others: OtherRouters,
    /// The models that it lists.
    pub models: Arc<[ModelEntry]>,
    /// What its engine tells of its cache, a feed a rank; none if it does not.
    pub feeds: Arc<[EventView]>,
    /// Why it is not known where its engine tells that.
    pub feeds_problem: Option<Arc<str>>,
}

/// What other routers have in flight at a backend; nothing, if there are none or they do not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OtherRouters {
    /// Their pending prefill there, in work units.
    pub pending_work: f64,
    /// Their requests there past the first token.
    pub decoding: u32,
    /// All of their requests there.
    pub in_flight: u32,
    /// The prompt tokens of all of these.
    pub prompt_tokens: u64,
}

/// What active probes say of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// No good probe yet since it was added.
    Starting,
    /// `rise` good probes in a row.
    Healthy,
    /// `fall` bad probes in a row.
    Unhealthy,
}

/// What an engine reports. All unknown by default: an engine without metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineState {
    /// Tokens in a KV block. This and the next two change with the engine's generation only, so they have no age.
    pub block_tokens: Option<NonZeroU32>,
    /// Tokens in all KV blocks.
    pub capacity_tokens: Option<NonZeroU64>,
    /// The most requests it runs at once.
    pub max_running: Option<NonZeroU32>,
    /// The last reading of what moves.
    pub polled: Option<Polled>,
}

/// One reading of an engine's gauges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polled {
    /// Requests in the batch.
    pub running: u32,
    /// Queue depth: requests that wait inside the engine.
    pub waiting: u32,
    /// Share of KV blocks in use, 0 to 1; none if the engine does not tell.
    pub kv_usage: Option<f64>,
    /// When it was read.
    pub observed_at: Moment,
}

// === impl Snapshot ===

impl Snapshot {
    /// A snapshot of `pools`. Of two pools with the same model, or without models, the first is used; a checked
    /// configuration has no such two.
    pub fn new(generation: u64, pools: Vec<PoolSnapshot>) -> Self {
        let mut by_model = HashMap::new();
        for (index, pool) in pools.iter().enumerate() {
            for model in &pool.models {
                by_model.entry(Arc::clone(model)).or_insert(index);
            }
        }
        let any_model = pools.iter().position(|pool| pool.models.is_empty());
        Self { generation, pools, by_model, any_model }
    }

    /// Its number; later ones are larger.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All pools, in the order of the configuration.
    pub fn pools(&self) -> &[PoolSnapshot] {
        &self.pools
    }

    /// The index of the pool for a request's model: the one that names it, else the one that takes any. A request that names no
    /// model goes to the latter as well, or to the only pool there is.
    pub fn pool_for(&self, model: Option<&str>) -> Option<usize> {
        let only = if self.pools.len() == 1 { Some(0) } else { None };
        match model {
            Some(model) => self.by_model.get(model).copied().or(self.any_model),
            None => self.any_model.or(only),
        }
    }

    /// The pool of this name.
    pub fn pool_named(&self, name: &str) -> Option<usize> {
        self.pools.iter().position(|pool| **pool.pool.name() == *name)
    }
}

// === impl PoolSnapshot ===

impl PoolSnapshot {
    /// A pool with nothing set and no backends, which takes any model.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self {
            models: Vec::new(),
            block_tokens: pool.scale().block_tokens(),
            policy: Policy::default(),
            ejection: EjectionSettings::default(),
            retry: RetrySettings::default(),
            timeouts: Timeouts::default(),
            session_header: None,
            tokenizer: None,
            credits: TierCredits::default(),
            silent_after: NonZeroU32::MAX,
            backends: Vec::new(),
            pool,
        }
    }

    /// Whether a request could be served now, without failing open.
    pub fn can_serve(&self, now: Moment) -> bool {
        self.backends.iter().any(|backend| backend.can_serve(now))
    }

    /// The sizes of block that its backends' events have, tokens.
    pub fn event_blocks(&self) -> SmallVec<[NonZeroU32; 2]> {
        let mut sizes = SmallVec::new();
        for tenant in self.backends.iter().flat_map(BackendSnapshot::event_tenants) {
            match tenant.block_tokens() {
                Some(size) if sizes.len() < MAX_BLOCK_SIZES && !sizes.contains(&size) => sizes.push(size),
                _ => {}
            }
        }
        sizes
    }

    /// Whether `model` names an adapter of another model, by what backends list.
    pub fn is_adapter(&self, model: &str) -> bool {
        let mut listed = self.backends.iter().flat_map(|backend| backend.models.iter());
        listed.any(|entry| entry.is_adapter && entry.id == model)
    }

    /// The prefill rate of its backends together.
    pub fn rate(&self) -> PoolRate {
        PoolRate::of(self.backends.iter().map(|backend| backend.backend.load().rate()))
    }
}

// === impl Timeouts ===

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            read: Duration::from_secs(600),
            write: Duration::from_secs(30),
            keepalive_idle: Duration::from_secs(4),
        }
    }
}

// === impl BackendSnapshot ===

impl BackendSnapshot {
    /// A backend of which nothing is known yet.
    pub fn new(backend: Arc<Backend>, tenant: Tenant) -> Self {
        Self {
            backend,
            address: None,
            rank: None,
            tls: None,
            health: Health::Starting,
            is_draining: false,
            tenant,
            engine: EngineState::default(),
            others: OtherRouters::default(),
            models: Arc::default(),
            feeds: Arc::default(),
            feeds_problem: None,
        }
    }

    /// What its locality is to be read from now.
    pub fn trust(&self) -> Trust {
        self.backend.trust().trust(self.hears())
    }

    /// Whether all that its engine tells is current.
    pub fn hears(&self) -> bool {
        !self.feeds.is_empty() && self.feeds.iter().all(|view| view.feed.is_live())
    }

    /// Where what its engine tells stands in the index of events.
    pub fn event_tenants(&self) -> impl Iterator<Item = &ExactTenant> {
        self.feeds.iter().map(|view| view.feed.tenant())
    }

    /// Whether nothing keeps requests from it.
    pub fn can_serve(&self, now: Moment) -> bool {
        let is_admitted = !matches!(self.backend.ejection().admission(now), Admission::Closed { .. });
        self.health == Health::Healthy && !self.is_draining && self.address.is_some() && is_admitted
    }
}

// === impl EngineState ===

impl EngineState {
    /// The last reading, if it is no older than `limit`.
    pub fn polled_within(&self, limit: Duration, now: Moment) -> Option<Polled> {
        self.polled.filter(|polled| now.since(polled.observed_at) <= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Scale;

    fn pool(name: &str, models: &[&str]) -> PoolSnapshot {
        PoolSnapshot {
            models: models.iter().map(|&model| model.into()).collect(),
            ..PoolSnapshot::new(Arc::new(Pool::new(name, Scale::new(NonZeroU32::MIN))))
        }
    }

    fn name_for(snapshot: &Snapshot, model: Option<&str>) -> Option<String> {
        snapshot.pool_for(model).map(|pool| snapshot.pools()[pool].pool.name().to_string())
    }

    #[test]
    fn a_model_finds_its_pool_and_others_the_default() {
        let snapshot = Snapshot::new(3, vec![pool("a", &["x", "y"]), pool("b", &[]), pool("c", &["z"])]);
        for (model, expected) in
            [(Some("x"), "a"), (Some("y"), "a"), (Some("z"), "c"), (Some("other"), "b"), (None, "b")]
        {
            assert_eq!(name_for(&snapshot, model).as_deref(), Some(expected), "model {model:?}");
        }
    }

    #[test]
    fn without_a_default_an_unknown_model_finds_nothing() {
        let two = Snapshot::new(1, vec![pool("a", &["x"]), pool("c", &["z"])]);
        assert_eq!((name_for(&two, Some("other")), name_for(&two, None)), (None, None));
        let one = Snapshot::new(1, vec![pool("a", &["x"])]);
        assert_eq!(name_for(&one, Some("other")), None, "the only pool does not serve a model it does not name");
        assert_eq!(name_for(&one, None).as_deref(), Some("a"), "a request without a model can only mean it");
        assert_eq!(name_for(&Snapshot::default(), None), None);
    }

    #[test]
    fn a_stale_reading_is_not_given_out() {
        let at = |seconds| Moment::at(Duration::from_secs(seconds));
        let polled = Polled { running: 1, waiting: 2, kv_usage: Some(0.5), observed_at: at(10) };
        let engine = EngineState { polled: Some(polled), ..EngineState::default() };
        assert_eq!(engine.polled_within(Duration::from_secs(5), at(15)), Some(polled));
        assert_eq!(engine.polled_within(Duration::from_secs(5), at(16)), None);
    }
}
