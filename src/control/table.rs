//! The control loop's own view of all backends, from which snapshots are made.
//!
//! One owner, no locks: the loop applies a configuration or a finding to it and publishes what follows.

mod entry;
mod inherit;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::engine::EngineSample;
use super::events::{self, Followed};
use super::health::Probes;
use super::leaving::Leaving;
use super::probe::{BackendId, Report, Tasks, Watched};
use super::settings;
use super::speaking::Speaking;
use super::tokenizers::Tokenizers;
use crate::client::{Connections, connections};
use crate::config;
use crate::kv_events::Source;
use crate::locality::Tenant;
use crate::metrics::BackendLabels;
use crate::pool::{Backend, EngineState, ModelEntry, Pool, PoolSnapshot, Snapshot};
use crate::prefix::Scale;
use crate::shadow::{Shadow, ShadowBackend};
use crate::state::State;
use crate::time::Moment;
use crate::tls::{self, Upstream};
use crate::tokens;

/// Smallest block that prompts are cut into, tokens. An engine's page can be a single token (SGLang's default), and with
/// blocks of 32 tokens deciding takes 5.3 us for 32 KB where those of 16 that vLLM has take 6.2 (`cargo bench --bench request
/// -- decide`), and the index half the memory, for 8 tokens of each prompt that are not known to be cached.
const MIN_BLOCK_TOKENS: u32 = 32;

/// Entries of restarted and removed backends that a tick takes out of the index, so that they go without requests too.
const SWEPT_ENTRIES: usize = 10_000;

/// All pools and their backends.
pub(super) struct Table {
    pub(super) state: Arc<State>,
    reports: mpsc::Sender<Report>,
    /// Of all tasks.
    connections: Connections,
    next_id: BackendId,
    generation: u64,
    pub(super) pools: Vec<PoolEntry>,
    /// Removed backends that a request may still be at, or choose.
    leaving: Vec<(BackendLabels, Arc<Backend>)>,
    /// Names of removed pools whose backends are leaving.
    leaving_pools: Vec<Arc<str>>,
}

pub(super) struct PoolEntry {
    pub(super) config: config::Pool,
    pub(super) pool: Arc<Pool>,
    models: Vec<Arc<str>>,
    shadow: Option<Arc<Shadow>>,
    tokenizer: Option<Arc<tokens::Service>>,
    pub(super) backends: Vec<BackendEntry>,
    /// Those that a reload has removed, while they drain.
    pub(super) leaving: Vec<BackendEntry>,
}

pub(super) struct BackendEntry {
    id: BackendId,
    pub(super) config: config::Backend,
    pub(super) backend: Arc<Backend>,
    tls: Speaking,
    tenant: Tenant,
    probes: Probes,
    address: Option<SocketAddr>,
    /// Its drain, if it is to leave.
    pub(super) leaving: Option<Leaving>,
    /// A probe was refused since the last good one: the engine was down.
    was_refused: bool,
    /// It came back, and its next scrape will tell whether it is another process.
    is_unjudged: bool,
    engine: EngineState,
    sample: Option<EngineSample>,
    models: Arc<[ModelEntry]>,
    events: Followed,
    /// Why it is not known where its engine publishes its events.
    events_problem: Option<Arc<str>>,
    _tasks: Tasks,
}

// === impl Table ===

impl Table {
    /// Empty; `reports` is where the backends' tasks will report to.
    pub(super) fn new(state: Arc<State>, reports: mpsc::Sender<Report>) -> Self {
        Self {
            state,
            reports,
            connections: connections(),
            next_id: 0,
            generation: 0,
            pools: Vec::new(),
            leaving: Vec::new(),
            leaving_pools: Vec::new(),
        }
    }

