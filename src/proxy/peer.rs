//! Chooses a backend for an attempt, and says how to connect to it.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::Result;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::Session;

use super::context::{Answer, Attempt, RequestContext, Route, TakenRoom};
use super::reject::Reject;
use super::waiting::{self, Found};
use super::{callers, linger};
use crate::metrics::BackendLabels;
use crate::pool::{BackendSnapshot, Prediction};
use crate::routing::{self, Detour, Dispatched, Exclusion, NoBackend, Pass, Query};
use crate::shadow::{Replay, ShadowInFlight};
use crate::state::State;
use crate::time::{self, Moment};

/// Chooses, accounts for the choice and returns where to connect.
pub(super) async fn choose(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<Box<HttpPeer>> {
    // Gives back what a failed attempt had taken, and forgets its answer: nothing of it was sent on.
    ctx.attempt = None;
    ctx.answer = Answer::default();
    let Found { matched, dispatched, started } = waiting::find(state, session, ctx).await?;
    let Some(route) = &mut ctx.route else { return Err(ctx.refuse(Reject::Internal)) };
    let prediction = matched.predictions[dispatched.decision.index];
    let matched_tokens = u64::from(dispatched.decision.matched_tokens);
    if ctx.attempts == 0
        && let Err(limited) = callers::charge_uncached(&mut ctx.charge, &route.plan, matched_tokens, started)
    {
        // The room goes to one that waits.
        drop(attempt(state, route, dispatched, prediction));
        return Err(ctx.refuse(limited.into()));
    }
    route.decision_micros = time::now().since(started).as_micros().try_into().unwrap_or(u64::MAX);
    ctx.attempts += 1;
    if ctx.attempts == 1 {
        let pool = route.pool();
        pool.pool.retry_budget().note_request(&pool.retry, started);
        ctx.shadow = replay(state, route, &dispatched, started);
    }
    count(state, route, &dispatched);
    let mut peer = peer(route, dispatched.decision.index);
    if let Some(peer) = peer.as_mut().filter(|_| ctx.was_stale) {
        // Where one pooled connection was closed others may be: a group of its own has none, and keeps none.
        peer.group_key = fastrand::u64(1..);
        peer.options.idle_timeout = Some(Duration::ZERO);
    }
    ctx.attempt = Some(attempt(state, route, dispatched, prediction));
    peer.ok_or_else(|| ctx.refuse(Reject::Internal))
}

/// Whether a backend that was not tried could take the request. One that is out only where the last one `refused` the
/// connection, so that no answer is given up for it, or where all are out.
pub(super) fn is_another(route: &Route, tried: &[usize], refused: bool) -> bool {
    let pool = route.pool();
    let unmatched = vec![0; pool.backends.len()];
    let filtered = routing::candidates(pool, &route.plan.query_in(pool), &unmatched, tried, time::now());
    match filtered.pass {
        Pass::Normal | Pass::Draining => true,
        Pass::FailOpen => refused || !filtered.excluded.iter().any(|(_, why)| *why == Exclusion::Tried),
        Pass::None => false,
    }
}

/// Chooses a backend that has room and accounts for the choice.
pub(super) fn dispatch(
    route: &Route,
    matched: &[u32],
    tried: &[usize],
    may_be_deferred: bool,
) -> Result<Dispatched, NoBackend> {
    let (pool, plan) = (route.pool(), &route.plan);
    let (query, answer, now) = (plan.query_in(pool), plan.answer(), time::now());
    let mut rng = fastrand::Rng::new();
    if let Some(only) = owner(route, tried) {
        // Tried first where it can serve at all; if not, another may still know what to answer.
        let others: Vec<usize> = (0..pool.backends.len()).filter(|&index| index != only).collect();
        match routing::dispatch(pool, &query, matched, &others, answer, now, &mut rng) {
            Ok(dispatched) if dispatched.decision.index == only => return Ok(dispatched),
            // It can, and will.
            Err(none) if none.full.iter().any(|full| full.index == only) => return Err(none),
            _ => {}
        }
    }
    let query = Query { may_be_deferred, ..query };
    routing::dispatch(pool, &query, matched, tried, answer, now, &mut rng)
}

/// The backend that has what the request refers to, unless it was tried.
pub(super) fn owner(route: &Route, tried: &[usize]) -> Option<usize> {
    route.plan.query_in(route.pool()).owner.filter(|only| !tried.contains(only))
}

fn count(state: &State, route: &Route, dispatched: &Dispatched) {
    let pool = route.pool().pool.name();
    if dispatched.decision.is_spill {
        state.metrics.spilled(pool);
    }
    if dispatched.pass == Pass::FailOpen {
        state.metrics.failed_open(pool);
    }
    let chosen = &route.pool().backends[dispatched.decision.index];
    if let Some(drain) = &chosen.drain {
        drain.note_request();
        let backend = Arc::clone(chosen.backend.name());
        state.metrics.sent_to_draining(&BackendLabels { pool: Arc::clone(pool), backend });
    }
    let detour = dispatched.decision.detour;
    if detour != Detour::default() {
        state.metrics.detoured(pool, detour);
    }
}

/// Lets the pool's shadow follow the first decision for a request; later ones mend what no policy could foresee.
fn replay(state: &State, route: &Route, dispatched: &Dispatched, now: Moment) -> Option<ShadowInFlight> {
    let pool = route.pool();
    let shadows = state.shadows.load();
    let shadow = shadows.get(pool.pool.name())?;
    let replay = Replay {
        prompts: &route.plan.shadow_prompts(),
        query: route.plan.query(),
        candidates: &dispatched.candidates,
        chosen: dispatched.decision.index,
        cost: pool.policy.cost,
    };
    shadow.replay(&replay, now)
}

/// Accounts for an attempt at the backend that was chosen.
pub(super) fn attempt(state: &State, route: &Route, dispatched: Dispatched, prediction: Prediction) -> Attempt {
    let chosen = &route.pool().backends[dispatched.decision.index];
    let blocks = route.plan.chains().map(|chain| state.index.begin(chosen.tenant, Arc::clone(&chain.blocks))).collect();
    Attempt {
        backend: Arc::clone(&chosen.backend),
        index: dispatched.decision.index,
        matched_tokens: u64::from(dispatched.decision.matched_tokens),
        prediction,
        clears: linger::clears(&chosen.feeds),
        in_flight: dispatched.in_flight,
        room: TakenRoom::at(route.pool(), &chosen.backend),
        blocks,
        probe: dispatched.permit,
        watch: None,
    }
}

fn peer(route: &Route, index: usize) -> Option<Box<HttpPeer>> {
    let pool = route.pool();
    let BackendSnapshot { backend, address, tls, .. } = &pool.backends[index];
    let origin = backend.origin();
    let mut peer = HttpPeer::new((*address)?, origin.is_tls, origin.host.to_string());
    if let Some(tls) = tls {
        tls.prepare(&mut peer);
    }
    let (options, timeouts) = (&mut peer.options, pool.timeouts);
    options.write_timeout = Some(timeouts.write);
    options.idle_timeout = Some(timeouts.keepalive_idle);
    Some(Box::new(peer))
}
