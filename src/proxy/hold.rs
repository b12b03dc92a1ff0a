//! Holds an answer back until it is known what it begins with ([`Opening`]), so that another backend can still take the
//! request if it is nothing.
//!
//! Pingora writes a header as soon as it has it, and its filters cannot keep one. But a header of an informational status
//! is passed over: by HTTP/2 always, by HTTP/1 if it is told so. What is held goes by as such, nothing counts as written,
//! and every rule of retries stays as it is. When the answer is good, its real header is written from within the filter of
//! its body, ahead of what was held of that.

use std::mem;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use super::context::RequestContext;
use super::reject::Reject;
use super::retry;
use crate::downstream::{self, Rewrite};
use crate::pool::FailureKind;
use crate::request::{MAX_WHOLE_BYTES, Opening, Verdict};
use crate::state::State;

/// What goes by in place of a header that is held: any informational status that asks for nothing.
const PASSED_OVER: StatusCode = StatusCode::EARLY_HINTS;

/// An answer that is held.
#[derive(Debug)]
pub(super) struct Held {
    opening: Opening,
    /// As it will be written, and what is changed in it then; none before the filter of headers was there.
    header: Option<(Box<ResponseHeader>, Rewrite)>,
}

/// Whether the answer with this header is to be held, and looked at.
pub(super) fn wants(header: &ResponseHeader, is_stream: bool, ctx: &RequestContext) -> Option<Held> {
    let route = ctx.route.as_ref()?;
    let generates = route.plan.endpoint.is_some_and(|endpoint| endpoint.generates());
    let may_be_nothing = header.status.is_success() && header.status != StatusCode::NO_CONTENT;
    if !generates || !route.pool().holds_header || !may_be_nothing {
        return None;
    }
    let length = header.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let is_json = header.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let opening = match (is_stream, length) {
        // There will be no body to look at.
        (_, Some(0)) => return None,
        (true, _) => Opening::of_stream(),
        (false, Some(length)) if is_json && length <= MAX_WHOLE_BYTES => Opening::of_whole(),
        (false, None) if is_json => Opening::of_whole(),
        (false, _) => return None,
    };
    Some(Held { opening, header: None })
}

/// Keeps `header` if the answer is held, and lets one go by that is passed over.
pub(super) fn keep_header(
    session: &mut Session,
    header: &mut ResponseHeader,
    rewrite: Rewrite,
    ctx: &mut RequestContext,
) -> Result<()> {
    let Some(held) = &mut ctx.answer.held else { return Ok(()) };
    let passed_over = ResponseHeader::build_no_case(PASSED_OVER, Some(0))?;
    held.header = Some((Box::new(mem::replace(header, passed_over)), rewrite));
    session.set_ignore_info_resp(true);
    Ok(())
}

/// Looks at a piece of an answer that is held, and takes it. When the answer is good all that was taken comes back, behind
/// the header. An error ends the attempt: another follows, or the client is told why none does.
pub(super) fn look(
    state: &State,
    session: &mut Session,
    bytes: &mut Option<Bytes>,
    end_of_stream: bool,
    ctx: &mut RequestContext,
) -> Result<()> {
    let Some(held) = &mut ctx.answer.held else { return Ok(()) };
    let piece = bytes.take().unwrap_or_default();
    let verdict = match held.opening.push(&piece) {
        Verdict::Wait if end_of_stream => held.opening.end(),
        verdict => verdict,
    };
    match verdict {
        Verdict::Wait => Ok(()),
        Verdict::Good => release(session, bytes, ctx),
        Verdict::Aborted => Err(give_up(state, ctx, FailureKind::Aborted)
            .unwrap_or_else(|attempts| ctx.refuse(Reject::UpstreamFailed { attempts }))),
        Verdict::Failed => match give_up(state, ctx, FailureKind::ServerError) {
            Ok(error) => Err(error),
            // Nobody else can be asked, and the engine has said what is wrong.
            Err(_) => release(session, bytes, ctx),
        },
    }
}

/// Writes the header, and gives back what was taken of the body.
fn release(session: &mut Session, bytes: &mut Option<Bytes>, ctx: &mut RequestContext) -> Result<()> {
    let Some(Held { opening, header: Some((header, rewrite)) }) = ctx.answer.held.take() else { return Ok(()) };
    session.set_ignore_info_resp(false);
    // Where the stream was opened while the request waited it has had a header.
    if !ctx.is_opened {
        downstream::rewrite(session, rewrite);
        downstream::write_header_now(session, header)?;
    }
    *bytes = Some(opening.into_bytes().freeze());
    // No attempt follows, so nothing needs the request's body any more.
    ctx.body = None;
    Ok(())
}

/// Drops the answer in favour of another attempt; if there can be none, says how many there were.
fn give_up(state: &State, ctx: &mut RequestContext, kind: FailureKind) -> std::result::Result<Box<Error>, u32> {
    state.metrics.answer_aborted(&ctx.labels());
    if kind == FailureKind::Aborted {
        retry::record_failure(ctx, kind);
    }
    let is_retry = retry::on_abort(state, ctx);
    let then = if is_retry { "trying another" } else { "no other can be tried" };
    log::info!(
        "request {}: attempt {} was given up by the engine before a token; {then}",
        ctx.request_id,
        ctx.attempts
    );
    if !is_retry {
        return Err(ctx.attempts);
    }
    if kind != FailureKind::Aborted {
        // Otherwise counted when the error goes by.
        retry::record_failure(ctx, kind);
    }
    ctx.answer.is_dropped = true;
    let mut error = Error::explain(ErrorType::InternalError, "given up by the engine").into_up();
    error.set_retry(true);
    Ok(error)
}
