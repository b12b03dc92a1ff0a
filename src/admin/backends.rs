//! GET /backends: what is known of each backend, for people and for scripts.

use serde::Serialize;

use crate::pool::{Admission, BackendSnapshot, DrainPhase, EventView, Fill, Health, PoolSnapshot};
use crate::queue::Priority;
use crate::state::State;
use crate::time::Moment;

/// All pools.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    generation: u64,
    is_draining: bool,
    pools: Vec<PoolReport>,
}

#[derive(Debug, Serialize)]
struct PoolReport {
    name: String,
    models: Vec<String>,
    policy: &'static str,
    block_tokens: u32,
    bytes_per_token: f64,
    queue: QueueReport,
    backends: Vec<BackendReport>,
}

/// What waits because all backends are full.
#[derive(Debug, Serialize)]
struct QueueReport {
    /// Requests, the most urgent first.
    high: usize,
    normal: usize,
    low: usize,
    bytes: u64,
    /// How long all of it will take, by how fast it moves; absent while that is not known.
    estimated_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct BackendReport {
    name: String,
    url: String,
    address: Option<String>,
    /// One of `starting`, `healthy`, `unhealthy`, `ejected`, `probing`, `draining`, `drained`.
    state: &'static str,
    is_draining: bool,
    /// How it leaves, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<DrainReport>,
    /// Whether it has as much as it is to have.
    is_full: bool,
    in_flight: u32,
    decoding: u32,
    pending_prefill_tokens: f64,
    prefill_tokens_per_second: f64,
    index_blocks: u32,
    index_generation: u32,
    /// What its locality is read from: `exact`, `assumed` or `load_only`.
    trust: &'static str,
    stuck_seconds: f64,
    /// What the engine tells of its cache, a source for each; empty if it is not asked to.
    kv_events: Vec<EventReport>,
    /// Why it is not known where the engine tells that.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_events_problem: Option<String>,
    engine: EngineReport,
}

/// The drain of a backend.
#[derive(Debug, Serialize)]
struct DrainReport {
    /// One of `operator`, `removed`.
    cause: &'static str,
    /// One of `conversations`, `emptying`, `drained`.
    phase: &'static str,
    since_seconds: f64,
    /// Until the deadline; 0 once it is over.
    deadline_seconds: f64,
    /// Sent there since it began.
    requests: u64,
}

/// One source of KV events.
#[derive(Debug, Serialize)]
struct EventReport {
    endpoint: String,
    /// One of `connecting`, `replaying`, `live`, `failed`.
    state: &'static str,
    /// Why the last connection or replay failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    blocks: u64,
    block_tokens: Option<u32>,
    last_seq: Option<u64>,
    messages: u64,
    gaps: u64,
    replays: u64,
    restarts: u64,
    clears: u64,
    undecodable: u64,
    age_seconds: Option<f64>,
}

/// What the engine said; absent where it said nothing.
#[derive(Debug, Serialize)]
struct EngineReport {
    running: Option<u32>,
    waiting: Option<u32>,
    kv_usage: Option<f64>,
    block_tokens: Option<u32>,
    capacity_tokens: Option<u64>,
    max_running: Option<u32>,
    age_seconds: Option<f64>,
}

/// Everything, as of `now`.
pub(super) fn report(state: &State, now: Moment) -> Report {
    let snapshot = state.snapshot.load();
    Report {
        generation: snapshot.generation(),
        is_draining: state.lifecycle.is_draining(),
        pools: snapshot.pools().iter().map(|pool| pool_report(state, pool, now)).collect(),
    }
}

/// The one word for a backend's availability: the reason that weighs most.
pub(super) fn state_of(state: &State, backend: &BackendSnapshot, now: Moment) -> &'static str {
    match (backend.health, backend.backend.ejection().admission(now)) {
        _ if backend.drain.is_some() => match backend.drain_phase(&state.index, now) {
            Some(DrainPhase::Drained) => "drained",
            _ => "draining",
        },
        (Health::Starting, _) => "starting",
        (Health::Unhealthy, _) => "unhealthy",
        (Health::Healthy, Admission::Open) => "healthy",
        (Health::Healthy, Admission::Probe | Admission::Closed { until: None }) => "probing",
        (Health::Healthy, Admission::Closed { until: Some(_) }) => "ejected",
    }
}