    /// Makes the table what `config` says. Backends that stay keep all that is known of them; those that do not, drain.
    pub(super) fn apply(&mut self, config: &config::Config, tokenizers: &Tokenizers, tls: &tls::Store, now: Moment) {
        let mut old: HashMap<String, PoolEntry> =
            self.pools.drain(..).map(|pool| (pool.config.name.clone(), pool)).collect();
        for pool in &config.pools {
            let kept = old.remove(&pool.name);
            let entry = self.pool_entry(pool, kept, config.locality.bytes_per_token, tls, now);
            if pool.kv_events.enabled && pool.tokenizer.is_none() {
                log::warn!(
                    "pool {}: kv_events without a tokenizer: only prompts of token ids can be looked up in them",
                    pool.name
                );
            }
            let tokenizer = pool.tokenizer.as_ref().and_then(|settings| tokenizers.of(settings));
            self.pools.push(PoolEntry { tokenizer, ..entry });
        }
        for (_, pool) in old {
            // Requests for its models have no pool any more, so nothing can be kept for them.
            self.leaving_pools.push(Arc::clone(pool.pool.name()));
            self.remove(&pool.pool, pool.backends);
            self.remove(&pool.pool, pool.leaving);
        }
        let shadows = self.pools.iter().filter_map(|pool| Some((Arc::clone(pool.pool.name()), pool.shadow.clone()?)));
        self.state.shadows.store(Arc::new(shadows.collect()));
    }

    fn pool_entry(
        &mut self,
        config: &config::Pool,
        kept: Option<PoolEntry>,
        bytes_per_token: f64,
        tls: &tls::Store,
        now: Moment,
    ) -> PoolEntry {
        let (pool, shadow, mut old, watching_changed) = match kept {
            Some(kept) => {
                let has_changed = kept.config.health != config.health
                    || kept.config.metrics != config.metrics
                    || kept.config.api_key != config.api_key
                    || kept.config.kv_events.enabled != config.kv_events.enabled;
                let mut backends = kept.backends;
                backends.extend(kept.leaving);
                (kept.pool, kept.shadow, backends, has_changed)
            }
            None => (
                Arc::new(Pool::new(&*config.name, Scale::starting_at(config.block_tokens, bytes_per_token))),
                None,
                Vec::new(),
                false,
            ),
        };
        let new_shadow = || Arc::new(Shadow::new(Arc::clone(&self.state.shadow_memory)));
        let shadow = config.shadow.then(|| shadow.unwrap_or_else(new_shadow));
        let mut backends = Vec::with_capacity(config.backends.len());
        for backend in &config.backends {
            let tls = settings::tls(backend, tls);
            backends.push(match old.iter().position(|entry| entry.is_of(backend)) {
                Some(at) => {
                    let mut entry = old.swap_remove(at);
                    entry.put_back();
                    entry.config.tls.clone_from(&backend.tls);
                    if entry.tls.take(tls) || watching_changed {
                        self.watch_anew(&mut entry, config);
                    }
                    entry
                }
                None => {
                    let mut entry = self.backend_entry(backend, config, tls);
                    // A name that the operator drains stays drained, whatever else of it changes.
                    let named = old.iter().find(|old| old.config.name == backend.name);
                    entry.leaving = named.and_then(|old| old.leaving.clone()).filter(Leaving::is_asked_for);
                    entry
                }
            });
        }
        let leaving = self.let_go(&pool, old, config, now);
        self.state.metrics.introduce_pool(pool.name());
        let models = config.models.iter().map(|model| Arc::from(&**model)).collect();
        let entry = PoolEntry { config: config.clone(), pool, models, shadow, tokenizer: None, backends, leaving };
        entry.size_tenants(&self.state);
        entry
    }

