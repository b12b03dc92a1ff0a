//! Takes a request in: its limits, its body, what it asks for. Nothing has been sent to a backend yet.

use std::sync::{Arc, LazyLock};

use http::Method;
use http::header::{HeaderName, TRANSFER_ENCODING};
use pingora_core::Result;
use pingora_proxy::Session;

use super::context::{RequestContext, Route, Seen};
use super::finish::shortened;
use super::{Reject, body, callers, models, plan};
use crate::downstream::{fault, is_line_text};
use crate::request::decoded;
use crate::state::State;
use crate::time;
use crate::tls::client_identity;

/// Longest path that is logged.
const MAX_PATH_BYTES: usize = 256;

/// Longest `x-request-id` that is kept.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// In the log for a request of which nothing could be read.
const UNKNOWN_PATH: &str = "-";

static UNKNOWN_METHOD: LazyLock<Method> = LazyLock::new(|| Method::from_bytes(b"-").expect("it is a token"));

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Settles the connection and refuses what should not get further.
pub(super) fn admit(state: &State, session: &mut Session, ctx: &mut RequestContext, requires_key: bool) -> Result<()> {
    ctx.request_id = request_id(session);
    ctx.seen = seen(session);
    let config = state.config.load();
    // Pingora waits for the next request without end unless told otherwise; where the client closes, leave it be.
    if state.lifecycle.is_draining() {
        session.set_keepalive(None);
    } else if session.get_keepalive().is_some() {
        session.set_keepalive(Some(config.server.keepalive_timeout.as_secs().max(1)));
    }
    if session.is_http2() {
        session.set_write_timeout(Some(config.server.write_timeout));
    } else {
        // The stream below sees to it, and to the body; Pingora would look at the clock for each piece.
        session.set_read_timeout(None);
    }
    // Otherwise a request sent behind another ends both.
    session.set_pipelining_enabled(true);
    if let Some(fault) = fault(session.as_downstream()) {
        // Nothing is known of the request: what Pingora was given stands in for it.
        (ctx.seen.method, ctx.seen.path) = (UNKNOWN_METHOD.clone(), UNKNOWN_PATH.to_owned());
        session.set_keepalive(None);
        return Err(ctx.refuse(Reject::malformed(fault, &config)));
    }
    if has_unknown_coding(session) {
        session.set_keepalive(None);
        return Err(ctx.refuse(Reject::BadRequest));
    }
    // Over HTTP/1 it was measured as it came.
    let limit = config.server.max_header_bytes;
    if session.is_http2() && header_bytes(session) as u64 > limit {
        session.set_keepalive(None);
        return Err(ctx.refuse(Reject::HeaderTooLarge { limit }));
    }
    if requires_key {
        callers::identify(state, session, ctx).map_err(|reject| ctx.refuse(reject))?;
    }
    Ok(())
}

/// Reads the request and says where it goes; true if it was answered here.
pub(super) async fn take(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
    if session.is_upgrade_req() {
        session.set_keepalive(None);
        return Err(ctx.refuse(Reject::Upgrade));
    }
    if let Some(list) = models::list(state, session, ctx.caller.as_deref()) {
        ctx.answer.is_local = true;
        body::pass_over(&mut session.downstream_session).await;
        models::reply(session, list).await?;
        return Ok(true);
    }
    if !session.is_body_empty() {
        take_body(state, session, ctx).await?;
    }
    let received = time::now();
    let snapshot = state.snapshot.load_full();
    let bytes = ctx.body.as_ref().map(body::Buffered::bytes).unwrap_or_default();
    let path = decoded(session.req_header().uri.path());
    let head = plan::Head::of(session.req_header(), &path, ctx.caller.as_ref().map(|caller| caller.priority()));
    let planned = plan::plan(&ctx.state(), &snapshot, head, &bytes).await;
    let (pool, plan) = planned.map_err(|reject| ctx.refuse(reject))?;
    callers::permit(ctx, &snapshot.pools()[pool], &plan).map_err(|reject| ctx.refuse(reject))?;
    if let Some(failure) = plan.tokenizing {
        state.metrics.tokenized(snapshot.pools()[pool].pool.name(), failure);
    }
    ctx.route = Some(Route { snapshot, pool, plan: Arc::new(plan), received, decision_micros: 0 });
    Ok(false)
}

async fn take_body(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<()> {
    let limits = body::BodyLimits::of(&state.config.load().limits);
    match body::read(&mut session.downstream_session, &limits, &state.bodies).await {
        Ok(body) => {
            ctx.request_bytes = body.len() as u64;
            ctx.body = Some(body);
            Ok(())
        }
        // The client is gone: nobody is left to be told.
        Err(body::BodyError::Read(error)) if is_gone(&error) && fault(session.as_downstream()).is_none() => {
            Err(error.into_down())
        }
        Err(error) => {
            session.set_keepalive(None);
            Err(ctx.refuse(error.into()))
        }
    }
}

fn is_gone(error: &pingora_core::Error) -> bool {
    use pingora_core::ErrorType::{ConnectionClosed, H2Error, ReadError};
    matches!(error.etype(), ConnectionClosed | ReadError | H2Error)
}

/// The client's id, if it can stand in a header and a log line; else a new one.
fn request_id(session: &Session) -> String {
    let given = session.get_header(&X_REQUEST_ID).and_then(|value| value.to_str().ok());
    match given {
        Some(id) if !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES && is_line_text(id) => id.to_owned(),
        _ => new_id(),
    }
}

fn new_id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn seen(session: &Session) -> Seen {
    let header = session.req_header();
    let digest = session.as_downstream().digest().and_then(|digest| digest.ssl_digest.as_deref());
    Seen {
        client_certificate: digest.and_then(|digest| client_identity(digest)).map(str::to_owned),
        client: session.client_addr().and_then(|address| address.as_inet().copied()),
        method: header.method.clone(),
        path: shortened(header.uri.path(), MAX_PATH_BYTES).to_owned(),
    }
}

/// Whether the body has a transfer coding besides chunked: it would be lost when the body is framed anew.
fn has_unknown_coding(session: &Session) -> bool {
    let mut codings = session.req_header().headers.get_all(TRANSFER_ENCODING).iter();
    codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Size of the header as it would be on HTTP/1, bytes.
fn header_bytes(session: &Session) -> usize {
    let header = session.req_header();
    let fields: usize = header.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    fields + header.raw_path().len() + header.method.as_str().len()
}
