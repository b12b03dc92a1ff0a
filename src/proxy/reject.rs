//! Error replies that are made here: the one place where a fault becomes an HTTP status.
//!
//! The form is OpenAI's, which every client library reads: `{"error": {"message", "type", "param", "code"}}`. Messages
//! say what is wrong and what would be right, and hold nothing of the request but its model name.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use pingora_http::ResponseHeader;
use serde::Serialize;

use super::body::BodyError;
use super::finish::shortened;
use crate::metrics::Reason;
use crate::pool::TimeLimit;
use crate::request::ReadError;

/// Longest part of a model's name that is repeated in a message.
const MAX_NAME_BYTES: usize = 128;

/// Why a request gets no backend's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reject {
    /// The body is not JSON where the endpoint takes only that.
    BadJson(String),
    /// The body could not be read: its framing is broken.
    BadBody,
    /// The body is larger than the limit.
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// The request header is larger than the limit.
    HeaderTooLarge {
        /// The limit, bytes.
        limit: u64,
    },
    /// No pool serves this model.
    UnknownModel {
        /// What the client asked for; empty if it named none.
        model: String,
    },
    /// The pool has no backend that can take the request.
    NoBackend {
        /// The pool's name.
        pool: String,
    },
    /// Too many bytes of bodies are held.
    NoRoom,
    /// The body did not arrive in time.
    BodyTimeout(Duration),
    /// Every attempt failed before a response.
    UpstreamFailed {
        /// How many were made.
        attempts: u32,
    },
    /// The last attempt, or the whole request, took longer than this limit.
    TimedOut(TimeLimit),
    /// An answer that has begun broke off.
    BrokenOff,
    /// The request header is not valid HTTP.
    BadRequest,
    /// A protocol upgrade was asked for.
    Upgrade,
    /// A fault of this program.
    Internal,
}

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

// === impl Reject ===

impl Reject {
    /// The status that is sent.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadJson(_) | Self::BadBody | Self::BadRequest | Self::Upgrade => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeaderTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownModel { .. } => StatusCode::NOT_FOUND,
            Self::NoBackend { .. } | Self::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::UpstreamFailed { .. } | Self::BrokenOff => StatusCode::BAD_GATEWAY,
            Self::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// How it is counted.
    pub fn reason(&self) -> Reason {
        match self {
            Self::BadJson(_) | Self::BadBody | Self::BadRequest | Self::Upgrade => Reason::BadRequest,
            Self::TooLarge { .. } | Self::HeaderTooLarge { .. } => Reason::TooLarge,
            Self::UnknownModel { .. } => Reason::UnknownModel,
            Self::NoBackend { .. } => Reason::NoBackend,
            Self::NoRoom => Reason::NoRoom,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::UpstreamFailed { .. } => Reason::UpstreamFailed,
            Self::TimedOut(_) => Reason::UpstreamTimeout,
            Self::BrokenOff => Reason::Truncated,
            Self::Internal => Reason::Internal,
        }
    }

