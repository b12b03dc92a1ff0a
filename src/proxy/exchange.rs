//! Sends a request to backends until one has answered, and its answer to the client.
//!
//! Pingora has an exchange of its own, which this takes the place of: with two tasks' worth of channels between the sides, a
//! buffer for the request's body that holds 64 KiB, and hooks from which nothing can be held back or said to the client, it
//! was more work for each small request than all that is decided here. What is left is what its parts are for: its
//! connector, its reader and writer of HTTP/1 towards the backend, its session towards the client.
//!
//! One attempt is: choose, connect, send, and pass on what comes, task by task. What it may not get past is seen to in the
//! same turn: the client that leaves, the limits of time.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::v1::client::HttpSession;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;
use smallvec::SmallVec;
use tokio::task::unconstrained;

use super::body::Buffered;
use super::connections::Connections;
use super::context::RequestContext;
use super::limits::Watching;
use super::reject::Reject;
use super::{Gateway, attend, forward, hedge, hold, keep_alive, peer, response, retry};
use crate::downstream::{self, Rewrite};
use crate::state::State;

/// Pieces of an answer that are written at once, if they are there at once.
const MOST_TASKS: usize = 4;

/// A body of so many bytes goes into the buffer of a connection that is idle: nobody has to take it for that. Pingora looks at
/// the clock for each piece that has a limit of time.
const BUFFERED_BYTES: usize = 8 * 1024;

/// So much of a body is written within one limit of time.
const PIECE_BYTES: usize = 1024 * 1024;

type Tasks = SmallVec<[HttpTask; MOST_TASKS]>;

/// What came of sending a request.
struct Sent {
    /// Why not all of it was sent. A backend that takes no more may answer all the same.
    fault: Option<Box<Error>>,
    /// What has come of the answer already.
    tasks: Tasks,
}

/// Sends the request, as often as is allowed, and passes the answer on.
///
/// # Errors
/// Nobody has answered, or the answer could not be passed on to its end.
pub(super) async fn serve(gateway: &Gateway, session: &mut Session, ctx: &mut RequestContext) -> Result<()> {
    loop {
        match attempt(gateway, session, ctx).await {
            Err(error) if error.retry() => {}
            ended => return ended,
        }
    }
}

async fn attempt(gateway: &Gateway, session: &mut Session, ctx: &mut RequestContext) -> Result<()> {
    let Gateway { state, connections, rounds, .. } = gateway;
    let mut peer = peer::choose(state, session, ctx).await?;
    attend::prepare(state, &mut peer, ctx)?;
    hedge::arm(ctx, &mut peer);
    let header = Box::new(forward::header(session.req_header(), ctx)?);
    let (mut wire, is_reused) = match connections.get(&peer).await {
        Ok(connected) => connected,
        Err(error) => return Err(retry::after_connect_failure(state, ctx, error.into_up())),
    };
    let body_bytes = ctx.body.as_ref().map_or(0, Buffered::len);
    if body_bytes > 0 {
        wire.hold();
    }
    let mut backend = HttpSession::new_with_options(wire, &*peer);
    backend.write_timeout = peer.options.write_timeout.filter(|_| body_bytes > BUFFERED_BYTES);
    let Some(watching) = attend::begin(rounds, ctx) else { return Err(ctx.refuse(Reject::Internal)) };
    match exchange(state, header, backend, &watching, session, ctx).await {
        Ok(Some(backend)) => keep(connections, &peer, backend).await,
        Ok(None) => {}
        Err(error) => return Err(retry::after_exchange_failure(state, ctx, error, is_reused)),
    }
    Ok(())
}

/// Keeps the connection for the next request, if the backend does.
async fn keep(connections: &Arc<Connections>, peer: &HttpPeer, mut backend: HttpSession) {
    backend.respect_keepalive();
    if let Some(stream) = backend.reuse().await {
        connections.keep(peer, stream);
    }
}

