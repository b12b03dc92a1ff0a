//! The sections about overload: how much a backend is given, and what waits when all have that.

use http::HeaderName;
use std::num::NonZeroU32;
use std::time::Duration;

/// Requests that wait because every backend of a pool is full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Most requests that wait; 1024, 0 (none waits) to 100000.
    pub max_requests: u32,
    /// Most bytes of their bodies; 256 MiB, 1 MiB to 1024 GiB.
    pub max_bytes: u64,
    /// How long one may wait for its first token, its prefill included as far as that is known; 30 s, 100 ms to 1 h.
    pub max_wait: Duration,
    /// How long a request may be deferred because its prefill is long, with policy `cost`; 30 s, 100 ms to 1 h, `None` (in the
    /// file none): no request is.
    pub max_defer: Option<Duration>,
    /// How often a streamed request that waits is given a sign of life; 1 s to 5 min, by default none.
    pub keep_alive: Option<Duration>,
    /// The request header that says how urgent it is; `None`, in the file none.
    pub priority_header: Option<HeaderName>,
    /// Whether the field `priority` in bodies says so; false.
    pub priority_field: bool,
}

/// Second attempts beside the first, for a first token that takes long.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedging {
    /// How long there is no token when one is made; 10 ms to 10 min, by default none is.
    pub after: Option<Duration>,
    /// They as a share of the requests that could have one; 0.05, 0 to 1.
    pub budget: f64,
}

/// Requests in flight at one backend (`max_in_flight`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxInFlight {
    /// What the engine can do, by what it says (`auto`).
    Auto,
    /// No limit (`none`).
    Unlimited,
    /// This many.
    Requests(NonZeroU32),
}
