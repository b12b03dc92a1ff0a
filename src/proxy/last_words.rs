//! The end of a stream that its backend does not end: an error event, so that the client knows.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use pingora_core::Result;
use pingora_proxy::Session;

use super::context::RequestContext;
use super::reject::Reject;
use crate::request::{Endpoint, ResponseReader};

/// Whether an event can be added to what was sent: the answer is a stream of events, and the last line of it is whole.
pub(super) fn can_be_said(session: &Session, ctx: &RequestContext) -> bool {
    let has_no_length = session.response_written().is_some_and(|header| !header.headers.contains_key(CONTENT_LENGTH));
    let is_between_lines = ctx.answer.reader.as_ref().is_some_and(ResponseReader::is_between_lines);
    ctx.answer.is_stream && ctx.answer.is_success && has_no_length && is_between_lines
}

/// Says what became of the answer, and ends it.
pub(super) async fn say(session: &mut Session, ctx: &RequestContext) -> Result<()> {
    let reject = ctx.answer.limit.map_or(Reject::BrokenOff, Reject::TimedOut);
    let endpoint = ctx.route.as_ref().and_then(|route| route.plan.endpoint);
    let event = event(&reject, endpoint);
    session.downstream_session.write_response_body(event, true).await
}

/// The event, in the form that the endpoint's clients read.
fn event(reject: &Reject, endpoint: Option<Endpoint>) -> Bytes {
    // The empty line ends an event of which the last line was not sent.
    let (before, body) = match endpoint {
        Some(Endpoint::Messages) => ("\nevent: error\ndata: ", reject.anthropic_body()),
        _ => ("\ndata: ", reject.body()),
    };
    [before.as_bytes(), &body, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::TimeLimit;

    #[test]
    fn the_event_has_the_form_of_its_endpoint() {
        let reject = Reject::TimedOut(TimeLimit::BetweenTokens);
        let chat = event(&reject, Some(Endpoint::ChatCompletions));
        let json = chat.strip_prefix(b"\ndata: ").unwrap().trim_ascii_end();
        let value: serde_json::Value = serde_json::from_slice(json).unwrap();
        assert_eq!(value["error"]["code"], "between_tokens_timeout");
        let messages = event(&reject, Some(Endpoint::Messages));
        let json = messages.strip_prefix(b"\nevent: error\ndata: ").unwrap().trim_ascii_end();
        let value: serde_json::Value = serde_json::from_slice(json).unwrap();
        assert_eq!((&value["type"], &value["error"]["type"]), (&"error".into(), &"api_error".into()));
    }
}
