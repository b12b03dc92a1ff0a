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

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{
    Admission, Backend, Drain, DrainPhase, EjectionSettings, EventView, Fill, Limits, ModelEntry, Policy, Pool,
    PoolRate, RetrySettings, TierCredits, Timeouts, Trust,
};
use crate::locality::{ExactTenant, LocalityIndex, Tenant};
use crate::queue::{Priority, QueueSettings};
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
    /// How much one backend is given at a time.
    pub limits: Limits,
    /// How many requests wait when all have that.
    pub queue: QueueSettings,
    /// How often a streamed request that waits is given a sign of life.
    pub keep_alive: Option<Duration>,
    /// When a request is sent to a second backend.
    pub hedging: Option<Hedging>,
    /// What says how urgent a request is.
    pub priorities: Priorities,
    /// How long its requests may take.
    pub timeouts: Timeouts,
    /// Whose credentials its backends are shown.
    pub credentials: Credentials,
    /// Whether the header of a streamed answer waits for what comes first.
    pub holds_header: bool,
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

/// Second attempts beside the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hedging {
    /// Without a first token for so long.
    pub after: Duration,
    /// As a share of the requests.
    pub budget: RetrySettings,
}

/// What may say how urgent a request is; nothing, by default, makes all alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// The header that names it.
    pub header: Option<HeaderName>,
    /// Whether the number `priority` in a body does: below 0 is high, above it low.
    pub by_field: bool,
}

/// Whose credentials go to a backend with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The caller's, as it sent them.
    Callers,
    /// Ours, as the value of `Authorization`, if we have any; never the caller's.
    Own(Option<HeaderValue>),
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
    /// Its drain, if it is to leave.
    pub drain: Option<Arc<Drain>>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
            limits: Limits::default(),
            queue: QueueSettings::default(),
            keep_alive: None,
            hedging: None,
            priorities: Priorities::default(),
            timeouts: Timeouts::default(),
            credentials: Credentials::default(),
            holds_header: true,
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

    /// How `backend`, one of its own, stands to its limits.
    pub fn fill(&self, backend: &BackendSnapshot, now: Moment) -> Fill {
        let load = backend.backend.load().view(now);
        let engine = backend.engine.current(self.policy.stale_after, now);
        self.limits.fill(&load, &engine, self.rate().for_backend(load.rate))
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

// === impl Priorities ===

impl Priorities {
    /// The priority of a request with these header fields and this number in its body. The header comes first. Nothing
    /// makes a request more urgent than `class`, that of its caller, which it has if it says nothing that is known. Where
    /// callers have no class, that is [`Priority::Normal`], and anything can be asked for.
    pub fn priority(&self, headers: &HeaderMap, field: Option<i64>, class: Option<Priority>) -> Priority {
        let named = self.header.as_ref().and_then(|name| headers.get(name)).and_then(|value| value.to_str().ok());
        let by_header = named.and_then(|name| Priority::named(name.trim()));
        let by_field = field.filter(|_| self.by_field).map(|number| match number {
            ..0 => Priority::High,
            0 => Priority::Normal,
            1.. => Priority::Low,
        });
        // The less urgent one is the greater one.
        by_header.or(by_field).max(class).unwrap_or_default()
    }
}

// === impl Credentials ===

impl Default for Credentials {
    fn default() -> Self {
        Self::Own(None)
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
            drain: None,
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

    /// Whether its engine has started anew and has not told all of it yet ([`EventView::is_renewed`]).
    pub fn is_renewed(&self) -> bool {
        self.feeds.iter().any(EventView::is_renewed)
    }

    /// Where what its engine tells stands in the index of events.
    pub fn event_tenants(&self) -> impl Iterator<Item = &ExactTenant> {
        self.feeds.iter().map(|view| view.feed.tenant())
    }

    /// How far its drain has come, if it drains; `index` is where its blocks stand.
    pub fn drain_phase(&self, index: &LocalityIndex, now: Moment) -> Option<DrainPhase> {
        let drain = self.drain.as_ref()?;
        let is_home = index.tenant_blocks(self.tenant) > 0 || self.event_tenants().any(|tenant| tenant.blocks() > 0);
        Some(drain.phase(self.backend.load().in_flight(), is_home, now))
    }

    /// Whether it could take a request now: one that drains does, until its deadline, where no other can.
    pub fn can_serve(&self, now: Moment) -> bool {
        let is_admitted = !matches!(self.backend.ejection().admission(now), Admission::Closed { .. });
        let is_open = self.drain.as_ref().is_none_or(|drain| drain.admits(now));
        self.health == Health::Healthy && is_open && self.address.is_some() && is_admitted
    }
}

// === impl EngineState ===

impl EngineState {
    /// The same without a reading that is older than `limit`.
    pub fn current(&self, limit: Duration, now: Moment) -> Self {
        Self { polled: self.polled_within(limit, now), ..*self }
    }

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
    fn only_what_is_configured_says_how_urgent_a_request_is() {
        let mut headers = HeaderMap::new();
        headers.insert("x-priority", "High".parse().unwrap());
        let silent = Priorities::default();
        assert_eq!(silent.priority(&headers, Some(9), None), Priority::Normal);
        let both = Priorities { header: Some(HeaderName::from_static("x-priority")), by_field: true };
        assert_eq!(both.priority(&headers, Some(9), None), Priority::High, "the header comes first");
        let by_number = [-1, 0, 1].map(|number| both.priority(&HeaderMap::new(), Some(number), None));
        assert_eq!(by_number, Priority::ALL);
        headers.insert("x-priority", "now!".parse().unwrap());
        assert_eq!(both.priority(&headers, None, None), Priority::Normal);
    }

    #[test]
    fn nobody_is_more_urgent_than_his_class() {
        use Priority::{High, Low, Normal};
        let priorities = Priorities { header: Some(HeaderName::from_static("x-priority")), by_field: true };
        for (class, asked, given) in [
            (High, None, High),
            (High, Some("normal"), Normal),
            (Normal, Some("high"), Normal),
            (Normal, Some("low"), Low),
            (Low, Some("high"), Low),
            (Low, None, Low),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(asked) = asked {
                headers.insert("x-priority", asked.parse().unwrap());
            }
            assert_eq!(priorities.priority(&headers, None, Some(class)), given, "{class:?} asks for {asked:?}");
        }
        assert_eq!(priorities.priority(&HeaderMap::new(), Some(-1), Some(Low)), Low, "nor by the number");
        assert_eq!(
            Priorities::default().priority(&HeaderMap::new(), None, Some(High)),
            High,
            "nothing has to be asked for"
        );
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
