//! The sections about time: how long the parts of a request may take, and how long a backend may drain.

use std::time::Duration;

/// Limits of a request's time at the backends of a pool. That of the request's body is [`super::Limits::body_timeout`]:
/// it is read before the pool is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect, TLS included; 2 s, 10 ms to 1 min.
    pub connect: Duration,
    /// From the request sent to the first token of a streamed answer; `read`, 100 ms to 24 h.
    pub first_token: Duration,
    /// Between two tokens of a streamed answer; 60 s, or `read` if that is shorter; 100 ms to 24 h.
    pub between_tokens: Duration,
    /// Of an answer that is not streamed: from the request sent to its header, and between two reads of it; 600 s, 100 ms
    /// to 24 h.
    pub read: Duration,
    /// For each MiB of a request that a backend has to take; 30 s, 100 ms to 1 h.
    pub write: Duration,
    /// From the request read to the end of its answer, all attempts together; `None`, in the file none, 100 ms to 24 h.
    pub total: Option<Duration>,
}

/// How a pool's backends leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// How long the conversations that live at a draining backend may go on there; 5 min, 0 to 24 h.
    pub deadline: Duration,
}
