//! Finds a backend that has room, and waits for one while none has.
//!
//! A request looks once by itself, unless others wait already. If every backend that would do is full it takes a place in
//! the pool's line, and looks again, in the newest view, whenever it has the turn. The choice is the same one each time
//! ([`peer::dispatch`]). It leaves the line with a backend, when it may wait no longer, or at once when its client leaves.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::{Error, Result};
use pingora_proxy::Session;

use super::alarms::{Alarms, Due};
use super::context::{RequestContext, Route};
use super::matched::Matched;
use super::reject::Reject;
use super::{deferral, peer};
use crate::pool::PoolSnapshot;
use crate::queue::{Place, Refusal, Refused, Ticket, Wants};
use crate::routing::{self, Candidate, Deferred, Dispatched, NoBackend, Outlook};
use crate::state::State;
use crate::time::{self, Moment};

/// A backend with room, and the request accounted for there.
pub(super) struct Found {
    pub(super) matched: Matched,
    pub(super) dispatched: Dispatched,
    /// When the look began that found it.
    pub(super) started: Moment,
}

/// What came of a look.
pub(super) enum Look {
    Found(Box<Found>),
    /// None that would do has room.
    Full(Full),
    /// There is one, and the request is to wait nevertheless.
    Deferred(Deferred),
    /// None would do.
    None,
}

#[derive(Clone, Copy)]
pub(super) struct Full {
    outlook: Outlook,
    wants: Wants,
    /// The deadline of the drain of the only backend that will do: from then on others have to.
    lapses: Option<Moment>,
}

