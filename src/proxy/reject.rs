//! Error replies that are made here: the one place where a fault becomes an HTTP status.
//!
//! What a reply says is in `message`, the form that it is sent in in `form`.

mod form;
mod message;

use std::time::Duration;

use http::StatusCode;

use super::body::BodyError;
use crate::auth::{Denied, Limited};
use crate::config::Config;
use crate::downstream::Fault;
use crate::metrics::Reason;
use crate::pool::TimeLimit;
use crate::queue::Refusal;
use crate::request::ReadError;

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
}

/// At least one, and rounded up: whoever comes back then is not too early.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
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
mod tests;