    /// Seconds after which a client may try again, where that can help.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        matches!(self, Self::NoBackend { .. } | Self::NoRoom).then_some(1)
    }

    fn code(&self) -> &'static str {
        match self {
            Self::BadJson(_) => "invalid_json",
            Self::BadBody => "invalid_body",
            Self::BadRequest => "invalid_request",
            Self::Upgrade => "upgrade_not_supported",
            Self::TooLarge { .. } => "request_too_large",
            Self::HeaderTooLarge { .. } => "header_too_large",
            Self::UnknownModel { .. } => "model_not_found",
            Self::NoBackend { .. } => "no_backend",
            Self::NoRoom => "overloaded",
            Self::BodyTimeout(_) => "body_timeout",
            Self::UpstreamFailed { .. } => "upstream_failed",
            Self::TimedOut(limit) => match limit {
                TimeLimit::Connect => "connect_timeout",
                TimeLimit::FirstToken => "first_token_timeout",
                TimeLimit::BetweenTokens => "between_tokens_timeout",
                // As it was called while there was no other.
                TimeLimit::Read | TimeLimit::Write => "upstream_timeout",
                TimeLimit::Total => "total_timeout",
            },
            Self::BrokenOff => "upstream_broke_off",
            Self::Internal => "internal_error",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::BadJson(what) => format!("The request body is not valid JSON: {what}."),
            Self::BadBody => "The request body could not be read: its framing is broken.".into(),
            Self::TooLarge { limit } => {
                format!("The request body is larger than {limit} bytes (limits.max_body_bytes).")
            }
            Self::HeaderTooLarge { limit } => {
                format!("The request header is larger than {limit} bytes (server.max_header_bytes).")
            }
            Self::UnknownModel { model } if model.is_empty() => {
                "The request names no model, and no pool takes requests without one. GET /v1/models lists what is served."
                    .into()
            }
            Self::UnknownModel { model } => {
                format!("No pool serves the model `{}`. GET /v1/models lists what is served.", shortened(model, MAX_NAME_BYTES))
            }
            Self::NoBackend { pool } => {
                format!("No backend of pool `{pool}` can take requests at the moment.")
            }
            Self::NoRoom => {
                "Too many request bytes are held at the moment (limits.max_buffered_bytes). Try again shortly.".into()
            }
            Self::BodyTimeout(limit) => {
                format!("The request body did not arrive within {limit:?} (limits.body_timeout).")
            }
            Self::UpstreamFailed { attempts } => {
                format!("The backends failed before they replied ({attempts} attempts).")
            }
            Self::TimedOut(limit) => {
                let what = match limit {
                    TimeLimit::Connect => "No connection to the backend was made in time",
                    TimeLimit::FirstToken => "The backend gave no token in time",
                    TimeLimit::BetweenTokens => "The backend went silent in the middle of its answer",
                    TimeLimit::Read => "The backend did not reply in time",
                    TimeLimit::Write => "The backend did not take the request in time",
                    TimeLimit::Total => "The request took too long altogether",
                };
                format!("{what} (timeouts.{}).", limit.name())
            }
            Self::BrokenOff => "The backend's answer broke off.".into(),
            Self::BadRequest => "The request header is not valid HTTP.".into(),
            Self::Upgrade => "Protocol upgrades are not supported.".into(),
            Self::Internal => "The proxy failed to handle this request.".into(),
        }
    }

    /// The body of an error event in Anthropic's form.
    pub fn anthropic_body(&self) -> Bytes {
        let error = serde_json::json!({ "type": "api_error", "message": self.message() });
        serde_json::json!({ "type": "error", "error": error }).to_string().into()
    }

    /// The reply's body.
    pub fn body(&self) -> Bytes {
        let is_clients_fault = self.status().is_client_error();
        let error = ErrorBody {
            message: self.message(),
            r#type: if is_clients_fault { "invalid_request_error" } else { "server_error" },
            param: matches!(self, Self::UnknownModel { .. }).then_some("model"),
            code: self.code(),
        };
        // Strings and no maps: serialising cannot fail.
        serde_json::to_vec(&Reply { error }).map(Bytes::from).unwrap_or_default()
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
        if let Some(seconds) = self.retry_after_seconds() {
            header.insert_header(http::header::RETRY_AFTER, seconds)?;
        }
        Ok(Box::new(header))
    }
}

impl From<BodyError> for Reject {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge { limit } => Self::TooLarge { limit },
            BodyError::NoRoom(_) => Self::NoRoom,
            BodyError::TimedOut(limit) => Self::BodyTimeout(limit),
            BodyError::Read(_) => Self::BadBody,
        }
    }
}

impl From<ReadError> for Reject {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Empty => Self::BadJson("it is empty".into()),
            ReadError::NotJson { offset, what } => Self::BadJson(format!("{what} at byte {offset}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_the_form_that_openai_clients_read() {
        let body = Reject::UnknownModel { model: "gpt-9".into() }.body();
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let error = &value["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"], "model_not_found");
        assert_eq!(error["param"], "model");
        assert!(error["message"].as_str().unwrap().contains("`gpt-9`"), "{error}");
    }

    #[test]
    fn an_endless_model_name_is_cut_at_a_character() {
        let body = Reject::UnknownModel { model: "ä".repeat(100_000) }.body();
        assert!(body.len() < 500, "{} bytes", body.len());
    }

    #[test]
    fn shedding_says_when_to_come_back() {
        let header = Reject::NoRoom.header(2, "id").unwrap();
        assert_eq!(header.status, 503);
        assert_eq!(header.headers["retry-after"], "1");
        assert!(!Reject::TimedOut(TimeLimit::Read).header(2, "id").unwrap().headers.contains_key("retry-after"));
    }
}