/// One request and its answer on a connection, which comes back if all of the request was sent.
async fn exchange(
    state: &Arc<State>,
    header: Box<RequestHeader>,
    mut backend: HttpSession,
    watching: &Watching,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<Option<HttpSession>> {
    let Sent { fault, mut tasks } = send(header, &mut backend, session, ctx, watching).await?;
    loop {
        let passed = take(state, tasks, session, ctx).await?;
        if !passed.is_empty() {
            let mut writing = pin!(session.downstream_session.response_duplex_vec(passed));
            let Some(is_end) = watching.unless_over(writing.as_mut()).await else {
                // The backend has nothing more to do. The client gets what was on its way, and can be told then.
                drop(backend);
                return if writing.await? { Ok(None) } else { Err(over()) };
            };
            if is_end? {
                return Ok(fault.is_none().then_some(backend));
            }
        }
        tasks = match next(&mut backend, session, watching).await {
            Ok(tasks) => tasks,
            // What kept the request from being sent says more than that nothing came of it.
            Err(error) if *error.esource() == ErrorSource::Upstream => return Err(fault.unwrap_or(error)),
            Err(error) => return Err(error),
        };
    }
}

/// Sends the request, and takes what a backend has said of it that took too long.
async fn send(
    header: Box<RequestHeader>,
    backend: &mut HttpSession,
    session: &mut Session,
    ctx: &RequestContext,
    watching: &Watching,
) -> Result<Sent> {
    let body = ctx.body.as_ref().map(Buffered::bytes).unwrap_or_default();
    let sending = async {
        backend.write_request_header(header).await?;
        if !body.is_empty() {
            for piece in body.chunks(PIECE_BYTES) {
                backend.write_body(piece).await?;
            }
            backend.finish_body().await?;
        }
        Ok(())
    };
    let sent: Result<()> = in_time(session, watching, sending).await?;
    let (fault, mut tasks) = (sent.err().map(|error| error.into_up()), Tasks::new());
    match fault {
        Some(late) if *late.etype() == ErrorType::WriteTimedout => {
            take_ready(backend, &mut tasks);
            let has_answered = matches!(tasks.first(), Some(HttpTask::Header(..)));
            if has_answered { Ok(Sent { fault: Some(late), tasks }) } else { Err(late) }
        }
        fault => Ok(Sent { fault, tasks }),
    }
}

/// The next pieces of the answer: waits for one, and takes those that are there behind it.
async fn next(backend: &mut HttpSession, session: &mut Session, watching: &Watching) -> Result<Tasks> {
    let first = in_time(session, watching, backend.read_response_task()).await?;
    let mut tasks = Tasks::new();
    tasks.push(first.map_err(|error| error.into_up())?);
    take_ready(backend, &mut tasks);
    Ok(tasks)
}

/// Takes the pieces of the answer that are there already.
fn take_ready(backend: &mut HttpSession, tasks: &mut Tasks) {
    while tasks.len() < MOST_TASKS && !tasks.last().is_some_and(HttpTask::is_end) {
        match now(backend.read_response_task()) {
            Some(Ok(task)) => tasks.push(task),
            // The client gets what came before.
            Some(Err(error)) => tasks.push(HttpTask::Failed(error.into_up())),
            None => break,
        }
    }
}

/// What comes of `work` at the backend.
///
/// # Errors
/// The client left, or a limit of time is over ([`attend::met`] says which).
async fn in_time<T>(session: &mut Session, watching: &Watching, work: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        biased;
        done = watching.awaiting(work) => done.ok_or_else(over),
        error = gone(session) => Err(error),
    }
}

fn over() -> Box<Error> {
    Error::explain(ErrorType::ReadTimedout, "a limit of time").into_up()
}

/// Waits until the client is gone. One that has sent the beginning of its next request is not watched any more.
pub(super) async fn gone(session: &mut Session) -> Box<Error> {
    match session.downstream_session.read_body_or_idle(true).await {
        Err(error) => error.into_down(),
        // It says nothing else.
        Ok(_) => pending().await,
    }
}

