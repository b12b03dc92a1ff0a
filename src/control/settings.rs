//! From the checked configuration, and from what engines report, to the plain data of pools.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::engine::EngineSample;
use super::probe::{BackendId, Watched};
use crate::client::Connections;
use crate::config;
use crate::pool::{
    Backend, CostModel, Credentials, EjectionSettings, EngineState, Hedging, InFlightLimit, Limits, Origin, Policy,
    PolicyKind, Polled, Priorities, RetrySettings, TierCredits, Timeouts,
};
use crate::queue::QueueSettings;
use crate::time::Moment;
use crate::tls::{self, Upstream};

/// Second attempts a second that a pool with next to no requests may make.
const HEDGES_PER_SECOND: f64 = 0.1;

pub(super) fn origin(url: &config::BackendUrl) -> Origin {
    let host = match &url.host {
        config::Host::Ip(ip) => ip.to_string(),
        config::Host::Name(name) => name.clone(),
    };
    Origin { is_tls: url.scheme == config::Scheme::Https, host: host.into(), port: url.port.get() }
}

/// How a backend is spoken to; none if it is not over TLS.
pub(super) fn tls(backend: &config::Backend, store: &tls::Store) -> Option<Arc<Upstream>> {
    let is_tls = backend.url.scheme == config::Scheme::Https;
    is_tls.then(|| store.upstream(&backend.tls)).flatten()
}

pub(super) fn watched(
    id: BackendId,
    connections: &Connections,
    backend: &Backend,
    config: &config::Backend,
    pool: &config::Pool,
    tls: Option<Arc<Upstream>>,
) -> Watched {
    Watched {
        id,
        connections: Arc::clone(connections),
        origin: backend.origin().clone(),
        tls,
        health: pool.health.clone(),
        metrics: pool.metrics.clone(),
        api_key: pool.api_key.clone(),
        rank: config.rank,
        tells_max_running: pool.engine == config::Engine::Sglang,
        is_asked_for_events: pool.kv_events.enabled && config.kv_events.is_none(),
    }
}

pub(super) fn policy(pool: &config::Pool) -> Policy {
    let overload_factor = pool.overload_factor;
    let kind = match pool.policy {
        config::Policy::Cost => PolicyKind::Cost,
        config::Policy::LocalityFirst => PolicyKind::LocalityFirst { overload_factor },
        config::Policy::PrefixAffinity => PolicyKind::PrefixAffinity,
        config::Policy::ConsistentHash => PolicyKind::ConsistentHash { overload_factor },
        config::Policy::LeastRequest => PolicyKind::LeastRequest,
        config::Policy::PowerOfTwo => PolicyKind::PowerOfTwo,
        config::Policy::RoundRobin => PolicyKind::RoundRobin,
        config::Policy::Random => PolicyKind::Random,
    };
    let cost = CostModel {
        work_per_context_token: pool.quadratic_cost,
        ..CostModel::with_deferral(pool.queue.max_defer.is_some())
    };
    Policy { kind, cost, stale_after: pool.metrics.stale_after }
}

pub(super) fn credits(pool: &config::Pool) -> TierCredits {
    TierCredits { cpu: pool.kv_events.cpu_credit, disk: pool.kv_events.disk_credit }
}

pub(super) fn credentials(pool: &config::Pool) -> Credentials {
    if pool.forward_credentials {
        return Credentials::Callers;
    }
    Credentials::Own(pool.api_key.as_ref().and_then(crate::client::bearer))
}

pub(super) fn ejection(pool: &config::Pool) -> EjectionSettings {
    let config::Ejection { failures, base, max, stuck_after } = pool.ejection;
    EjectionSettings { failures, base, max, stuck_after }
}

pub(super) fn retry(retry: &config::Retry) -> RetrySettings {
    // Without a share there are none: the floor is for pools with few requests, not for those without retries.
    if retry.budget == 0.0 {
        return RetrySettings { share: 0.0, floor_per_second: 0.0 };
    }
    RetrySettings { share: retry.budget, ..RetrySettings::default() }
}

pub(super) fn limits(pool: &config::Pool) -> Limits {
    let in_flight = match pool.max_in_flight {
        config::MaxInFlight::Auto => InFlightLimit::Auto,
        config::MaxInFlight::Unlimited => InFlightLimit::Unlimited,
        config::MaxInFlight::Requests(most) => InFlightLimit::Requests(most),
    };
    Limits { in_flight, max_pending_prefill: pool.max_pending_prefill }
}

pub(super) fn queue(pool: &config::Pool) -> QueueSettings {
    let config::Queue { max_requests, max_bytes, max_wait, max_defer, .. } = pool.queue;
    QueueSettings { max_requests, max_bytes, max_wait, max_defer }
}

pub(super) fn hedging(pool: &config::Pool) -> Option<Hedging> {
    // What is unspent fades, so that a pool with a request now and then would never have a whole one.
    let floor_per_second = if pool.hedging.budget > 0.0 { HEDGES_PER_SECOND } else { 0.0 };
    let budget = RetrySettings { share: pool.hedging.budget, floor_per_second };
    Some(Hedging { after: pool.hedging.after?, budget })
}

pub(super) fn priorities(pool: &config::Pool) -> Priorities {
    Priorities { header: pool.queue.priority_header.clone(), by_field: pool.queue.priority_field }
}

pub(super) fn timeouts(pool: &config::Pool) -> Timeouts {
    let config::Timeouts { connect, first_token, between_tokens, read, write, total } = pool.timeouts;
    Timeouts { connect, first_token, between_tokens, read, write, total, keepalive_idle: pool.keepalive_idle }
}

/// What a scrape makes of what was known; geometry that it does not mention stays.
pub(super) fn engine_state(sample: &EngineSample, known: &EngineState, now: Moment) -> EngineState {
    let count = |value: Option<f64>| value.map(|value| value.clamp(0.0, f64::from(u32::MAX)) as u32);
    let polled = count(sample.running).map(|running| Polled {
        running,
        waiting: count(sample.waiting).unwrap_or(0),
        kv_usage: sample.kv_usage,
        observed_at: now,
    });
    EngineState {
        block_tokens: sample.block_tokens.and_then(NonZeroU32::new).or(known.block_tokens),
        capacity_tokens: sample.capacity_tokens.and_then(NonZeroU64::new).or(known.capacity_tokens),
        max_running: known.max_running,
        polled: polled.or(known.polled),
    }
}
