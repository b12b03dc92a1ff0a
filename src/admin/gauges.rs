//! Gauges read at scrape time from the published snapshot and from what requests have taken.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::connections::Refusal;
use crate::downstream::Fault;
use crate::metrics::{BackendLabels, PoolLabels, PriorityLabels};
use crate::pool::{Admission, BackendSnapshot, DrainPhase, Fill, Health, PoolSnapshot, Snapshot};
use crate::queue::Priority;
use crate::state::State;
use crate::time::{self, Moment};

/// A collector over the shared state.
pub struct Gauges(Arc<State>);

/// A gauge of each backend: name, help, value (absent where it is not known).
type BackendGauge = (&'static str, &'static str, fn(&PoolSnapshot, &BackendSnapshot, Moment) -> Option<f64>);

const BACKEND_GAUGES: [BackendGauge; 12] = [
    ("backend_up", "1 while the backend can take requests: healthy, not ejected, not draining", |_, backend, now| {
        Some(f64::from(u8::from(is_up(backend, now))))
    }),
    (
        "backend_full",
        "1 while the backend has as much as it is to have, so that others or the queue get the rest",
        |pool, backend, now| Some(f64::from(u8::from(pool.fill(backend, now) != Fill::Room))),
    ),
    ("in_flight_requests", "Requests sent to the backend and not ended", |_, backend, _| {
        Some(f64::from(backend.backend.load().in_flight()))
    }),
    ("decoding_requests", "Requests in flight that are past their first token", |_, backend, now| {
        Some(f64::from(backend.backend.load().view(now).decoding))
    }),
    ("pending_prefill_tokens", "Prefill work of requests in flight before their first token", |_, backend, now| {
        Some(backend.backend.load().view(now).pending_work)
    }),
    ("prefill_tokens_per_second", "Prefill rate that decisions use, learned", |pool, backend, _| {
        Some(pool.rate().for_backend(backend.backend.load().rate()))
    }),
    (
        "backend_trust_level",
        "What locality is read from: 2 the engine's KV events, 1 own decisions, 0 nothing",
        |_, backend, _| Some(f64::from(backend.trust() as u8)),
    ),
    ("engine_running_requests", "Requests in the engine's batch, as scraped", |_, backend, _| {
        backend.engine.polled.map(|polled| f64::from(polled.running))
    }),
    ("engine_waiting_requests", "Requests that wait inside the engine, as scraped", |_, backend, _| {
        backend.engine.polled.map(|polled| f64::from(polled.waiting))
    }),
    ("engine_kv_usage_ratio", "Share of KV blocks held by live requests, as scraped", |_, backend, _| {
        backend.engine.polled.and_then(|polled| polled.kv_usage)
    }),
    ("engine_kv_capacity_tokens", "Size of the engine's KV cache, as scraped", |_, backend, _| {
        backend.engine.capacity_tokens.map(|tokens| tokens.get() as f64)
    }),
    ("engine_metrics_age_seconds", "Age of the scraped values", |_, backend, now| {
        backend.engine.polled.map(|polled| now.since(polled.observed_at).as_secs_f64())
    }),
];

// === impl Gauges ===

impl Gauges {
    /// Reads from `state`.
    pub fn new(state: Arc<State>) -> Self {
        Self(state)
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = &self.0;
        let snapshot = state.snapshot.load();
        encode_backends(&mut encoder, state, &snapshot, time::now())?;
        encode_drains(&mut encoder, state, &snapshot, time::now())?;
        encode_pools(&mut encoder, &snapshot)?;
        encode_queues(&mut encoder, &snapshot)?;
        encode_refused(&mut encoder, state)?;
        encode_faults(&mut encoder, state)?;
        let index = state.index.stats();
        for (name, help, value) in [
            ("index_bytes", "Memory of the locality index, as counted against its budget", index.bytes as f64),
            ("index_budget_bytes", "The budget of the locality index", index.budget_bytes as f64),
            ("index_blocks", "Blocks believed held, over all backends", index.blocks as f64),
            ("index_runs", "Runs of blocks in the index", index.runs as f64),
            (
                "shadow_index_bytes",
                "Memory of the shadows' locality index, as counted against its budget",
                state.shadow_memory.used_bytes() as f64,
            ),
            (
                "buffered_body_bytes",
                "Request bodies held, as counted against their budget",
                state.bodies.used_bytes() as f64,
            ),
            ("connections", "Connections of clients", f64::from(state.connections.open())),
            ("requests_in_service", "Requests that have begun and not ended", state.lifecycle.requests() as f64),
            ("snapshot_generation", "Number of the published snapshot", snapshot.generation() as f64),
            ("draining", "1 while the process winds down", f64::from(u8::from(state.lifecycle.is_draining()))),
        ] {
            encode_one(&mut encoder, name, help, value)?;
        }
        Ok(())
    }
}

