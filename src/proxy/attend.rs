//! Attends to the time limits of an attempt: gives them to Pingora where it knows them, and to a [`Watch`] where not.

use std::sync::Arc;

use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};

use super::context::RequestContext;
use super::limits::{Asked, Deadlines, Rounds, Watch, Watching};
use super::reject::Reject;
use crate::pool::TimeLimit;
use crate::state::State;
use crate::time;

/// Prepares the connection of an attempt; an error if the request has no time left.
pub(super) fn prepare(state: &State, peer: &mut HttpPeer, ctx: &mut RequestContext) -> Result<()> {
    let now = time::now();
    let end = ctx.end();
    if end.is_some_and(|end| end <= now) {
        return Err(give_up(state, ctx));
    }
    let Some(route) = &ctx.route else { return Ok(()) };
    let timeouts = route.pool().timeouts;
    let connect = end.map_or(timeouts.connect, |end| timeouts.connect.min(end.since(now)));
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    // Silence is for the watch: Pingora would make a timer for each read.
    peer.options.read_timeout = None;
    Ok(())
}

/// The refusal of a request that has no time left.
pub(super) fn give_up(state: &State, ctx: &mut RequestContext) -> Box<Error> {
    note(state, TimeLimit::Total, ctx);
    ctx.refuse(Reject::TimedOut(TimeLimit::Total))
}

/// The attempt has its connection, and is watched from now on. None if there is no attempt.
pub(super) fn begin(rounds: &Arc<Rounds>, ctx: &mut RequestContext) -> Option<Watching> {
    let end = ctx.end();
    let (Some(route), Some(attempt)) = (&ctx.route, &mut ctx.attempt) else { return None };
    let asked = if route.plan.is_stream { Asked::Streamed } else { Asked::Whole };
    let deadlines = Deadlines::new(route.pool().timeouts, asked, time::now(), end);
    let watch = attempt.watch.insert(Watch::begin(rounds, deadlines));
    Some(watch.watching())
}

/// The limit that `error` is about.
pub(super) fn met(error: &Error, ctx: &RequestContext) -> Option<TimeLimit> {
    if *error.esource() == ErrorSource::Downstream {
        return None;
    }
    let watched = ctx.attempt.as_ref().and_then(|attempt| attempt.watch.as_ref()?.met());
    let by_pingora = || match error.etype() {
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout => {
            let is_over = ctx.end().is_some_and(|end| end <= time::now());
            Some(if is_over { TimeLimit::Total } else { TimeLimit::Connect })
        }
        ErrorType::WriteTimedout => Some(TimeLimit::Write),
        _ => None,
    };
    watched.or_else(by_pingora)
}

/// Counts a limit that ended an attempt, and remembers it as what ended the request if nothing follows.
pub(super) fn note(state: &State, limit: TimeLimit, ctx: &mut RequestContext) {
    state.metrics.time_limit_met(&ctx.labels(), limit);
    ctx.answer.limit = Some(limit);
}

/// The answer ended.
pub(super) fn end(ctx: &RequestContext) {
    if let Some(watch) = ctx.attempt.as_ref().and_then(|attempt| attempt.watch.as_ref()) {
        watch.end();
    }
}
