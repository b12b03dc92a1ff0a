//! The section about the binary upgrade.

use std::time::Duration;

/// What happens when another process takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    /// How long the new process may take until it serves; 60 s, 1 s to 10 min.
    pub start_timeout: Duration,
    /// How long requests in flight in the old process may then go on; 1 h, 0 to 24 h.
    pub drain_timeout: Duration,
    /// Bytes of what was learned that are handed over; 64 MiB, 0 to 4 GiB.
    pub max_state_bytes: u64,
}
