//! Whether the process takes requests or winds down, and how many it still has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// Shared by the data path, which counts requests, and the server, which waits for them.
#[derive(Debug)]
pub struct Lifecycle {
    /// Written by the server alone; true from the start of the drain on.
    draining: watch::Sender<bool>,
    /// Written by guards. `SeqCst`, because a waiter pairs it with a notification.
    requests: AtomicUsize,
    ended: tokio::sync::Notify,
}

/// A request that is being served. Dropping it ends it.
#[derive(Debug)]
pub struct RequestGuard(Arc<Lifecycle>);

// === impl Lifecycle ===

impl Default for Lifecycle {
    fn default() -> Self {
        Self { draining: watch::Sender::new(false), requests: AtomicUsize::new(0), ended: tokio::sync::Notify::new() }
    }
}

impl Lifecycle {
    /// Counts a request until the guard is dropped.
    pub fn begin_request(self: &Arc<Self>) -> RequestGuard {
        self.requests.fetch_add(1, Ordering::SeqCst);
        RequestGuard(Arc::clone(self))
    }

    /// Requests that have begun and not ended.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Whether the process winds down: readiness fails, and replies close their connections.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Starts to wind down; cannot be taken back.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Becomes true when the drain starts: the form in which Pingora takes it.
    pub fn watch_drain(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Returns when everyone who watches the drain is gone: listeners, and the connections they have handed it to.
    pub async fn closed(&self) {
        self.draining.closed().await;
    }

    /// Returns when no request is being served.
    pub async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.requests() == 0 {
                return;
            }
            ended.await;
        }
    }
}

// === impl RequestGuard ===

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_waits_for_the_last_request() {
        let lifecycle = Arc::new(Lifecycle::default());
        lifecycle.idle().await;
        let guards = [lifecycle.begin_request(), lifecycle.begin_request()];
        assert_eq!(lifecycle.requests(), 2);
        let waiting = tokio::spawn({
            let lifecycle = Arc::clone(&lifecycle);
            async move { lifecycle.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "two requests are still served");
        drop(guards);
        waiting.await.unwrap();
        assert_eq!(lifecycle.requests(), 0);
    }

    #[tokio::test]
    async fn closed_waits_for_the_last_watcher() {
        let lifecycle = Arc::new(Lifecycle::default());
        let watcher = lifecycle.watch_drain();
        let closing = tokio::spawn({
            let lifecycle = Arc::clone(&lifecycle);
            async move { lifecycle.closed().await }
        });
        tokio::task::yield_now().await;
        assert!(!closing.is_finished(), "someone still watches");
        drop(watcher);
        closing.await.unwrap();
    }

    #[test]
    fn a_drain_is_seen_by_late_and_early_watchers() {
        let lifecycle = Lifecycle::default();
        let early = lifecycle.watch_drain();
        assert!(!lifecycle.is_draining());
        lifecycle.drain();
        assert!(lifecycle.is_draining() && *early.borrow() && *lifecycle.watch_drain().borrow());
    }
}