    fn backend_entry(
        &mut self,
        config: &config::Backend,
        pool: &config::Pool,
        tls: Option<Arc<Upstream>>,
    ) -> BackendEntry {
        self.next_id += 1;
        let backend = Backend::new(&*config.name, settings::origin(&config.url));
        let labels = BackendLabels { pool: pool.name.as_str().into(), backend: Arc::clone(backend.name()) };
        self.state.metrics.introduce_backend(&labels);
        let watched = settings::watched(self.next_id, &self.connections, &backend, config, pool, tls.clone());
        BackendEntry {
            id: self.next_id,
            config: config.clone(),
            tls: Speaking::new(tls),
            tenant: self.state.index.join(0),
            probes: Probes::new(pool.health.rise.get(), pool.health.fall.get()),
            address: None,
            leaving: None,
            was_refused: false,
            is_unjudged: false,
            engine: EngineState::default(),
            sample: None,
            models: Arc::default(),
            events: Followed::start(Self::configured_sources(config, pool), &config.name, &self.state.events),
            events_problem: None,
            _tasks: Tasks::start(&watched, &self.reports),
            backend: Arc::new(backend),
        }
    }

    /// What the configuration says to follow; what it leaves open, the backend will be asked for.
    fn configured_sources(config: &config::Backend, pool: &config::Pool) -> Vec<Source> {
        let source = events::configured(config, &settings::origin(&config.url).host);
        source.into_iter().filter(|_| pool.kv_events.enabled).collect()
    }

    fn watch_anew(&self, entry: &mut BackendEntry, pool: &config::Pool) {
        entry.probes.set_thresholds(pool.health.rise.get(), pool.health.fall.get());
        if !pool.metrics.enabled {
            // Nothing will be compared with it.
            entry.sample = None;
        }
        let is_asked = pool.kv_events.enabled && entry.config.kv_events.is_none();
        let sources = Self::configured_sources(&entry.config, pool);
        if !is_asked && !entry.events.is_of(&sources) {
            entry.events = Followed::start(sources, &entry.config.name, &self.state.events);
        }
        entry.events_problem = None;
        let tls = entry.tls.upstream();
        let watched: Watched = settings::watched(entry.id, &self.connections, &entry.backend, &entry.config, pool, tls);
        entry._tasks = Tasks::start(&watched, &self.reports);
    }

    pub(super) fn remove(&mut self, pool: &Pool, backends: Vec<BackendEntry>) {
        for entry in backends {
            log::info!("backend {} of pool {} removed", entry.config.name, pool.name());
            self.state.index.leave(entry.tenant);
            self.leaving.push((entry.labels(pool), entry.backend));
        }
    }

    /// Applies a finding; whether the snapshot changes by it. Findings about removed backends are dropped.
    pub(super) fn observe(&mut self, report: Report) -> bool {
        let state = Arc::clone(&self.state);
        for pool in &mut self.pools {
            let entries = pool.backends.iter_mut().chain(&mut pool.leaving);
            if let Some(entry) = entries.into_iter().find(|entry| entry.id == report.backend) {
                let changes = entry.observe(report.finding, &state, &pool.pool);
                if changes {
                    pool.size_tenants(&state);
                }
                return changes;
            }
        }
        false
    }

    /// What follows from the passing of time: silence, drains, and the end of removed backends. Whether the snapshot changes
    /// by it.
    pub(super) fn tick(&mut self, now: Moment) -> bool {
        let is_changed = self.follow_drains(now);
        for pool in &self.pools {
            let settings = settings::ejection(&pool.config);
            for entry in pool.all() {
                let (load, ejection) = (entry.backend.load(), entry.backend.ejection());
                let silence = ejection.note_silence(load.stuck_for(now), &settings, now);
                let progress = ejection.note_progress(load.last_progress(), now);
                for transition in [silence, progress].into_iter().flatten() {
                    transition.log(entry.backend.name(), now);
                }
            }
        }
        self.state.index.sweep(SWEPT_ENTRIES);
        self.state.events.sweep(SWEPT_ENTRIES);
        self.forget_removed();
        is_changed
    }

