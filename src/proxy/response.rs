//! Watches the answer on its way: judges its status, says what was decided, sees its first token and its usage.

use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, Version};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use smallvec::SmallVec;

use super::context::RequestContext;
use super::reject::Reject;
use super::{attend, callers, hold, linger, retry};
use crate::downstream::{self, Rewrite};
use crate::pool::{Credentials, FailureKind};
use crate::request::{Endpoint, ResponseReader};
use crate::responses::Owner;
use crate::state::State;
use crate::time;

/// The status that engines give when they are full; nothing is wrong with the backend.
const OVERLOADED: u16 = 503;

/// Informational responses that a backend may send before its final one; engines send none.
const MAX_INFORMATIONAL: u32 = 16;

/// What the fields of our own begin with.
const OURS: &str = "x-warmgate-";

// What is said of a decision, where `server.response_headers` has it said.
const REQUEST_ID: &str = "x-warmgate-request-id";
const ATTEMPTS: &str = "x-warmgate-attempts";
const BACKEND: &str = "x-warmgate-backend";
const CACHED: &str = "x-warmgate-cached";

static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Judges a backend's response header: a fault, a retry, or the answer.
pub(super) fn judge(state: &State, session: &Session, header: &ResponseHeader, ctx: &mut RequestContext) -> Result<()> {
    if header.status.is_informational() {
        return bear_informational(header.status, ctx);
    }
    let status = header.status.as_u16();
    if let Some(reject) = refused_key(status, ctx) {
        // It answers; what it wants is not the caller's fault, and is the same at the next one.
        retry::record_success(ctx);
        return Err(ctx.refuse(reject).into_up());
    }
    match status {
        OVERLOADED => {}
        500.. => retry::record_failure(ctx, FailureKind::ServerError),
        400.. => retry::record_success(ctx),
        // Not yet: engines send the header before the prefill, and may fail in it.
        _ => {}
    }
    if !ctx.has_begun(session) && retry::on_status(state, ctx, status) {
        log::info!("request {}: attempt {} answered {status}; trying another", ctx.request_id, ctx.attempts);
        ctx.answer.is_dropped = true;
        let mut error = Error::explain(ErrorType::HTTPStatus(status), "to be retried").into_up();
        error.set_retry(true);
        return Err(error);
    }
    expect(header, ctx);
    Ok(())
}

/// Whether the backend wants another key than it was shown. Its answer would tell a caller that its own was wrong, which
/// the backend has not seen.
fn refused_key(status: u16, ctx: &RequestContext) -> Option<Reject> {
    let pool = ctx.route.as_ref()?.pool();
    match &pool.credentials {
        Credentials::Own(own) if status == StatusCode::UNAUTHORIZED => {
            Some(Reject::BackendKey { pool: pool.pool.name().to_string(), has_key: own.is_some() })
        }
        _ => None,
    }
}

/// Lets an informational response by. Nobody asked for a switch of protocols, and one that never comes to its final
/// response would keep the time limit from running out.
fn bear_informational(status: StatusCode, ctx: &mut RequestContext) -> Result<()> {
    ctx.answer.informational += 1;
    if status == StatusCode::SWITCHING_PROTOCOLS || ctx.answer.informational > MAX_INFORMATIONAL {
        return Err(Error::explain(ErrorType::InvalidHTTPHeader, "an informational response out of place").into_up());
    }
    Ok(())
}

/// Prepares for the body of the answer that goes downstream.
fn expect(header: &ResponseHeader, ctx: &mut RequestContext) {
    let is_stream =
        header.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    ctx.answer.status = Some(header.status.as_u16());
    ctx.answer.is_success = header.status.is_success();
    ctx.answer.is_stream = is_stream;
    ctx.answer.held = hold::wants(header, is_stream, ctx);
    if ctx.answer.held.is_none() {
        // No attempt follows, so nothing needs the body any more; what is still being sent has its own share of it.
        ctx.body = None;
    }
    if let Some(watch) = ctx.attempt.as_ref().and_then(|attempt| attempt.watch.as_ref()) {
        watch.note(|deadlines| deadlines.header(is_stream, time::now()));
    }
    let Some(plan) = ctx.route.as_ref().map(|route| &route.plan) else { return };
    let wants_usage = plan.expects_usage && header.status.is_success();
    if let Some(endpoint) = plan.endpoint {
        let reader = ResponseReader::new(is_stream, wants_usage);
        let keeps_responses = endpoint == Endpoint::Responses;
        ctx.answer.reader = Some(if keeps_responses { reader.with_response_id() } else { reader });
    }
}

/// Adds what was decided to the header that goes downstream: to itself, or to how it is rewritten there.
pub(super) fn annotate(
    state: &State,
    session: &mut Session,
    header: &mut ResponseHeader,
    ctx: &RequestContext,
) -> Result<Rewrite> {
    prepare(state, session, header);
    callers::annotate(header, ctx.caller.as_ref())?;
    describe(state, session, header, ctx)
}

fn prepare(state: &State, session: &mut Session, header: &mut ResponseHeader) {
    if state.lifecycle.is_draining() {
        session.set_keepalive(None);
    }
    strip_hop_by_hop(header);
    if session.req_header().version == Version::HTTP_10 {
        // It cannot read chunks, which Pingora would pass on; the end of the connection ends the body.
        header.remove_header(&TRANSFER_ENCODING);
        session.set_keepalive(None);
    }
}

