//! What operators see of an event source.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Counts;
use crate::time::Moment;

/// What a source is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SourceState {
    /// Making a connection.
    #[default]
    Connecting,
    /// Waiting for the engine to tell again what it has told before.
    Replaying,
    /// Following the engine.
    Live,
    /// There was or is no connection; it is tried again after a while.
    Failed,
}

/// A source at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// What it is doing.
    pub state: SourceState,
    /// Why the last connection failed; none while there is one.
    pub reason: Option<String>,
    /// Why the last replay failed; none after one that did not.
    pub replay_reason: Option<String>,
    /// Connections made.
    pub connections: u64,
    /// When the last message came, live or replayed.
    pub last_message: Option<Moment>,
    /// What has happened to the stream.
    pub counts: Counts,
}

/// The status of a source, which its task writes and everyone else reads. The lock is held for a copy only.
#[derive(Debug, Clone, Default)]
pub struct SourceWatch(Arc<Mutex<SourceStatus>>);

// === impl SourceState ===

impl SourceState {
    /// One word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
            Self::Failed => "failed",
        }
    }
}

// === impl SourceWatch ===

impl SourceWatch {
    /// How the source is now.
    pub fn get(&self) -> SourceStatus {
        self.0.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut SourceStatus)) {
        change(&mut self.0.lock());
    }
}
