//! How long the parts of an exchange with a backend may take.

use std::time::Duration;

/// Limits of a request's time at a pool's backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect, TLS included.
    pub connect: Duration,
    /// From the request sent to the first token of a streamed answer.
    pub first_token: Duration,
    /// Between two tokens of a streamed answer.
    pub between_tokens: Duration,
    /// Of an answer that is not streamed: to its header, and between two reads of it.
    pub read: Duration,
    /// For each MiB of the request that the backend has to take.
    pub write: Duration,
    /// From the request read to the end of its answer, all attempts together.
    pub total: Option<Duration>,
    /// How long an idle connection is kept for the next request.
    pub keepalive_idle: Duration,
}

/// A limit of time that a request has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeLimit {
    /// [`Timeouts::connect`].
    Connect,
    /// [`Timeouts::first_token`].
    FirstToken,
    /// [`Timeouts::between_tokens`].
    BetweenTokens,
    /// [`Timeouts::read`].
    Read,
    /// [`Timeouts::write`].
    Write,
    /// [`Timeouts::total`].
    Total,
}

// === impl Timeouts ===

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            first_token: Duration::from_secs(600),
            between_tokens: Duration::from_secs(60),
            read: Duration::from_secs(600),
            write: Duration::from_secs(30),
            total: None,
            keepalive_idle: Duration::from_secs(4),
        }
    }
}

// === impl TimeLimit ===

impl TimeLimit {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Connect, Self::FirstToken, Self::BetweenTokens, Self::Read, Self::Write, Self::Total];

    /// The name in logs and metrics: the key of the configuration under `timeouts`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::FirstToken => "first_token",
            Self::BetweenTokens => "between_tokens",
            Self::Read => "read",
            Self::Write => "write",
            Self::Total => "total",
        }
    }

    /// Whether the backend is to be blamed: it was silent where it should have been heard.
    pub fn is_silence(self) -> bool {
        matches!(self, Self::FirstToken | Self::BetweenTokens | Self::Read)
    }
}