/// Finds a backend for the next attempt.
///
/// # Errors
/// Refused, as the context then says why; or the client left.
pub(super) async fn find(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<Found> {
    loop {
        if let Some(found) = look_or_wait(state, session, ctx).await? {
            return Ok(found);
        }
        // It takes a new place, as one that can go anywhere.
        if let Some(route) = &mut ctx.route {
            route.renew(&state.snapshot.load_full(), &mut ctx.tried);
        }
    }
}

/// None if the request has left the line because it no longer waits for one backend only.
async fn look_or_wait(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<Option<Found>> {
    let Some(route) = &ctx.route else { return Err(ctx.refuse(Reject::Internal)) };
    let line = Arc::clone(route.pool().pool.line());
    let (seat, deferred_seat) = (line.seat(), route.pool().pool.deferred().seat());
    let look = if seat.is_taken { survey(state, route, &ctx.tried) } else { look(state, route, ctx) };
    let full = match look {
        Look::Found(found) => return Ok(Some(*found)),
        Look::Full(full) => full,
        Look::Deferred(deferred) => return deferral::wait(state, session, ctx, deferred, deferred_seat).await,
        Look::None => return Err(none(ctx)),
    };
    let (now, settings) = (time::now(), route.pool().queue);
    let wait_until =
        // The time for which it was deferred is no part of it: there was room.
        *ctx.wait_until.get_or_insert_with(|| {
            route.received + ctx.queued.unwrap_or_default() + allowed(settings.max_wait, full.outlook.ttft)
        });
    let wait_until = ctx.end().map_or(wait_until, |end| end.min(wait_until));
    let ticket = Ticket {
        priority: route.plan.priority,
        is_retry: ctx.attempts > 0,
        work: full.outlook.work,
        prefill: full.outlook.prefill,
        bytes: ctx.body.as_ref().map_or(0, |body| body.len() as u64),
        wants: full.wants,
        patience: wait_until.since(now),
    };
    // Who has waited for room takes it: those that stand in line would give each other the turn for ever.
    ctx.has_waited = true;
    let place = match line.enter(ticket, (!seat.is_taken).then_some(seat), &settings, now) {
        Ok(place) => place,
        Err(Refused { reason, estimate }) => {
            return Err(shed(state, ctx, reason, estimate.unwrap_or(full.outlook.ttft)));
        }
    };
    state.metrics.queue.entered(route.pool().pool.name(), place.entered.ahead);
    let found = wait(state, session, ctx, place, full, wait_until).await;
    let waited = time::now().since(now);
    ctx.queued = Some(ctx.queued.unwrap_or_default() + waited);
    if let Some(route) = &ctx.route {
        state.metrics.queue.waited(route.pool().pool.name(), route.plan.priority, waited);
    }
    found
}

/// How long a request may wait of `max_wait`, whose first token takes about so long once it is sent: what engines do is
/// foreseen within a tenth of the whole. At least half, so that a long prefill is no reason to refuse.
fn allowed(max_wait: Duration, ttft: Duration) -> Duration {
    max_wait.saturating_sub(ttft.saturating_add(max_wait / 10)).max(max_wait / 2)
}

async fn wait(
    state: &State,
    session: &mut Session,
    ctx: &mut RequestContext,
    place: Place,
    full: Full,
    until: Moment,
) -> Result<Option<Found>> {
    let (mut full, was_bound) = (full, is_bound(full.wants));
    let mut alarms = Alarms::new(session, ctx, until);
    loop {
        (alarms.look_again, alarms.lapses) = (full.outlook.look_again, full.lapses);
        match alarms.due(state, session, ctx, &place).await? {
            Due::Look => match look_anew(state, ctx) {
                Look::Found(found) => {
                    place.served(time::now());
                    return Ok(Some(*found));
                }
                Look::Full(still) => {
                    // Where it may not go there can be room for others.
                    let is_restricted = is_bound(still.wants) || !ctx.tried.is_empty();
                    if is_restricted {
                        place.found_none_for_itself()
                    } else {
                        place.found_none()
                    }
                    if was_bound && !is_bound(still.wants) {
                        return Ok(None);
                    }
                    full = still;
                }
                // It is not, once it stands in line.
                Look::Deferred(_) => return Ok(None),
                Look::None => return Err(none(ctx)),
            },
            Due::Displaced => return Err(give_up(state, ctx, Refusal::Displaced)),
            Due::Lapsed => return Ok(None),
            Due::TimedOut => return Err(give_up(state, ctx, Refusal::TimedOut)),
        }
    }
}

/// Looks in the newest view.
pub(super) fn look_anew(state: &State, ctx: &mut RequestContext) -> Look {
    let Some(route) = &mut ctx.route else { return Look::None };
    if !route.renew(&state.snapshot.load_full(), &mut ctx.tried) {
        return Look::None;
    }
    let Some(route) = &ctx.route else { return Look::None };
    look(state, route, ctx)
}

fn look(state: &State, route: &Route, ctx: &RequestContext) -> Look {
    let started = time::now();
    let matched = route.plan.matched(&state.index, &state.events, route.pool());
    let tried = &ctx.tried;
    // An attempt that failed has waited already.
    let may_be_deferred = !ctx.has_waited && ctx.attempts == 0 && route.pool().queue.max_defer.is_some();
    match peer::dispatch(route, &matched.tokens, tried, may_be_deferred) {
        Ok(dispatched) => Look::Found(Box::new(Found { matched, dispatched, started })),
        Err(NoBackend { deferred: Some(deferred), .. }) => Look::Deferred(deferred),
        Err(NoBackend { full, .. }) if full.is_empty() => Look::None,
        Err(NoBackend { full, .. }) => Look::Full(of_full(route, tried, &full, started)),
    }
}

/// What can be expected, without a look for room: others have been waiting for longer.
fn survey(state: &State, route: &Route, tried: &[usize]) -> Look {
    let started = time::now();
    let matched = route.plan.matched(&state.index, &state.events, route.pool());
    let query = route.plan.query_in(route.pool());
    let filtered = routing::candidates(route.pool(), &query, &matched.tokens, tried, started);
    let usable: Vec<Candidate> = filtered.candidates.into_iter().chain(filtered.full).collect();
    if usable.is_empty() { Look::None } else { Look::Full(of_full(route, tried, &usable, started)) }
}

fn of_full(route: &Route, tried: &[usize], full: &[Candidate], now: Moment) -> Full {
    let pool = route.pool();
    let outlook = Outlook::of(&pool.policy.cost, &pool.limits, &route.plan.query(), full, now);
    let only = peer::owner(route, tried).filter(|only| full.iter().any(|full| full.index == *only));
    let wants = match (only, outlook.warmest.filter(|_| pool.policy.kind.goes_by_locality())) {
        (Some(only), _) => Wants::Only(identity(pool, only)),
        (None, Some(warmest)) => Wants::Rather(identity(pool, warmest)),
        (None, None) => Wants::Any,
    };
    let drain = only.and_then(|only| pool.backends[only].drain.as_ref());
    Full { outlook, wants, lapses: drain.map(|drain| drain.deadline()) }
}

fn is_bound(wants: Wants) -> bool {
    matches!(wants, Wants::Only(_))
}

fn identity(pool: &PoolSnapshot, index: usize) -> u64 {
    pool.backends[index].backend.identity()
}

/// The refusal of a request for which there is no backend, full or not.
pub(super) fn none(ctx: &mut RequestContext) -> Box<Error> {
    let pool = ctx.labels().pool.to_string();
    let reject = match ctx.attempts {
        0 => Reject::NoBackend { pool },
        attempts => Reject::UpstreamFailed { attempts },
    };
    ctx.refuse(reject)
}

/// The refusal of a request that has waited.
fn give_up(state: &State, ctx: &mut RequestContext, reason: Refusal) -> Box<Error> {
    let now = time::now();
    let estimate = ctx.route.as_ref().map(|route| {
        let estimate = route.pool().pool.line().estimate(route.plan.priority, now);
        // In all that time nothing has moved: to come back at once would be for nothing.
        estimate.unwrap_or_else(|| now.since(route.received))
    });
    shed(state, ctx, reason, estimate.unwrap_or_default())
}

fn shed(state: &State, ctx: &mut RequestContext, refusal: Refusal, estimate: Duration) -> Box<Error> {
    let pool = ctx.labels().pool;
    let priority = ctx.route.as_ref().map(|route| route.plan.priority).unwrap_or_default();
    state.metrics.queue.refused(&pool, priority, refusal);
    ctx.refuse(Reject::Shed { refusal, pool: pool.to_string(), estimate })
}