fn encode_backends(
    encoder: &mut DescriptorEncoder<'_>,
    state: &State,
    snapshot: &Snapshot,
    now: Moment,
) -> fmt::Result {
    for (name, help, value) in BACKEND_GAUGES {
        encode_each(
            encoder,
            name,
            help,
            each_backend(snapshot).filter_map(|(labels, pool, backend)| Some((labels, value(pool, backend, now)?))),
        )?;
    }
    encode_each(
        encoder,
        "backend_index_blocks",
        "Blocks believed held by the backend",
        each_backend(snapshot)
            .map(|(labels, _, backend)| (labels, f64::from(state.index.tenant_blocks(backend.tenant)))),
    )
}

/// Whether it is healthy, not ejected or probed, and not draining.
fn is_up(backend: &BackendSnapshot, now: Moment) -> bool {
    let is_admitted = backend.backend.ejection().admission(now) == Admission::Open;
    backend.drain.is_none() && backend.health == Health::Healthy && is_admitted
}

/// How the drains of backends stand.
fn encode_drains(encoder: &mut DescriptorEncoder<'_>, state: &State, snapshot: &Snapshot, now: Moment) -> fmt::Result {
    let phase = |backend: &BackendSnapshot| {
        backend.drain_phase(&state.index, now).map_or(0.0, |phase| match phase {
            DrainPhase::Conversations => 1.0,
            DrainPhase::Emptying => 2.0,
            DrainPhase::Drained => 3.0,
        })
    };
    encode_each(
        encoder,
        "backend_drain_phase",
        "0 while the backend stays; draining: 1 while its conversations may go on, 2 while it empties, 3 when it is empty",
        each_backend(snapshot).map(|(labels, _, backend)| (labels, phase(backend))),
    )?;
    let left = |backend: &BackendSnapshot| Some(backend.drain.as_ref()?.deadline().since(now).as_secs_f64());
    encode_each(
        encoder,
        "backend_drain_deadline_seconds",
        "Time that conversations may still go on at a draining backend",
        each_backend(snapshot).filter_map(|(labels, _, backend)| Some((labels, left(backend)?))),
    )
}

fn encode_refused(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let help = "Connections of clients that were closed at once, by the limit in the way";
    let mut metric = encoder.encode_descriptor("connections_refused", help, None, MetricType::Counter)?;
    for refusal in Refusal::ALL {
        let count = ConstCounter::new(state.connections.refused(refusal));
        count.encode(metric.encode_family(&[("limit", refusal.name())])?)?;
    }
    Ok(())
}

fn encode_faults(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let help = "Messages of clients that were refused before they were requests, by what is wrong with them";
    let mut metric = encoder.encode_descriptor("malformed_messages", help, None, MetricType::Counter)?;
    for fault in Fault::ALL {
        let count = ConstCounter::new(state.faults.count(fault));
        count.encode(metric.encode_family(&[("fault", fault.name())])?)?;
    }
    Ok(())
}

fn encode_pools(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    encode_each(
        encoder,
        "bytes_per_token",
        "Prompt bytes that make a token, learned",
        snapshot
            .pools()
            .iter()
            .map(|pool| (PoolLabels { pool: Arc::clone(pool.pool.name()) }, pool.pool.scale().bytes_per_token())),
    )
}

fn encode_queues(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let now = time::now();
    let stats: Vec<_> =
        snapshot.pools().iter().map(|pool| (Arc::clone(pool.pool.name()), pool.pool.line().stats(now))).collect();
    let requests = stats.iter().flat_map(|(pool, stats)| {
        Priority::ALL.into_iter().zip(stats.requests).map(|(priority, requests)| {
            (PriorityLabels { pool: Arc::clone(pool), priority: priority.name() }, requests as f64)
        })
    });
    encode_each(encoder, "queued_requests", "Requests that wait because every backend is full", requests)?;
    let bytes = stats.iter().map(|(pool, stats)| (PoolLabels { pool: Arc::clone(pool) }, stats.bytes as f64));
    encode_each(encoder, "queued_bytes", "Bytes of their bodies", bytes)?;
    let deferred = snapshot.pools().iter().map(|pool| {
        let requests: usize = pool.pool.deferred().stats(now).requests.iter().sum();
        (PoolLabels { pool: Arc::clone(pool.pool.name()) }, requests as f64)
    });
    encode_each(encoder, "deferred_requests", "Requests that wait because their prefill is long", deferred)
}

pub(super) fn each_backend(
    snapshot: &Snapshot,
) -> impl Iterator<Item = (BackendLabels, &PoolSnapshot, &BackendSnapshot)> {
    snapshot.pools().iter().flat_map(|pool| {
        pool.backends.iter().map(move |backend| {
            let labels =
                BackendLabels { pool: Arc::clone(pool.pool.name()), backend: Arc::clone(backend.backend.name()) };
            (labels, pool, backend)
        })
    })
}

pub(super) fn encode_each<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

pub(super) fn encode_one(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