/// Says what was decided: where it can be in what is to be rewritten, else in `header`.
fn describe(state: &State, session: &Session, header: &mut ResponseHeader, ctx: &RequestContext) -> Result<Rewrite> {
    let can_rewrite = downstream::can_rewrite(session);
    let mut rewrite = if can_rewrite { Rewrite::of(header) } else { Rewrite::default() };
    if !state.config.load().server.response_headers {
        return Ok(rewrite);
    }
    // Another proxy like this one may have been asked.
    if header.headers.keys().any(|name| name.as_str().starts_with(OURS)) {
        for name in [REQUEST_ID, ATTEMPTS, BACKEND, CACHED] {
            header.remove_header(name);
        }
    }
    decided(ctx, |name, value| if can_rewrite { rewrite.add(name, value) } else { header.insert_header(name, value) })?;
    Ok(rewrite)
}

/// Gives `add` each field that says what was decided.
fn decided(ctx: &RequestContext, mut add: impl FnMut(&'static str, &str) -> Result<()>) -> Result<()> {
    // Twice as quick as by formatting, for each answer.
    let [mut number, mut other] = [itoa::Buffer::new(), itoa::Buffer::new()];
    add(REQUEST_ID, &ctx.request_id)?;
    add(ATTEMPTS, number.format(ctx.attempts))?;
    let Some((route, attempt)) = ctx.route.as_ref().zip(ctx.attempt.as_ref()) else { return Ok(()) };
    add(BACKEND, attempt.backend.name())?;
    if route.plan.endpoint.is_some() {
        let (cached, all) = (number.format(attempt.matched_tokens), other.format(route.plan.prompt_tokens));
        add(CACHED, &[cached, "/", all].concat())?;
    }
    Ok(())
}

/// Removes what concerns the backend's connection alone (RFC 9110, section 7.6.1). Pingora does so for requests only.
fn strip_hop_by_hop(header: &mut ResponseHeader) {
    if !header.headers.keys().any(|name| [&CONNECTION, &KEEP_ALIVE, &PROXY_CONNECTION].contains(&name)) {
        return;
    }
    let nominated: SmallVec<[HeaderName; 4]> = nominated(&header.headers)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        // The framing is Pingora's, whatever a backend says of it.
        .filter(|name| name != TRANSFER_ENCODING && name != CONTENT_LENGTH)
        .collect();
    for name in nominated.iter().chain([&KEEP_ALIVE, &PROXY_CONNECTION]) {
        header.remove_header(name);
    }
}

/// What `Connection` names.
pub(super) fn nominated(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    names.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
}

/// Sees a piece of the response body go by.
pub(super) fn watch(state: &Arc<State>, bytes: Option<&bytes::Bytes>, end_of_stream: bool, ctx: &mut RequestContext) {
    if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
        let events = ctx.answer.reader.as_ref().map(ResponseReader::events);
        see(state, bytes, ctx);
        note_progress(events, ctx);
    }
    if end_of_stream {
        attend::end(ctx);
        remember_response(state, ctx);
    }
}

/// Tells the time limits that the answer has got further, if it has: a comment in a stream is no token, and what comes
/// before the first one is none either.
fn note_progress(events_before: Option<u64>, ctx: &RequestContext) {
    let has_come = match &ctx.answer.reader {
        Some(reader) if ctx.answer.is_stream => {
            let is_more = events_before != Some(reader.events()) || !reader.is_between_lines();
            reader.has_output() && is_more
        }
        _ => true,
    };
    let watch = ctx.attempt.as_ref().and_then(|attempt| attempt.watch.as_ref());
    if let Some(watch) = watch.filter(|_| has_come) {
        watch.note(|deadlines| deadlines.progress(time::now()));
    }
}

fn see(state: &Arc<State>, bytes: &[u8], ctx: &mut RequestContext) {
    let now = time::now();
    let has_output = match &mut ctx.answer.reader {
        Some(reader) => {
            if reader.push(bytes).error && ctx.answer.is_success {
                // The engine gave up after its header was sent: an error event in place of tokens. With any other
                // status, the status has been judged.
                retry::record_failure(ctx, FailureKind::ServerError);
            }
            ctx.answer.reader.as_ref().is_some_and(ResponseReader::has_output)
        }
        None => true,
    };
    if !has_output || !ctx.answer.is_success {
        return;
    }
    let Some(attempt) = &mut ctx.attempt else { return };
    if ctx.answer.first_token.is_some() {
        attempt.in_flight.progress(now);
        return;
    }
    ctx.answer.first_token = Some(now);
    attempt.in_flight.first_token(now);
    // Where it is not streamed the end follows: who looks in between would find less room than whoever comes behind.
    if ctx.answer.is_stream {
        attempt.room.stir();
    }
    linger::computed(state, ctx);
    retry::record_success(ctx);
}

/// Notes which backend made a response that later requests may name.
fn remember_response(state: &State, ctx: &RequestContext) {
    let Some(id) = ctx.answer.reader.as_ref().and_then(ResponseReader::response_id) else { return };
    let labels = ctx.labels();
    state.responses.remember(id, Owner { pool: Arc::clone(&labels.pool), backend: labels.backend });
}
