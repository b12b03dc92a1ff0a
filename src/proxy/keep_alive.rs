//! Signs of life for a client whose streamed request waits: a header, and comments, before there is an answer.
//!
//! After `queue.keep_alive` without a backend the stream is *opened*: status 200, `text/event-stream`, and a comment line
//! now and then, which clients of event streams pass over. The answer's own header is dropped
//! then, and its body follows. An attempt may still fail and be repeated, as nothing of an answer has been sent. What is no
//! event stream in the end, an error of the engine or of ours, becomes an error event.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{StatusCode, Version};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::timeout;

use super::context::{RequestContext, Route};
use super::reject::Reject;
use super::{callers, event};
use crate::request::Endpoint;
use crate::state::State;

/// What is sent now and then.
const COMMENT: &[u8] = b": waiting\n\n";

/// How long a client may take to accept it. It has not got much yet; one that takes nothing is as good as gone.
const WRITE_LIMIT: Duration = Duration::from_secs(1);

/// The longest answer that is made into an event; engines' errors are much shorter.
const MAX_EVENT_BYTES: usize = 64 * 1024;

/// An answer that is no event stream, on its way into one event.
#[derive(Debug)]
pub(super) struct Unstreamed {
    endpoint: Option<Endpoint>,
    status: StatusCode,
    body: Vec<u8>,
}

/// How often a request is given a sign of life; none if it cannot take one.
pub(super) fn interval(session: &Session, route: &Route) -> Option<Duration> {
    // Without chunks the end of an HTTP/1.0 stream cannot be told from a break.
    let is_new = session.req_header().version != Version::HTTP_10;
    route.pool().keep_alive.filter(|_| is_streamed(route) && is_new)
}

/// Whether the answer will be a stream of events.
pub(super) fn is_streamed(route: &Route) -> bool {
    use Endpoint::{ChatCompletions, Completions, Generate, Messages, Responses};
    let endpoint = route.plan.endpoint;
    route.plan.is_stream && matches!(endpoint, Some(ChatCompletions | Completions | Generate | Messages | Responses))
}

/// Opens the stream, if it is not open yet, and sends a comment.
pub(super) async fn send(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<()> {
    match timeout(WRITE_LIMIT, write(state, session, ctx)).await {
        Ok(written) => written.map_err(|error| error.into_down()),
        Err(_) => Err(Error::explain(ErrorType::WriteTimedout, "a sign of life").into_down()),
    }
}

async fn write(state: &State, session: &mut Session, ctx: &mut RequestContext) -> Result<()> {
    if !std::mem::replace(&mut ctx.is_opened, true) {
        let mut header = ResponseHeader::build(StatusCode::OK, Some(6))?;
        header.insert_header(CONTENT_TYPE, "text/event-stream; charset=utf-8")?;
        header.insert_header(CACHE_CONTROL, "no-cache")?;
        header.insert_header("x-request-id", &ctx.request_id)?;
        if session.req_header().version == Version::HTTP_11 {
            header.insert_header(TRANSFER_ENCODING, "chunked")?;
        }
        if state.config.load().server.response_headers {
            header.insert_header("x-warmgate-request-id", &ctx.request_id)?;
        }
        callers::annotate(&mut header, ctx.caller.as_ref())?;
        session.downstream_session.write_response_header(Box::new(header)).await?;
    }
    session.downstream_session.write_response_body(Bytes::from_static(COMMENT), false).await
}

/// Prepares for an answer on a stream that was opened; one without a body, of which nothing more is heard, becomes its event
/// at once.
pub(super) async fn expect(session: &mut Session, header: &ResponseHeader, ctx: &mut RequestContext) -> Result<()> {
    if !ctx.is_opened || ctx.answer.is_stream || header.status.is_informational() {
        return Ok(());
    }
    let unstreamed = Unstreamed { endpoint: ctx.endpoint(), status: header.status, body: Vec::new() };
    let is_empty = header.headers.get(CONTENT_LENGTH).is_some_and(|length| length == "0");
    if is_empty || header.status == StatusCode::NO_CONTENT {
        let event = unstreamed.event();
        return session.downstream_session.write_response_body(event, false).await.map_err(|error| error.into_down());
    }
    ctx.answer.unstreamed = Some(unstreamed);
    Ok(())
}

// === impl Unstreamed ===

impl Unstreamed {
    /// Keeps a piece of the answer back; at its end, puts the event in its place.
    pub(super) fn convert(&mut self, bytes: &mut Option<Bytes>, is_end: bool) {
        let piece = bytes.take().unwrap_or_default();
        let room = MAX_EVENT_BYTES.saturating_sub(self.body.len());
        self.body.extend_from_slice(&piece[..piece.len().min(room)]);
        *bytes = Some(if is_end { self.event() } else { Bytes::new() });
    }

    fn event(&self) -> Bytes {
        let is_error = !self.status.is_success();
        // What was cut is no longer JSON.
        let is_json = serde_json::from_slice::<IgnoredAny>(&self.body).is_ok();
        let is_right =
            !is_error || serde_json::from_slice::<Value>(&self.body).is_ok_and(|body| body["error"].is_object());
        if is_json && is_right {
            return event::of_json(&self.body, is_error, self.endpoint);
        }
        event::of_reject(&Reject::UpstreamStatus { status: self.status.as_u16() }, self.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(status: u16, pieces: &[&str]) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        let mut unstreamed = Unstreamed { endpoint: Some(Endpoint::ChatCompletions), status, body: Vec::new() };
        let mut out = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let mut bytes = Some(Bytes::copy_from_slice(piece.as_bytes()));
            unstreamed.convert(&mut bytes, at + 1 == pieces.len());
            out.extend_from_slice(&bytes.unwrap());
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_error_in_pieces_becomes_one_event() {
        let event = converted(400, &["{\"error\":\r\n {\"message\":", " \"too long\"}}\n", ""]);
        assert_eq!(event, "data: {\"error\":   {\"message\": \"too long\"}} \n\n");
    }

    #[test]
    fn what_says_nothing_is_said_for_it() {
        for pieces in [&["Internal Server Error"][..], &["{\"detail\": 1}"], &[""], &["{\"error\": {\"mess"]] {
            let event = converted(500, pieces);
            let json: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap().trim_end()).unwrap();
            assert_eq!(json["error"]["code"], "upstream_status");
            assert!(json["error"]["message"].as_str().unwrap().contains("500"), "{event}");
        }
    }

    #[test]
    fn an_answer_that_should_have_been_streamed_is_an_event() {
        assert_eq!(converted(200, &["{\"id\": 1}"]), "data: {\"id\": 1}\n\n");
    }

    #[test]
    fn an_endless_error_is_not_kept() {
        let piece = "x".repeat(MAX_EVENT_BYTES);
        assert!(converted(500, &[&piece, &piece, "x"]).len() < 500);
    }
}
