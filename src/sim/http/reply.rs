//! Responses: status, headers in vLLM's manner, body.

use pingora_core::Result;
use pingora_core::protocols::http::v1::server::HttpSession;
use pingora_http::ResponseHeader;

use crate::sim::answer::quote;
use crate::sim::endpoint::Endpoint;

/// What tells responses of several engines, lives and bodies apart.
#[derive(Debug, Clone)]
pub(super) struct Marks<'a> {
    /// The engine's name.
    pub(super) engine: &'a str,
    /// Its process.
    pub(super) generation: u64,
    /// Length and xxh3 of the request's body, when it was read.
    pub(super) body: Option<(usize, u64)>,
}

/// A response with a body of known length.
#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    content_type: Option<&'static str>,
    allow: Option<&'static str>,
    body: String,
}

pub(super) const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";
const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";

// === impl Reply ===

impl Reply {
    /// 200 with JSON.
    pub(super) fn json(body: String) -> Self {
        Self { status: 200, content_type: Some(JSON), allow: None, body }
    }

    /// 200 with Prometheus text.
    pub(super) fn metrics(body: String) -> Self {
        Self { status: 200, content_type: Some(METRICS), allow: None, body }
    }

    /// A status without a body.
    pub(super) fn empty(status: u16) -> Self {
        Self { status, content_type: None, allow: None, body: String::new() }
    }

    /// `{"detail":"Not Found"}`
    pub(super) fn no_such_path() -> Self {
        Self { status: 404, content_type: Some(JSON), allow: None, body: String::from(r#"{"detail":"Not Found"}"#) }
    }

    /// 401, as both vLLM and SGLang word it.
    pub(super) fn unauthorized() -> Self {
        Self { status: 401, content_type: Some(JSON), allow: None, body: String::from(r#"{"error":"Unauthorized"}"#) }
    }

    /// 405, with the method that would be right.
    pub(super) fn wrong_method(allow: &'static str) -> Self {
        let body = String::from(r#"{"detail":"Method Not Allowed"}"#);
        Self { status: 405, content_type: Some(JSON), allow: Some(allow), body }
    }

    /// An error in the form of the endpoint's API. `param` is the field at fault.
    pub(super) fn error(endpoint: Endpoint, status: u16, kind: &str, message: &str, param: Option<&str>) -> Self {
        let (kind, message) = (quote(kind), quote(message));
        let body = if matches!(endpoint, Endpoint::Messages | Endpoint::CountTokens) {
            format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#)
        } else {
            let param = param.map_or(String::from("null"), quote);
            format!(r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{status}}}}}"#)
        };
        Self { status, content_type: Some(JSON), allow: None, body }
    }

    /// An error of validation: in the OpenAI form whatever the endpoint.
    pub(super) fn invalid(error: &str, param: Option<&str>) -> Self {
        Self::error(Endpoint::Chat, 400, "Bad Request", &format!("1 validation error:\n  {error}"), param)
    }

    /// Sends it.
    pub(super) async fn send(self, session: &mut HttpSession, marks: &Marks<'_>) -> Result<()> {
        let mut header = self::header(self.status, marks)?;
        if let Some(allow) = self.allow {
            header.insert_header("allow", allow)?;
        }
        header.insert_header("content-length", self.body.len().to_string())?;
        if let Some(content_type) = self.content_type {
            header.insert_header("content-type", content_type)?;
        }
        session.write_response_header(Box::new(header)).await?;
        if !self.body.is_empty() {
            session.write_body(self.body.as_bytes()).await?;
        }
        session.finish_body().await?;
        Ok(())
    }
}

/// Sends the header of an event stream.
pub(super) async fn open_stream(session: &mut HttpSession, marks: &Marks<'_>) -> Result<()> {
    let mut header = header(200, marks)?;
    header.insert_header("content-type", EVENT_STREAM)?;
    header.insert_header("transfer-encoding", "chunked")?;
    session.write_response_header(Box::new(header)).await
}

/// Answers bytes that are not HTTP.
pub(super) async fn invalid_http(session: &mut HttpSession) -> Result<()> {
    const TEXT: &str = "Invalid HTTP request received.";
    let mut header = ResponseHeader::build(400, Some(4))?;
    header.insert_header("server", "uvicorn")?;
    header.insert_header("content-type", "text/plain; charset=utf-8")?;
    header.insert_header("content-length", TEXT.len())?;
    session.write_response_header(Box::new(header)).await?;
    session.write_body(TEXT.as_bytes()).await?;
    session.finish_body().await?;
    session.shutdown().await;
    Ok(())
}

fn header(status: u16, marks: &Marks<'_>) -> Result<ResponseHeader> {
    let mut header = ResponseHeader::build(status, Some(12))?;
    header.insert_header("server", "uvicorn")?;
    header.insert_header("vary", "Origin")?;
    header.insert_header("x-sim-engine", marks.engine)?;
    header.insert_header("x-sim-generation", marks.generation.to_string())?;
    if let Some((bytes, xxh3)) = marks.body {
        header.insert_header("x-sim-body-bytes", bytes.to_string())?;
        header.insert_header("x-sim-body-xxh3", format!("{xxh3:016x}"))?;
    }
    Ok(header)
}
