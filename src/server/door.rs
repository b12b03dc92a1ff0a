//! Who may connect to a listener.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::connections::{ConnectionLimits, Place};
use crate::state::State;
use crate::time::{self, Moment};

/// Between two lines of the log about refused connections.
const LOG_PAUSE_SECONDS: u64 = 60;

/// Lets connections in.
pub(super) enum Door {
    /// Operators: whatever clients do, they get in.
    Open(Arc<State>),
    /// Clients, as far as the limits in force go.
    Counted(CountedDoor),
}

/// Counts connections against `limits.max_connections` and `limits.max_connections_per_address`.
pub(super) struct CountedDoor {
    state: Arc<State>,
    /// When a refusal was last logged, in seconds since the process began; 0 is never.
    logged: AtomicU64,
}

/// What a connection that was let in holds until it ends.
pub(super) type Admitted = Option<Place>;

// === impl Door ===

impl Door {
    /// For clients of the service of `state`.
    pub(super) fn counted(state: &Arc<State>) -> Self {
        Self::Counted(CountedDoor { state: Arc::clone(state), logged: AtomicU64::new(0) })
    }

    /// Whose limits hold for what comes in.
    pub(super) fn state(&self) -> &Arc<State> {
        match self {
            Self::Open(state) => state,
            Self::Counted(door) => &door.state,
        }
    }

    /// Lets a connection in, or not.
    pub(super) fn admit(&self, address: IpAddr) -> Option<Admitted> {
        match self {
            Self::Open(_) => Some(None),
            Self::Counted(door) => door.admit(address).map(Some),
        }
    }
}

// === impl CountedDoor ===

impl CountedDoor {
    fn admit(&self, address: IpAddr) -> Option<Place> {
        let config = self.state.config.load();
        let limits = ConnectionLimits {
            total: config.limits.max_connections,
            per_address: config.limits.max_connections_per_address,
        };
        match self.state.connections.admit(address, limits) {
            Ok(place) => Some(place),
            Err(refusal) => {
                let now = time::now().since(Moment::ORIGIN).as_secs() + 1;
                let logged = self.logged.load(Relaxed);
                if logged == 0 || now >= logged + LOG_PAUSE_SECONDS {
                    self.logged.store(now, Relaxed);
                    log::warn!("a connection from {address} is closed at once: {}", refusal.explained());
                }
                None
            }
        }
    }
}
