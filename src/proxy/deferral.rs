//! Lets a request wait whose prefill is long while backends have much to compute ([`crate::routing::Deferred`]).
//!
//! There is room for it, so it is never refused for that: if it may wait no longer, or nobody more can, it goes at once. It
//! waits in a line of its own, in which the shortest prefills go first, and does so once at most.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::Result;
use pingora_proxy::Session;

use super::context::RequestContext;
use super::waiting::{Alarms, Found, Look, Woken, look_anew, none, woken};
use super::{attend, keep_alive};
use crate::pool::Pool;
use crate::queue::{Place, Seat, Ticket, Turn, Wants};
use crate::routing::Deferred;
use crate::state::State;
use crate::time::{self, Moment};

/// None if the request is to look once more and to go.
pub(super) async fn wait(
    state: &State,
    session: &mut Session,
    ctx: &mut RequestContext,
    deferred: Deferred,
    seat: Seat,
) -> Result<Option<Found>> {
    let now = time::now();
    let Some((pool, place)) = enter(ctx, deferred, seat, now) else {
        ctx.was_deferred = true;
        return Ok(None);
    };
    let found = turns(state, session, ctx, place, deferred, now).await;
    ctx.was_deferred = true;
    let waited = time::now().since(now);
    ctx.queued = Some(ctx.queued.unwrap_or_default() + waited);
    state.metrics.queue.deferred(pool.name(), waited);
    found
}

fn enter(ctx: &RequestContext, deferred: Deferred, seat: Seat, now: Moment) -> Option<(Arc<Pool>, Place)> {
    let route = ctx.route.as_ref()?;
    let pool = Arc::clone(&route.pool().pool);
    let ticket = Ticket {
        priority: route.plan.priority,
        is_retry: false,
        work: deferred.work,
        prefill: deferred.prefill,
        bytes: ctx.body.as_ref().map_or(0, |body| body.len() as u64),
        wants: Wants::Any,
        // How fast the line moves is no reason not to wait in it.
        patience: Duration::MAX,
    };
    let place = pool.deferred().enter(ticket, Some(seat), &route.pool().queue, now).ok()?;
    Some((pool, place))
}

async fn turns(
    state: &State,
    session: &mut Session,
    ctx: &mut RequestContext,
    place: Place,
    deferred: Deferred,
    since: Moment,
) -> Result<Option<Found>> {
    let route = ctx.route.as_ref();
    let most = route.and_then(|route| route.pool().queue.max_defer).unwrap_or_default();
    let until = ctx.end().map_or(since + most, |end| end.min(since + most));
    let interval = route.and_then(|route| keep_alive::interval(session, route));
    let mut due = interval.map(|interval| since + interval);
    let mut look_again = deferred.look_again;
    loop {
        match woken(session, &place, Alarms { look_again, lapses: None, keep_alive: due, until }).await {
            Woken::Turn(Turn::Look) => match look_anew(state, ctx) {
                Look::Found(found) => {
                    place.served(time::now());
                    return Ok(Some(*found));
                }
                Look::Deferred(still) => {
                    place.found_none();
                    look_again = still.look_again;
                }
                Look::Full(_) => return Ok(None),
                Look::None => return Err(none(ctx)),
            },
            Woken::Again => {
                look_again = None;
                place.stir();
            }
            Woken::KeepAlive => {
                place.aside(keep_alive::send(state, session, ctx)).await?;
                due = interval.map(|interval| time::now() + interval);
            }
            Woken::TimedOut if ctx.end().is_some_and(|end| end <= time::now()) => {
                return Err(attend::give_up(state, ctx));
            }
            Woken::TimedOut | Woken::Lapsed | Woken::Turn(Turn::Displaced) => return Ok(None),
            Woken::Gone(error) => return Err(error.into_down()),
        }
    }
}
