//! The form of error replies: OpenAI's, which every client library reads, `{"error": {"message", "type", "param", "code"}}`;
//! in streams of `/v1/messages` Anthropic's.

use bytes::Bytes;
use http::StatusCode;
use pingora_http::ResponseHeader;
use serde::Serialize;

use super::Reject;
use crate::auth::{LimitKind, Limited};

#[derive(Serialize)]
struct Reply<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    message: String,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl Reject {
    /// What kind of error it is, in OpenAI's words.
    fn kind(&self) -> &'static str {
        match self {
            Self::Limited(Limited { kind: LimitKind::Requests | LimitKind::Concurrent, .. }) => "requests",
            Self::Limited(_) => "tokens",
            Self::Shed { .. } => "rate_limit_error",
            _ if self.status().is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The reply's body.
    pub fn body(&self) -> Bytes {
        let error = ErrorBody {
            message: self.message(),
            r#type: self.kind(),
            param: (self.code() == "model_not_found").then_some("model"),
            code: self.code(),
        };
        // Strings and no maps: serialising cannot fail.
        serde_json::to_vec(&Reply { error }).map(Bytes::from).unwrap_or_default()
    }

    /// The body of an error event in Anthropic's form.
    pub fn anthropic_body(&self) -> Bytes {
        let kind = match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        let error = serde_json::json!({ "type": kind, "message": self.message() });
        serde_json::json!({ "type": "error", "error": error }).to_string().into()
    }

    /// The reply's header for a body of `length` bytes.
    ///
    /// # Errors
    /// When `request_id` cannot stand in a header; ids are checked when they are taken, so it can.
    pub fn header(&self, length: usize, request_id: &str) -> pingora_core::Result<Box<ResponseHeader>> {
        let mut header = ResponseHeader::build(self.status(), Some(5))?;
        header.insert_header(http::header::CONTENT_TYPE, "application/json")?;
        header.insert_header(http::header::CONTENT_LENGTH, length)?;
        header.insert_header("x-request-id", request_id)?;
        if matches!(self, Self::Unauthorized { .. }) {
            header.insert_header(http::header::WWW_AUTHENTICATE, "Bearer realm=\"warmgate\"")?;
        }
        if let Some(seconds) = self.retry_after_seconds() {
            header.insert_header(http::header::RETRY_AFTER, seconds)?;
        }
        Ok(Box::new(header))
    }
}
