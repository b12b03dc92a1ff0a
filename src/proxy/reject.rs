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
use crate::queue::Refusal;
use crate::request::ReadError;

/// Longest part of a model's name that is repeated in a message.
const MAX_NAME_BYTES: usize = 128;

/// Longest `Retry-After`: OpenAI's libraries take a longer one for no advice at all.
const MAX_RETRY_AFTER_SECONDS: u32 = 60;

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
    /// A backend answered with this status on a stream that was opened already, and with nothing that could be passed on.
    UpstreamStatus {
        /// The status.
        status: u16,
    },
    /// A backend did not reply in time.
    UpstreamTimeout,
    /// The pool's backends are full, and waiting is no use.
    Shed {
        /// Why it does not wait, or no longer.
        refusal: Refusal,
        /// The pool's name.
        pool: String,
        /// When what waits will be gone, as far as that is known.
        estimate: Duration,
    },
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
            // Not 503, which would say that the service is down: balancers in front would go elsewhere.
            Self::Shed { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::UpstreamFailed { .. } | Self::UpstreamStatus { .. } => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
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
            Self::Shed { .. } => Reason::Shed,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::UpstreamFailed { .. } | Self::UpstreamStatus { .. } => Reason::UpstreamFailed,
            Self::UpstreamTimeout => Reason::UpstreamTimeout,
            Self::Internal => Reason::Internal,
        }
    }

    /// Seconds after which a client may try again, where that can help.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            Self::NoBackend { .. } | Self::NoRoom => Some(1),
            Self::Shed { estimate, .. } => Some(retry_after(*estimate)),
            _ => None,
        }
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
            Self::Shed { refusal, .. } => match refusal {
                Refusal::Full => "queue_full",
                Refusal::TooLong => "queue_too_long",
                Refusal::TimedOut => "queue_timed_out",
                Refusal::Displaced => "queue_displaced",
            },
            Self::BodyTimeout(_) => "body_timeout",
            Self::UpstreamFailed { .. } => "upstream_failed",
            Self::UpstreamStatus { .. } => "upstream_status",
            Self::UpstreamTimeout => "upstream_timeout",
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
            Self::Shed { refusal, pool, estimate } => shed(*refusal, pool, *estimate),
            Self::BodyTimeout(limit) => {
                format!("The request body did not arrive within {limit:?} (limits.body_timeout).")
            }
            Self::UpstreamFailed { attempts } => {
                format!("The backends failed before they replied ({attempts} attempts).")
            }
            Self::UpstreamStatus { status } => format!("The backend answered with status {status}."),
            Self::UpstreamTimeout => "The backend did not reply in time.".into(),
            Self::BadRequest => "The request header is not valid HTTP.".into(),
            Self::Upgrade => "Protocol upgrades are not supported.".into(),
            Self::Internal => "The proxy failed to handle this request.".into(),
        }
    }

    /// The reply's body.
    pub fn body(&self) -> Bytes {
        let error = ErrorBody {
            message: self.message(),
            r#type: match self.status() {
                StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
                status if status.is_client_error() => "invalid_request_error",
                _ => "server_error",
            },
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

fn shed(refusal: Refusal, pool: &str, estimate: Duration) -> String {
    let seconds = retry_after(estimate);
    let what = match refusal {
        Refusal::Full => "its queue is full (queue.max_requests, queue.max_bytes)",
        Refusal::TooLong => "what waits already takes longer than a request may wait (queue.max_wait)",
        Refusal::TimedOut => "the request has waited for as long as it may (queue.max_wait)",
        Refusal::Displaced => "its queue is full, and a more urgent request took this one's place",
    };
    format!("All backends of pool `{pool}` are busy, and {what}. Try again in {seconds} s.")
}

/// Whole seconds, at least one, and no more than client libraries heed.
fn retry_after(estimate: Duration) -> u32 {
    let seconds = estimate.as_secs().saturating_add(u64::from(estimate.subsec_nanos() > 0));
    seconds.clamp(1, MAX_RETRY_AFTER_SECONDS.into()) as u32
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
        let full =
            |millis| Reject::Shed { refusal: Refusal::Full, pool: "p".into(), estimate: Duration::from_millis(millis) };
        let retry_after = |millis| full(millis).header(2, "id").unwrap().headers["retry-after"].clone();
        assert_eq!([0, 1_000, 1_001, 10_000_000].map(retry_after), ["1", "1", "2", "60"]);
        assert_eq!(full(0).header(2, "id").unwrap().status, 429);
        assert!(!Reject::UpstreamTimeout.header(2, "id").unwrap().headers.contains_key("retry-after"));
    }
}
