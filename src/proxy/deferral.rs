//! Lets a request wait whose prefill is long while backends have much to compute ([`crate::routing::Deferred`]).
//!
//! There is room for it, so it is never refused for that: if it may wait no longer, or nobody more can, it goes at once. It
//! waits in a line of its own, in which the shortest prefills go first, and does so once at most.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::Result;
use pingora_proxy::Session;

use super::alarms::{Alarms, Due};
use super::context::RequestContext;
use super::waiting::{Found, Look, look_anew, none};
use crate::pool::Pool;
use crate::queue::{Place, Seat, Ticket, Wants};
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
        ctx.has_waited = true;
        return Ok(None);
    };
    let found = turns(state, session, ctx, place, deferred, now).await;
    ctx.has_waited = true;
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
    let most = ctx.route.as_ref().and_then(|route| route.pool().queue.max_defer).unwrap_or_default();
    let until = ctx.end().map_or(since + most, |end| end.min(since + most));
    let mut alarms = Alarms::new(session, ctx, until);
    alarms.look_again = deferred.look_again;
    loop {
        match alarms.due(state, session, ctx, &place).await? {
            Due::Look => match look_anew(state, ctx) {
                Look::Found(found) => {
                    place.served(time::now());
                    return Ok(Some(*found));
                }
                Look::Deferred(still) => {
                    place.found_none();
                    alarms.look_again = still.look_again;
                }
                Look::Full(_) => return Ok(None),
                Look::None => return Err(none(ctx)),
            },
            Due::TimedOut | Due::Lapsed | Due::Displaced => return Ok(None),
        }
    }
}
