//! The end of a stream that its backend does not end: an error event, so that the client knows.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use pingora_core::Result;
use pingora_proxy::Session;

use super::context::RequestContext;
use super::event;
use super::reject::Reject;
use crate::request::ResponseReader;

/// Whether an event can be added to what was sent: the answer is a stream of events, and the last line of it is whole.
pub(super) fn can_be_said(session: &Session, ctx: &RequestContext) -> bool {
    if ctx.answer.unstreamed.is_some() {
        // All of it was kept back, on a stream that we have opened.
        return true;
    }
    let has_no_length = session.response_written().is_some_and(|header| !header.headers.contains_key(CONTENT_LENGTH));
    let is_between_lines = ctx.answer.reader.as_ref().is_some_and(ResponseReader::is_between_lines);
    ctx.answer.is_stream && ctx.answer.is_success && has_no_length && is_between_lines
}

/// Says what became of the answer, and ends it.
pub(super) async fn say(session: &mut Session, ctx: &RequestContext) -> Result<()> {
    let reject = ctx.answer.limit.map_or(Reject::BrokenOff, Reject::TimedOut);
    let event = event::of_reject(&reject, ctx.endpoint());
    // The empty line ends an event of which the last line was not sent.
    let words: Bytes = [b"\n", &event[..]].concat().into();
    session.downstream_session.write_response_body(words, true).await
}