    /// Drops the series of what was removed, once no request can add to them: the last snapshot that has a backend is
    /// gone. What has been added again under the same name keeps them.
    fn forget_removed(&mut self) {
        let (metrics, pools) = (&self.state.metrics, &self.pools);
        let pool_named = |name: &Arc<str>| pools.iter().find(|pool| pool.pool.name() == name);
        self.leaving.retain(|(labels, backend)| {
            let is_over = Arc::strong_count(backend) == 1;
            let is_back = pool_named(&labels.pool)
                .is_some_and(|pool| pool.backends.iter().any(|entry| entry.backend.name() == &labels.backend));
            if is_over && !is_back {
                metrics.forget(labels);
            }
            !is_over
        });
        let leaving = &self.leaving;
        self.leaving_pools.retain(|name| {
            let is_over = !leaving.iter().any(|(labels, _)| labels.pool == *name);
            if is_over && pool_named(name).is_none() {
                metrics.forget_pool(name);
            }
            !is_over
        });
    }

    /// The next snapshot.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.generation += 1;
        Snapshot::new(self.generation, self.pools.iter().map(|pool| pool.snapshot(&self.state)).collect())
    }
}

// === impl PoolEntry ===

impl PoolEntry {
    /// Its backends, those that leave behind those that stay.
    fn all(&self) -> impl Iterator<Item = &BackendEntry> {
        self.backends.iter().chain(&self.leaving)
    }

    /// Tokens that a prompt block stands for: the engines' block, or the smallest multiple that is not tiny.
    fn block_tokens(&self) -> NonZeroU32 {
        let reported = self.backends.iter().filter_map(|entry| entry.engine.block_tokens).min();
        let tokens = reported.unwrap_or(self.config.block_tokens);
        NonZeroU32::new(tokens.get() * MIN_BLOCK_TOKENS.div_ceil(tokens.get())).unwrap_or(tokens)
    }

    /// Cuts prompts into the engines' blocks, and gives each backend as much of the index as its engine can hold.
    pub(super) fn size_tenants(&self, state: &State) {
        let block_tokens = self.block_tokens();
        self.pool.scale().set_block_tokens(block_tokens);
        let block_tokens = u64::from(block_tokens.get());
        let capacity_blocks = |entry: &BackendEntry| {
            let tokens = entry.engine.capacity_tokens.map_or(u64::from(self.config.kv_tokens.get()), NonZeroU64::get);
            u32::try_from(tokens / block_tokens).unwrap_or(u32::MAX)
        };
        for entry in self.all() {
            state.index.set_capacity(entry.tenant, capacity_blocks(entry));
        }
        if let Some(shadow) = &self.shadow {
            let shadowed = self.all().map(|entry| ShadowBackend {
                identity: entry.backend.identity(),
                tenant: entry.tenant,
                capacity_blocks: capacity_blocks(entry),
            });
            shadow.set_backends(&shadowed.collect::<Vec<_>>(), settings::policy(&self.config).kind);
        }
    }

    fn snapshot(&self, state: &State) -> PoolSnapshot {
        PoolSnapshot {
            pool: Arc::clone(&self.pool),
            models: self.models.clone(),
            block_tokens: self.block_tokens(),
            policy: settings::policy(&self.config),
            ejection: settings::ejection(&self.config),
            retry: settings::retry(&state.config.load().retry),
            limits: settings::limits(&self.config),
            queue: settings::queue(&self.config),
            hedging: settings::hedging(&self.config),
            keep_alive: self.config.queue.keep_alive,
            priorities: settings::priorities(&self.config),
            timeouts: settings::timeouts(&self.config),
            credentials: settings::credentials(&self.config),
            holds_header: self.config.hold_header,
            session_header: self.config.session_header.clone(),
            tokenizer: self.tokenizer.clone(),
            credits: settings::credits(&self.config),
            silent_after: self.config.kv_events.silent_after,
            backends: self.all().map(BackendEntry::snapshot).collect(),
        }
    }
}
