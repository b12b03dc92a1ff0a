//! One router of a simulated fleet: the proxy's decision and accounting, without the proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use super::setup::{Contender, Locality, Setup};
use super::workload::Turn;
use crate::locality::{InFlightBlocks, LocalityIndex, Matches};
use crate::pool::{
    Answer, Backend, BackendSnapshot, CostModel, EngineState, Health, InFlight, Origin, OtherRouters, Policy, Polled,
    Pool, PoolSnapshot,
};
use crate::prefix::Scale;
use crate::queue::{Line, Room, Wants};
use crate::routing::{Candidate, Decision, Deferred, Dispatched, NoBackend, Outlook, Query, dispatch, prefix_key};
use crate::sim::engine::{Engine, Load};
use crate::time::Moment;

/// The index's memory: never the limit here, as engines' caches are.
const INDEX_BYTES: usize = 4 << 30;

/// How old a reading of an engine may be; they are taken each second.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// A router with its own view of the fleet.
pub(super) struct Router {
    pool: PoolSnapshot,
    block_tokens: NonZeroU32,
    locality: Locality,
    index: Arc<LocalityIndex>,
    matches: Matches,
    rng: fastrand::Rng,
    engine: EngineState,
    capacity_blocks: u32,
}

/// What came of a look for a backend.
pub(super) enum Look {
    /// One that has room, with the request accounted for there.
    Found(Box<Routed>),
    /// None that would do has room.
    Full(Full),
    /// There is one, and the request is to wait nevertheless.
    Deferred(Deferred),
    /// None would do.
    None,
}

/// How a request stands that finds no room.
#[derive(Debug, Clone, Copy)]
pub(super) struct Full {
    pub(super) outlook: Outlook,
    pub(super) wants: Wants,
}

/// A request on its way to a backend. Dropping it undoes that.
pub(super) struct Routed {
    pub(super) decision: Decision,
    pub(super) in_flight: InFlight,
    blocks: InFlightBlocks,
}

// === impl Router ===

impl Router {
    /// A router that knows of no backend yet.
    pub(super) fn new(contender: Contender, setup: &Setup, block_tokens: NonZeroU32, seed: u64) -> Self {
        let engine = &setup.engine;
        let timing = &engine.timing;
        let growth = timing.prefill_seconds_per_token_squared / timing.prefill_seconds_per_token.max(f64::MIN_POSITIVE);
        let cost = CostModel { work_per_context_token: growth, ..CostModel::with_deferral(setup.max_defer.is_some()) };
        let pool = PoolSnapshot {
            limits: setup.limits,
            policy: Policy { kind: contender.policy(), cost, stale_after: STALE_AFTER },
            ..PoolSnapshot::new(Arc::new(Pool::new("simulated", Scale::new(block_tokens))))
        };
        let capacity_tokens = u64::from(engine.kv_blocks) * u64::from(block_tokens.get());
        Self {
            pool,
            block_tokens,
            locality: contender.locality(setup),
            index: Arc::new(LocalityIndex::new(INDEX_BYTES, seed)),
            matches: Matches::new(),
            rng: fastrand::Rng::with_seed(seed),
            engine: EngineState {
                block_tokens: Some(block_tokens),
                capacity_tokens: NonZeroU64::new(capacity_tokens),
                max_running: NonZeroU32::new(u32::try_from(engine.max_num_seqs).unwrap_or(u32::MAX)),
                polled: None,
            },
            capacity_blocks: engine.kv_blocks,
        }
    }

    /// A healthy backend that is new to this router.
    pub(super) fn add_backend(&mut self) {
        let place = self.pool.backends.len();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let origin = Origin { is_tls: false, host: "simulated".into(), port: 1 };
        let backend = Arc::new(Backend::new(format!("backend-{place}"), origin));
        self.pool.backends.push(BackendSnapshot {
            address: Some(address),
            health: Health::Healthy,
            engine: self.engine,
            ..BackendSnapshot::new(backend, self.index.join(self.capacity_blocks))
        });
    }