fn pool_report(state: &State, pool: &PoolSnapshot, now: Moment) -> PoolReport {
    PoolReport {
        name: pool.pool.name().to_string(),
        models: pool.models.iter().map(ToString::to_string).collect(),
        policy: pool.policy.kind.name(),
        block_tokens: pool.block_tokens.get(),
        bytes_per_token: pool.pool.scale().bytes_per_token(),
        queue: queue_report(pool, now),
        backends: pool.backends.iter().map(|backend| backend_report(state, pool, backend, now)).collect(),
    }
}

fn queue_report(pool: &PoolSnapshot, now: Moment) -> QueueReport {
    let line = pool.pool.line();
    let stats = line.stats(now);
    let [high, normal, low] = stats.requests;
    let estimated_seconds = line.estimate(Priority::Low, now).map(|time| time.as_secs_f64());
    QueueReport { high, normal, low, bytes: stats.bytes, estimated_seconds }
}

fn backend_report(state: &State, pool: &PoolSnapshot, backend: &BackendSnapshot, now: Moment) -> BackendReport {
    let load = backend.backend.load();
    let view = load.view(now);
    let origin = backend.backend.origin();
    let scheme = if origin.is_tls { "https" } else { "http" };
    BackendReport {
        name: backend.backend.name().to_string(),
        url: format!("{scheme}://{}", origin.authority()),
        address: backend.address.map(|address| address.to_string()),
        state: state_of(state, backend, now),
        is_draining: backend.drain.is_some(),
        drain: drain_report(state, backend, now),
        is_full: pool.fill(backend, now) != Fill::Room,
        in_flight: view.in_flight,
        decoding: view.decoding,
        pending_prefill_tokens: view.pending_work,
        prefill_tokens_per_second: pool.rate().for_backend(view.rate),
        index_blocks: state.index.tenant_blocks(backend.tenant),
        index_generation: backend.tenant.generation,
        trust: backend.trust().name(),
        stuck_seconds: load.stuck_for(now).as_secs_f64(),
        kv_events: backend.feeds.iter().map(|view| event_report(view, now)).collect(),
        kv_events_problem: backend.feeds_problem.as_deref().map(str::to_owned),
        engine: engine_report(backend, now),
    }
}

fn drain_report(state: &State, backend: &BackendSnapshot, now: Moment) -> Option<DrainReport> {
    let (drain, phase) = (backend.drain.as_ref()?, backend.drain_phase(&state.index, now)?);
    Some(DrainReport {
        cause: drain.cause().name(),
        phase: phase.name(),
        since_seconds: now.since(drain.since()).as_secs_f64(),
        deadline_seconds: drain.deadline().since(now).as_secs_f64(),
        requests: drain.requests(),
    })
}

fn event_report(view: &EventView, now: Moment) -> EventReport {
    let (status, tenant) = (view.watch.get(), view.feed.tenant());
    EventReport {
        endpoint: view.endpoint.to_string(),
        state: status.state.as_str(),
        reason: status.reason.or(status.replay_reason),
        blocks: tenant.blocks(),
        block_tokens: tenant.block_tokens().map(std::num::NonZero::get),
        last_seq: status.counts.last_seq,
        messages: status.counts.messages,
        gaps: status.counts.gaps,
        replays: status.counts.replays,
        restarts: status.counts.restarts,
        clears: status.counts.clears,
        undecodable: status.counts.undecodable,
        age_seconds: status.last_message.map(|at| now.since(at).as_secs_f64()),
    }
}

fn engine_report(backend: &BackendSnapshot, now: Moment) -> EngineReport {
    let engine = &backend.engine;
    EngineReport {
        running: engine.polled.map(|polled| polled.running),
        waiting: engine.polled.map(|polled| polled.waiting),
        kv_usage: engine.polled.and_then(|polled| polled.kv_usage),
        block_tokens: engine.block_tokens.map(std::num::NonZero::get),
        capacity_tokens: engine.capacity_tokens.map(std::num::NonZero::get),
        max_running: engine.max_running.map(std::num::NonZero::get),
        age_seconds: engine.polled.map(|polled| now.since(polled.observed_at).as_secs_f64()),
    }
}
