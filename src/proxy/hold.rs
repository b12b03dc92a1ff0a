//! Holds an answer back until it is known what it begins with ([`Opening`]), so that another backend can still take the
//! request if it is nothing. When the answer is good, its header goes ahead of what was held of its body.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;

use super::context::RequestContext;
use super::reject::Reject;
use super::retry;
use crate::downstream::Rewrite;
use crate::pool::FailureKind;
use crate::request::{MAX_WHOLE_BYTES, Opening, Verdict};
use crate::state::State;

/// An answer that is held.
#[derive(Debug)]
pub(super) struct Held {
    opening: Opening,
    /// As it will be written, and what is changed in it then; none before the filter of headers was there.
    header: Option<(Box<ResponseHeader>, Rewrite)>,
}

// === impl Held ===

impl Held {
    /// Keeps the header until the answer is known to be good.
    pub(super) fn keep(&mut self, header: Box<ResponseHeader>, rewrite: Rewrite) {
        self.header = Some((header, rewrite));
    }
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

/// Looks at a piece of an answer that is held, and takes it. When the answer is good all that was taken comes back in its
/// place, and the header is returned that goes ahead of it. An error ends the attempt: another follows, or the client is told
/// why none does.
pub(super) fn look(
    state: &State,
    bytes: &mut Option<Bytes>,
    end_of_stream: bool,
    ctx: &mut RequestContext,
) -> Result<Option<(Box<ResponseHeader>, Rewrite)>> {
    let Some(held) = &mut ctx.answer.held else { return Ok(None) };
    let piece = bytes.take().unwrap_or_default();
    let verdict = match held.opening.push(&piece) {
        Verdict::Wait if end_of_stream => held.opening.end(),
        verdict => verdict,
    };
    match verdict {
        Verdict::Wait => Ok(None),
        Verdict::Good => Ok(release(bytes, ctx)),
        Verdict::Aborted => Err(give_up(state, ctx, FailureKind::Aborted)
            .unwrap_or_else(|attempts| ctx.refuse(Reject::UpstreamFailed { attempts }))),
        Verdict::Failed => match give_up(state, ctx, FailureKind::ServerError) {
            Ok(error) => Err(error),
            // Nobody else can be asked, and the engine has said what is wrong.
            Err(_) => Ok(release(bytes, ctx)),
        },
    }
}

/// Gives back the header, and what was taken of the body.
fn release(bytes: &mut Option<Bytes>, ctx: &mut RequestContext) -> Option<(Box<ResponseHeader>, Rewrite)> {
    let Held { opening, header } = ctx.answer.held.take()?;
    *bytes = Some(opening.into_bytes().freeze());
    // No attempt follows, so nothing needs the request's body any more.
    ctx.body = None;
    header
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
