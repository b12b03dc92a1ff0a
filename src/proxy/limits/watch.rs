//! Waits for an attempt's deadline, beside Pingora, and cuts its connection then.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::Deadlines;
use super::line::Grip;
use crate::pool::TimeLimit;
use crate::time::{self, Moment};

/// Watches one attempt. Dropping it ends the watch.
#[derive(Debug)]
pub(in crate::proxy) struct Watch {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The deadline has come nearer.
    nearer: Notify,
}

#[derive(Debug)]
struct State {
    deadlines: Deadlines,
    /// What ended the attempt.
    met: Option<TimeLimit>,
}

// === impl Watch ===

impl Watch {
    /// Begins when the attempt has its connection.
    pub(in crate::proxy) fn begin(grip: Grip, deadlines: Deadlines) -> Self {
        let shared = Arc::new(Shared { state: Mutex::new(State { deadlines, met: None }), nearer: Notify::new() });
        let task = tokio::spawn(wait(Arc::clone(&shared), grip)).abort_handle();
        Self { shared, task }
    }

    /// The answer has got further; `change` says how.
    pub(in crate::proxy) fn note(&self, change: impl FnOnce(&mut Deadlines)) {
        let mut state = self.shared.state.lock();
        let (before, _) = state.deadlines.next();
        change(&mut state.deadlines);
        if state.deadlines.next().0 < before {
            self.shared.nearer.notify_one();
        }
    }

    /// The limit that ended the attempt.
    pub(in crate::proxy) fn met(&self) -> Option<TimeLimit> {
        self.shared.state.lock().met
    }

    /// The answer is whole: nothing is waited for any more.
    pub(in crate::proxy) fn end(&self) {
        self.task.abort();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

async fn wait(shared: Arc<Shared>, grip: Grip) {
    loop {
        let now = time::now();
        let (at, _) = shared.state.lock().deadlines.next();
        if at <= now {
            if shared.is_over(now, &grip) {
                return;
            }
            continue;
        }
        tokio::select! {
            () = sleep(at.since(now)) => {}
            () = shared.nearer.notified() => {}
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Whether the time is up, and the connection cut by that.
    fn is_over(&self, now: Moment, grip: &Grip) -> bool {
        let mut state = self.state.lock();
        let (at, limit) = state.deadlines.next();
        if at > now {
            return false;
        }
        if limit.is_silence() && grip.has_unread() {
            // The client takes its answer more slowly than the backend makes it; `server.write_timeout` is about that.
            state.deadlines.excuse(now);
            return false;
        }
        state.met = Some(limit);
        grip.cut();
        true
    }
}
