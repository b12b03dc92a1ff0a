//! Attends to the time limits of an attempt: gives them to Pingora where it knows them, and to a [`Watch`] where not.

use std::os::fd::RawFd;
use std::sync::Arc;

use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, OrErr, Result};
use pingora_proxy::Session;
use tokio::net::TcpSocket;

use super::context::RequestContext;
use super::cork::cork;
use super::hedge::Hedge;
use super::limits::{Asked, Deadlines, Grip, Lines, Rounds, Watch};
use super::reject::Reject;
use crate::pool::TimeLimit;
use crate::state::State;
use crate::time;

/// What Pingora has for the descriptor of a stream that is no socket.
const NO_DESCRIPTOR: RawFd = -1;

/// Prepares the connection of an attempt; an error if the request has no time left.
pub(super) fn prepare(state: &State, lines: &Arc<Lines>, peer: &mut HttpPeer, ctx: &mut RequestContext) -> Result<()> {
    let now = time::now();
    let end = ctx.end();
    if end.is_some_and(|end| end <= now) {
        return Err(give_up(state, ctx));
    }
    let (Some(route), Some(attempt)) = (&ctx.route, &mut ctx.attempt) else { return Ok(()) };
    let timeouts = route.pool().timeouts;
    let connect = end.map_or(timeouts.connect, |end| timeouts.connect.min(end.since(now)));
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    // Silence is for the watch: Pingora would make a timer for each read.
    peer.options.read_timeout = None;
    let line = lines.line();
    peer.options.tracer = Some(line.tracer());
    let held = Arc::clone(&line);
    peer.options.upstream_tcp_sock_tweak_hook = Some(Arc::new(move |socket: &TcpSocket| {
        held.hold(socket).or_err(ErrorType::SocketError, "no descriptor of it can be had")
    }));
    attempt.line = Some(line);
    Ok(())
}

/// The refusal of a request that has no time left.
pub(super) fn give_up(state: &State, ctx: &mut RequestContext) -> Box<Error> {
    note(state, TimeLimit::Total, ctx);
    ctx.refuse(Reject::TimedOut(TimeLimit::Total))
}

/// The attempt has its connection, or a relay in its place.
///
/// # Errors
/// It is a connection that nobody knows, which could not be cut.
pub(super) fn begin(
    lines: &Lines,
    rounds: &Arc<Rounds>,
    session: &Session,
    is_reused: bool,
    descriptor: RawFd,
    ctx: &mut RequestContext,
) -> Result<()> {
    let end = ctx.end();
    let (Some(route), Some(attempt)) = (&ctx.route, &mut ctx.attempt) else { return Ok(()) };
    let Some(line) = attempt.line.take() else { return Ok(()) };
    let asked = if route.plan.is_stream { Asked::Streamed } else { Asked::Whole };
    let deadlines = Deadlines::new(route.pool().timeouts, asked, time::now(), end);
    let relay = ctx.hedge.as_ref().filter(|_| descriptor == NO_DESCRIPTOR).map(Hedge::relay);
    let grip = match relay {
        Some(relay) => Grip::Relay(relay),
        None => lines.grip(line, is_reused, descriptor).ok_or_else(unknown)?,
    };
    // Over HTTP/2 a request is a task of Pingora's, of which nobody sees the turns.
    if ctx.body.is_some() && !session.is_http2() {
        cork(&grip);
    }
    attempt.watch = Some(Watch::begin(rounds, grip, deadlines));
    Ok(())
}

fn unknown() -> Box<Error> {
    Error::explain(ErrorType::InternalError, "a kept connection that no attempt has made").into_up()
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

/// The answer ended: was it the backend who ended it? One without a length ends with its connection, whoever closed that.
pub(super) fn check_end(ctx: &RequestContext) -> Result<()> {
    let Some(watch) = ctx.attempt.as_ref().and_then(|attempt| attempt.watch.as_ref()) else { return Ok(()) };
    watch.end();
    match watch.met() {
        Some(_) if ctx.answer.ends_with_connection => {
            Err(Error::explain(ErrorType::ConnectionClosed, "by a limit of time").into_up())
        }
        _ => Ok(()),
    }
}
