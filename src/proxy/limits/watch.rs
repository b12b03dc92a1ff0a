//! Sees to it that an attempt's deadline is kept, beside Pingora, by cutting its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Deadlines;
use super::line::Grip;
use super::rounds::Rounds;
use crate::pool::TimeLimit;
use crate::time::Moment;

/// Watches one attempt. Dropping it ends the watch.
#[derive(Debug)]
pub(in crate::proxy) struct Watch {
    watched: Arc<Watched>,
    rounds: Arc<Rounds>,
    key: usize,
}

/// An attempt, as those that look at all of them see it.
#[derive(Debug)]
pub(super) struct Watched {
    grip: Grip,
    state: Mutex<State>,
    /// The deadline, as nanoseconds of a [`Moment`], to be looked at without the lock. Written under it.
    due: AtomicU64,
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
    pub(in crate::proxy) fn begin(rounds: &Arc<Rounds>, grip: Grip, deadlines: Deadlines) -> Self {
        let due = AtomicU64::new(deadlines.next().0.as_nanos());
        let watched = Arc::new(Watched { grip, state: Mutex::new(State { deadlines, met: None }), due });
        let key = rounds.add(Arc::clone(&watched));
        Self { watched, rounds: Arc::clone(rounds), key }
    }

    /// The answer has got further; `change` says how.
    pub(in crate::proxy) fn note(&self, change: impl FnOnce(&mut Deadlines)) {
        let mut state = self.watched.state.lock();
        change(&mut state.deadlines);
        self.watched.due.store(state.deadlines.next().0.as_nanos(), Relaxed);
    }

    /// The limit that ended the attempt.
    pub(in crate::proxy) fn met(&self) -> Option<TimeLimit> {
        self.watched.state.lock().met
    }

    /// The answer is whole: nothing is waited for any more.
    pub(in crate::proxy) fn end(&self) {
        self.watched.due.store(u64::MAX, Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.rounds.remove(self.key);
    }
}

// === impl Watched ===

impl Watched {
    pub(super) fn due(&self) -> Moment {
        Moment::from_nanos(self.due.load(Relaxed))
    }

    /// Cuts the connection if the time is up.
    pub(super) fn end_if_over(&self, now: Moment) {
        let mut state = self.state.lock();
        let (at, limit) = state.deadlines.next();
        if at > now || self.due() > now {
            return;
        }
        if limit.is_silence() && self.grip.has_unread() {
            // The client takes its answer more slowly than the backend makes it; `server.write_timeout` is about that.
            state.deadlines.excuse(now);
            self.due.store(state.deadlines.next().0.as_nanos(), Relaxed);
            return;
        }
        self.due.store(u64::MAX, Relaxed);
        state.met = Some(limit);
        self.grip.cut();
    }
}
