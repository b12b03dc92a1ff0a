//! The kinds of sockets, and why there is no connection between them.

use std::io;
use std::time::Duration;

/// What this end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kv_events) enum Kind {
    Sub,
    Dealer,
}

/// Why there is no connection any more.
#[derive(Debug, thiserror::Error)]
pub(in crate::kv_events) enum Error {
    /// Not within the time allowed.
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    /// Nobody listens.
    #[error("nobody listens there: the engine is down, or does not listen for others (vLLM does at tcp://*:PORT only)")]
    Refused,
    /// The system says no.
    #[error("{0}")]
    Io(io::Error),
    /// The other side has closed it.
    #[error("the engine closed the connection")]
    Closed,
    /// No sign of life.
    #[error("the engine gave no sign of life within {0:?}")]
    Silent(Duration),
    /// Bytes that are not ZMTP.
    #[error("{0}")]
    Protocol(&'static str),
    /// Another kind of socket.
    #[error("the endpoint is that of a {found} socket; this one is for {wanted}")]
    WrongSocket {
        /// Its own name for it.
        found: SocketName,
        /// What this end needs.
        wanted: &'static str,
    },
}

/// A socket type by its name, if that is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kv_events) struct SocketName(Option<&'static str>);

// === impl Error ===

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::ConnectionRefused { Self::Refused } else { Self::Io(error) }
    }
}

// === impl Kind ===

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    pub(super) fn peers(self) -> &'static str {
        match self {
            Self::Sub => "events, which a PUB socket sends",
            Self::Dealer => "replays, which a ROUTER socket sends",
        }
    }

    pub(super) fn fits(self, peer: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => peer == b"ROUTER",
        }
    }
}

// === impl SocketName ===

impl SocketName {
    pub(super) fn of(name: &[u8]) -> Self {
        const KNOWN: [&str; 10] = ["PUB", "XPUB", "SUB", "XSUB", "ROUTER", "DEALER", "REQ", "REP", "PUSH", "PULL"];
        Self(KNOWN.into_iter().find(|known| known.as_bytes() == name))
    }
}

impl std::fmt::Display for SocketName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0.unwrap_or("different"))
    }
}