    /// Looks for a backend for a request that was at those of `tried` before.
    pub(super) fn route(
        &mut self,
        turn: &Turn,
        session_key: Option<u64>,
        tried: &[usize],
        may_be_deferred: bool,
        engines: &[Engine],
        now: Moment,
    ) -> Look {
        let blocks = turn.prompt_blocks(self.block_tokens);
        let query = Query {
            prompt_tokens: turn.prompt_tokens,
            turn: 0,
            session_key,
            prefix_key: prefix_key(blocks, self.block_tokens),
            owner: None,
            may_be_deferred,
        };
        self.index.lookup(blocks, &mut self.matches);
        let matched = |(backend, engine): (&BackendSnapshot, &Engine)| {
            let believed = self.matches.blocks(backend.tenant);
            let known = match self.locality {
                Locality::Assumed => 0,
                Locality::Exact => engine.matched_blocks(blocks) as u32,
            };
            believed.max(known).saturating_mul(self.block_tokens.get())
        };
        let matched: Vec<u32> = self.pool.backends.iter().zip(engines).map(matched).collect();
        match dispatch(&self.pool, &query, &matched, tried, Answer::Streamed, now, &mut self.rng) {
            Ok(Dispatched { decision, in_flight, .. }) => {
                let tenant = self.pool.backends[decision.index].tenant;
                Look::Found(Box::new(Routed { decision, in_flight, blocks: self.index.begin(tenant, blocks.into()) }))
            }
            Err(NoBackend { deferred: Some(deferred), .. }) => Look::Deferred(deferred),
            Err(NoBackend { full, .. }) if full.is_empty() => Look::None,
            Err(NoBackend { full, .. }) => Look::Full(self.full(&query, &full, now)),
        }
    }

    fn full(&self, query: &Query, full: &[Candidate], now: Moment) -> Full {
        let policy = &self.pool.policy;
        let outlook = Outlook::of(&policy.cost, &self.pool.limits, query, full, now);
        let warmest = outlook.warmest.filter(|_| policy.kind.goes_by_locality());
        Full { outlook, wants: warmest.map_or(Wants::Any, |warmest| Wants::Rather(self.identity(warmest))) }
    }

    /// The requests that wait for room.
    pub(super) fn line(&self) -> &Arc<Line> {
        self.pool.pool.line()
    }

    /// The requests that wait because their prefill is long.
    pub(super) fn deferred(&self) -> &Arc<Line> {
        self.pool.pool.deferred()
    }

    /// There may be more room at a backend.
    pub(super) fn stir(&self, backend: usize) {
        self.pool.pool.stir(Room::At(self.identity(backend)));
    }

    /// There may be more room anywhere.
    pub(super) fn stir_all(&self) {
        self.pool.pool.stir(Room::Anywhere);
    }

    fn identity(&self, backend: usize) -> u64 {
        self.pool.backends[backend].backend.identity()
    }

    /// The first token came: the engine has computed the prompt.
    pub(super) fn first_token(&self, routed: Routed, now: Moment) -> InFlight {
        let Routed { mut in_flight, blocks, .. } = routed;
        in_flight.first_token(now);
        match self.locality {
            Locality::Assumed => blocks.commit(),
            // The engine says itself what it holds.
            Locality::Exact => drop(blocks),
        }
        in_flight
    }

    /// The engine is gone, and its cache with it.
    pub(super) fn lose(&mut self, backend: usize) {
        let entry = &mut self.pool.backends[backend];
        entry.health = Health::Unhealthy;
        entry.tenant = self.index.restart(entry.tenant);
    }

    /// The engine is back.
    pub(super) fn regain(&mut self, backend: usize) {
        self.pool.backends[backend].health = Health::Healthy;
    }

    /// A reading of the engine's gauges.
    pub(super) fn observe(&mut self, backend: usize, load: &Load, total_blocks: u32, now: Moment) {
        self.pool.backends[backend].engine.polled = Some(Polled {
            running: load.running as u32,
            waiting: load.waiting as u32,
            kv_usage: Some(f64::from(load.held_blocks) / f64::from(total_blocks.max(1))),
            observed_at: now,
        });
    }

    /// Everything that it holds for requests: pending work, decoding requests and claimed blocks.
    #[cfg(test)]
    pub(super) fn held(&self, now: Moment) -> u64 {
        let shares = self.shares(now);
        let loads = shares.iter().map(|share| share.pending_work.ceil() as u64 + u64::from(share.decoding));
        loads.sum::<u64>() + self.index.stats().overlay_blocks
    }

    /// What it has in flight at each backend.
    pub(super) fn shares(&self, now: Moment) -> Vec<OtherRouters> {
        let share = |entry: &BackendSnapshot| {
            let load = entry.backend.load().view(now);
            OtherRouters {
                pending_work: load.pending_work,
                decoding: load.decoding,
                in_flight: load.in_flight,
                prompt_tokens: load.prompt_tokens,
            }
        };
        self.pool.backends.iter().map(share).collect()
    }

    /// Takes over what the others have in flight, by backend.
    pub(super) fn hear(&mut self, others: &[OtherRouters]) {
        for (entry, others) in self.pool.backends.iter_mut().zip(others) {
            entry.others = *others;
        }
    }
}