/// What comes of `work`, if that is there already.
pub(super) fn now<F: Future>(work: F) -> Option<F::Output> {
    unconstrained(work).now_or_never()
}

/// Sees pieces of the answer on their way; what is passed on.
async fn take(
    state: &Arc<State>,
    tasks: Tasks,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<Vec<HttpTask>> {
    let mut passed = Vec::with_capacity(tasks.len());
    for task in tasks {
        match task {
            HttpTask::Header(header, is_end) => take_header(state, header, is_end, session, ctx, &mut passed).await?,
            HttpTask::Body(bytes, is_end) => take_body(state, bytes, is_end, session, ctx, &mut passed)?,
            other => passed.push(other),
        }
    }
    Ok(passed)
}

async fn take_header(
    state: &Arc<State>,
    mut header: Box<ResponseHeader>,
    is_end: bool,
    session: &mut Session,
    ctx: &mut RequestContext,
    passed: &mut Vec<HttpTask>,
) -> Result<()> {
    hedge::settle(ctx);
    response::judge(state, session, &header, ctx)?;
    if header.status.is_informational() {
        if !ctx.is_opened {
            passed.push(HttpTask::Header(header, is_end));
        }
        return Ok(());
    }
    if !is_end {
        chunk(session, &mut header).map_err(|error| spoiled(ctx, &error))?;
    }
    keep_alive::expect(session, &header, ctx).await?;
    let rewrite = response::annotate(state, session, &mut header, ctx).map_err(|error| spoiled(ctx, &error))?;
    if let Some(held) = &mut ctx.answer.held {
        held.keep(header, rewrite);
        return if is_end { take_body(state, None, true, session, ctx, passed) } else { Ok(()) };
    }
    pass_header(header, rewrite, is_end, session, ctx, passed);
    if is_end {
        attend::end(ctx);
    }
    Ok(())
}

/// The answer's header could not be made ready for the client, which is no fault of the backend's.
fn spoiled(ctx: &mut RequestContext, error: &Error) -> Box<Error> {
    log::error!("request {}: the header of its answer: {}", ctx.request_id, error.etype().as_str());
    ctx.refuse(Reject::Internal)
}

fn take_body(
    state: &Arc<State>,
    mut bytes: Option<Bytes>,
    is_end: bool,
    session: &Session,
    ctx: &mut RequestContext,
    passed: &mut Vec<HttpTask>,
) -> Result<()> {
    if let Some((header, rewrite)) = hold::look(state, &mut bytes, is_end, ctx)? {
        pass_header(header, rewrite, false, session, ctx, passed);
    }
    response::watch(state, bytes.as_ref(), is_end, ctx);
    if let Some(unstreamed) = &mut ctx.answer.unstreamed {
        unstreamed.convert(&mut bytes, is_end);
    }
    if is_end || bytes.as_ref().is_some_and(|bytes| !bytes.is_empty()) {
        passed.push(HttpTask::Body(bytes, is_end));
    }
    Ok(())
}

/// Passes the header on; a stream that was opened while its request waited has had one.
fn pass_header(
    header: Box<ResponseHeader>,
    rewrite: Rewrite,
    is_end: bool,
    session: &Session,
    ctx: &RequestContext,
    passed: &mut Vec<HttpTask>,
) {
    if !ctx.is_opened {
        downstream::rewrite(session, rewrite);
        passed.push(HttpTask::Header(header, is_end));
    } else if is_end {
        passed.push(HttpTask::Done);
    }
}

/// Has a body be chunked that ends with the backend's connection, so that the client's need not.
fn chunk(session: &Session, header: &mut ResponseHeader) -> Result<()> {
    let has_body = session.req_header().method != Method::HEAD
        && !matches!(header.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_body && ![TRANSFER_ENCODING, CONTENT_LENGTH].iter().any(|name| header.headers.contains_key(name)) {
        header.set_version(Version::HTTP_11);
        header.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    Ok(())
}
