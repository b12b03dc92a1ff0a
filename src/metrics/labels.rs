//! The labels of metrics: bounded sets of values.

use std::fmt::Write as _;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// How a request ended, as the `reason` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A backend's reply was delivered whole, whatever its status.
    Served,
    /// The client closed its connection first.
    ClientGone,
    /// The backend's reply ended before it was complete.
    Truncated,
    /// Rejected: not valid JSON, or a wrong request.
    BadRequest,
    /// Rejected: the body, or the header, is larger than the limit.
    TooLarge,
    /// Rejected: no pool serves the model.
    UnknownModel,
    /// Rejected: no backend can take it.
    NoBackend,
    /// Shed: no room to hold the body.
    NoRoom,
    /// Shed: every backend is full, and waiting was no use.
    Shed,
    /// Rejected: the header was not whole in time.
    HeaderTimeout,
    /// Rejected: the body did not arrive in time.
    BodyTimeout,
    /// Rejected: every attempt failed.
    UpstreamFailed,
    /// Rejected: the backend did not reply in time.
    UpstreamTimeout,
    /// Rejected: the backend wants another key than it was shown.
    BackendKey,
    /// Rejected: no key, or nobody's.
    Unauthorized,
    /// Rejected: the caller may not use the model or the pool.
    Denied,
    /// Rejected: the caller has used up one of its limits.
    Limited,
    /// Answered by this process itself, such as a merged model list.
    Local,
    /// The process ended before the reply did.
    Cut,
    /// Rejected: a fault of this program.
    Internal,
}

/// What ended an attempt that was followed by another, as the `cause` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryCause {
    /// No connection to the backend.
    Connect,
    /// A pooled connection turned out to be closed.
    StaleConnection,
    /// The connection failed before a response.
    Reset,
    /// A status that is configured to be retried.
    Status,
    /// A limit of time, before a response.
    TimeLimit,
    /// The engine gave up: an answer without a token, or an error in its place.
    Aborted,
}

/// Identifies a backend's series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BackendLabels {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The backend's name; empty where none was chosen.
    pub backend: Arc<str>,
}

/// Identifies a pool's series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolLabels {
    /// The pool's name.
    pub pool: Arc<str>,
}

/// Identifies the series of what a policy would have got.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ShadowLabels {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The policy's name; `actual` for what was really done.
    pub policy: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) pool: Arc<str>,
    pub(super) backend: Arc<str>,
    pub(super) status: u16,
    pub(super) reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RetryLabels {
    pub(super) pool: Arc<str>,
    pub(super) backend: Arc<str>,
    pub(super) cause: RetryCause,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TrustLabels {
    pub(super) pool: Arc<str>,
    pub(super) backend: Arc<str>,
    pub(super) belief: &'static str,
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) pool: Arc<str>,
    pub(super) backend: Arc<str>,
    pub(super) limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct TokenizerLabels {
    pub(super) pool: Arc<str>,
    pub(super) outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabels {
    pub(super) outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) version: &'static str,
}

// === impl Reason, RetryCause ===

impl Reason {
    /// All there are.
    pub const ALL: [Self; 20] = [
        Self::Served,
        Self::ClientGone,
        Self::Truncated,
        Self::BadRequest,
        Self::TooLarge,
        Self::UnknownModel,
        Self::NoBackend,
        Self::NoRoom,
        Self::Shed,
        Self::HeaderTimeout,
        Self::BodyTimeout,
        Self::UpstreamFailed,
        Self::UpstreamTimeout,
        Self::BackendKey,
        Self::Unauthorized,
        Self::Denied,
        Self::Limited,
        Self::Local,
        Self::Cut,
        Self::Internal,
    ];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::ClientGone => "client_gone",
            Self::Truncated => "truncated",
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::UnknownModel => "unknown_model",
            Self::NoBackend => "no_backend",
            Self::NoRoom => "no_room",
            Self::Shed => "shed",
            Self::HeaderTimeout => "header_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::BackendKey => "backend_key",
            Self::Unauthorized => "unauthorized",
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::Local => "local",
            Self::Cut => "cut",
            Self::Internal => "internal",
        }
    }
}

impl RetryCause {
    pub(super) const ALL: [Self; 6] =
        [Self::Connect, Self::StaleConnection, Self::Reset, Self::Status, Self::TimeLimit, Self::Aborted];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::StaleConnection => "stale_connection",
            Self::Reset => "reset",
            Self::Status => "status",
            Self::TimeLimit => "time_limit",
            Self::Aborted => "aborted",
        }
    }
}

impl EncodeLabelValue for Reason {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.as_str())
    }
}

impl EncodeLabelValue for RetryCause {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.as_str())
    }
}
