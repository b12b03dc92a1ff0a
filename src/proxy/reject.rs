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
use crate::auth::{Denied, LimitKind, Limited};
use crate::config::Config;
use crate::downstream::Fault;
use crate::metrics::Reason;
use crate::pool::TimeLimit;
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
    /// The pool's backends are full, and waiting is no use.
    Shed {
        /// Why it does not wait, or no longer.
        refusal: Refusal,
        /// The pool's name.
        pool: String,
        /// When what waits will be gone, as far as that is known.
        estimate: Duration,
    },
    /// The last attempt, or the whole request, took longer than this limit.
    TimedOut(TimeLimit),
    /// An answer that has begun broke off.
    BrokenOff,
    /// The request header is not valid HTTP.
    BadRequest,
    /// The request was refused on its way in.
    Malformed(Fault),
    /// Its header was not whole in time.
    HeaderTimeout(Duration),
    /// A protocol upgrade was asked for.
    Upgrade,
    /// The request came without a key where one is required, or with one that is nobody's.
    Unauthorized {
        /// Whether it had one.
        has_key: bool,
    },
    /// Its caller may not have what it asks for.
    Denied {
        /// What that is.
        denied: Denied,
        /// The model that the client named.
        model: Option<String>,
    },
    /// Its caller has used up one of its limits.
    Limited(Limited),
    /// The backend wants another key than it was shown.
    BackendKey {
        /// The pool's name.
        pool: String,
        /// Whether it was shown one.
        has_key: bool,
    },
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
    /// What a fault of a message means for its client.
    pub(crate) fn malformed(fault: Fault, config: &Config) -> Self {
        match fault {
            Fault::LargeHeader => Self::HeaderTooLarge { limit: config.server.max_header_bytes },
            Fault::SlowHeader => Self::HeaderTimeout(config.limits.header_timeout),
            Fault::NoRoom => Self::NoRoom,
            Fault::Chunk => Self::BadBody,
            fault => Self::Malformed(fault),
        }
    }

    /// The status that is sent.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadJson(_) | Self::BadBody | Self::BadRequest | Self::Upgrade => StatusCode::BAD_REQUEST,
            Self::Malformed(Fault::LongTarget) => StatusCode::URI_TOO_LONG,
            Self::Malformed(Fault::ManyFields) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeaderTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownModel { .. } | Self::Denied { denied: Denied::Model, .. } => StatusCode::NOT_FOUND,
            Self::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Self::Denied { .. } => StatusCode::FORBIDDEN,
            Self::Limited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoBackend { .. } | Self::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTimeout(_) | Self::HeaderTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            // Not 503, which would say that the service is down: balancers in front would go elsewhere.
            Self::Shed { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::UpstreamFailed { .. } | Self::UpstreamStatus { .. } | Self::BackendKey { .. } | Self::BrokenOff => {
                StatusCode::BAD_GATEWAY
            }
            Self::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// How it is counted.
    pub fn reason(&self) -> Reason {
        match self {
            Self::BadJson(_) | Self::BadBody | Self::BadRequest | Self::Upgrade => Reason::BadRequest,
            Self::Malformed(Fault::LongTarget | Fault::ManyFields) => Reason::TooLarge,
            Self::Malformed(_) => Reason::BadRequest,
            Self::HeaderTimeout(_) => Reason::HeaderTimeout,
            Self::TooLarge { .. } | Self::HeaderTooLarge { .. } => Reason::TooLarge,
            Self::UnknownModel { .. } => Reason::UnknownModel,
            Self::NoBackend { .. } => Reason::NoBackend,
            Self::NoRoom => Reason::NoRoom,
            Self::Shed { .. } => Reason::Shed,
            Self::BodyTimeout(_) => Reason::BodyTimeout,
            Self::UpstreamFailed { .. } | Self::UpstreamStatus { .. } => Reason::UpstreamFailed,
            Self::Unauthorized { .. } => Reason::Unauthorized,
            Self::Denied { .. } => Reason::Denied,
            Self::Limited(_) => Reason::Limited,
            Self::BackendKey { .. } => Reason::BackendKey,
            Self::TimedOut(_) => Reason::UpstreamTimeout,
            Self::BrokenOff => Reason::Truncated,
            Self::Internal => Reason::Internal,
        }
    }

    /// Seconds after which a client may try again, where that can help.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            Self::NoBackend { .. } | Self::NoRoom => Some(1),
            Self::Shed { estimate, .. } => Some(whole_seconds(*estimate).min(MAX_RETRY_AFTER_SECONDS)),
            Self::Limited(limited) => Some(whole_seconds(limited.retry_after)),
            _ => None,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::BadJson(_) => "invalid_json",
            Self::BadBody => "invalid_body",
            Self::BadRequest => "invalid_request",
            Self::Malformed(Fault::LongTarget) => "target_too_long",
            Self::Malformed(Fault::ManyFields) => "too_many_fields",
            Self::Malformed(_) => "invalid_request",
            Self::HeaderTimeout(_) => "header_timeout",
            Self::Upgrade => "upgrade_not_supported",
            Self::TooLarge { .. } => "request_too_large",
            Self::HeaderTooLarge { .. } => "header_too_large",
            Self::UnknownModel { .. } | Self::Denied { denied: Denied::Model, .. } => "model_not_found",
            Self::Unauthorized { .. } => "invalid_api_key",
            Self::Denied { .. } => "permission_denied",
            Self::Limited(_) => "rate_limit_exceeded",
            Self::BackendKey { .. } => "backend_key_refused",
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
            Self::Shed { refusal, pool, estimate } => shed(*refusal, pool, *estimate),
            Self::BodyTimeout(limit) => {
                format!("The request body did not arrive within {limit:?} (limits.body_timeout).")
            }
            Self::UpstreamFailed { attempts } => {
                format!("The backends failed before they replied ({attempts} attempts).")
            }
            Self::UpstreamStatus { status } => format!("The backend answered with status {status}."),
            Self::Unauthorized { has_key: false } => {
                "An API key is required: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.".into()
            }
            Self::Unauthorized { has_key: true } => "The API key is not known here.".into(),
            Self::Denied { denied: Denied::Model, model } => {
                let model = shortened(model.as_deref().unwrap_or_default(), MAX_NAME_BYTES);
                format!("The model `{model}` does not exist, or this API key may not use it.")
            }
            Self::Denied { denied: Denied::NoModel, .. } => {
                "This API key is for certain models only; name one of them in `model`.".into()
            }
            Self::Denied { denied: Denied::Pool, .. } => "This API key may not be used for this.".into(),
            Self::Limited(Limited { kind, allowed, retry_after }) => {
                let wait = retry_after.as_secs_f64();
                format!("This API key is limited to {allowed} {}. Try again in {wait:.1} s.", in_words(*kind))
            }
            Self::BackendKey { pool, has_key: false } => format!(
                "The backends of pool `{pool}` want an API key, and this proxy has none for them: set the pool's \
                 api_key_file, or forward_credentials to send the caller's."
            ),
            Self::BackendKey { pool, has_key: true } => {
                format!("The backends of pool `{pool}` refuse the API key of the pool's api_key_file.")
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
            Self::Malformed(fault) => format!("The request cannot be served: {}.", fault.explained()),
            Self::HeaderTimeout(limit) => {
                format!("The request header did not arrive within {limit:?} (limits.header_timeout).")
            }
            Self::Upgrade => "Protocol upgrades are not supported.".into(),
            Self::Internal => "The proxy failed to handle this request.".into(),
        }
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

fn shed(refusal: Refusal, pool: &str, estimate: Duration) -> String {
    let seconds = whole_seconds(estimate).min(MAX_RETRY_AFTER_SECONDS);
    let what = match refusal {
        Refusal::Full => "its queue is full (queue.max_requests, queue.max_bytes)",
        Refusal::TooLong => "what waits already takes longer than a request may wait (queue.max_wait, timeouts.total)",
        Refusal::TimedOut => "the request has waited for as long as it may (queue.max_wait)",
        Refusal::Displaced => "its queue is full, and a more urgent request took this one's place",
    };
    format!("All backends of pool `{pool}` are busy, and {what}. Try again in {seconds} s.")
}

/// At least one, and rounded up: whoever comes back then is not too early.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// A limit, as it follows the number that it allows.
fn in_words(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Requests => "requests a minute",
        LimitKind::Concurrent => "requests at a time",
        LimitKind::Tokens => "tokens a minute",
        LimitKind::UncachedTokens => "uncached prompt tokens a minute",
    }
}

impl From<Limited> for Reject {
    fn from(limited: Limited) -> Self {
        Self::Limited(limited)
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
    fn a_limit_says_which_it_is_and_when_to_come_back() {
        for (kind, named, millis, seconds) in [
            (LimitKind::Requests, "requests", 1, "1"),
            (LimitKind::Concurrent, "requests", 1000, "1"),
            (LimitKind::Tokens, "tokens", 1001, "2"),
            (LimitKind::UncachedTokens, "tokens", 61_000, "61"),
        ] {
            let retry_after = Duration::from_millis(millis);
            let reject = Reject::from(Limited { kind, allowed: std::num::NonZeroU32::MIN, retry_after });
            let header = reject.header(2, "id").unwrap();
            assert_eq!((header.status.as_u16(), &header.headers["retry-after"]), (429, &seconds.parse().unwrap()));
            let value: serde_json::Value = serde_json::from_slice(&reject.body()).unwrap();
            assert_eq!(
                (&value["error"]["code"], &value["error"]["type"]),
                (&"rate_limit_exceeded".into(), &named.into())
            );
        }
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
        assert!(!Reject::TimedOut(TimeLimit::Read).header(2, "id").unwrap().headers.contains_key("retry-after"));
    }
}
