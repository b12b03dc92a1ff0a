//! Cutting an attempt that has a relay of this process in place of a connection ([`crate::proxy::hedge`]): it has no descriptor
//! that could be shut down, so the relay is told.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

/// What a relay shares with the watch of its attempt.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Relay {
    /// Bytes of the answer that the relay passes on and Pingora has not read. Counted up before they can be read.
    unread: AtomicUsize,
    cut: Notify,
}

// === impl Relay ===

impl Relay {
    /// The relay begins to pass on so many bytes.
    pub(in crate::proxy) fn begin(&self, bytes: usize) {
        self.unread.fetch_add(bytes, Relaxed);
    }

    /// Pingora has read so many of them.
    pub(in crate::proxy) fn read(&self, bytes: usize) {
        self.unread.fetch_sub(bytes, Relaxed);
    }

    /// Returns when the relay is to end. For one that waits.
    pub(in crate::proxy) async fn until_cut(&self) {
        self.cut.notified().await;
    }

    pub(super) fn has_unread(&self) -> bool {
        self.unread.load(Relaxed) > 0
    }

    /// Ends the relay, now or as soon as it waits for that.
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }
}
