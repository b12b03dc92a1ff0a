//! Sees to it that an attempt's deadline is kept.

use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::Deadlines;
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

/// The watch as the exchange has it, which is to end when a limit is met.
#[derive(Debug)]
pub(in crate::proxy) struct Watching(Arc<Watched>);

/// An attempt, as those that look at all of them see it.
#[derive(Debug)]
pub(super) struct Watched {
    state: Mutex<State>,
    /// The deadline, as nanoseconds of a [`Moment`], to be looked at without the lock. Written under it.
    due: AtomicU64,
    /// Whether the backend has to do the next step, and not the client.
    is_awaited: AtomicBool,
}

#[derive(Debug)]
struct State {
    deadlines: Deadlines,
    /// Whether the time was up when it was last looked at.
    is_late: bool,
    /// What is to end the attempt.
    met: Option<TimeLimit>,
    /// Who is to be told.
    waker: Option<Waker>,
}

/// The backend is awaited for as long as this lives.
struct Awaited<'a>(&'a Watched);

// === impl Watch ===

impl Watch {
    /// Begins when the attempt has its connection.
    pub(in crate::proxy) fn begin(rounds: &Arc<Rounds>, deadlines: Deadlines) -> Self {
        let due = AtomicU64::new(deadlines.next().0.as_nanos());
        let state = Mutex::new(State { deadlines, is_late: false, met: None, waker: None });
        let watched = Arc::new(Watched { state, due, is_awaited: AtomicBool::new(false) });
        let key = rounds.add(Arc::clone(&watched));
        Self { watched, rounds: Arc::clone(rounds), key }
    }

    /// For the exchange.
    pub(in crate::proxy) fn watching(&self) -> Watching {
        Watching(Arc::clone(&self.watched))
    }

    /// The answer has got further; `change` says how.
    pub(in crate::proxy) fn note(&self, change: impl FnOnce(&mut Deadlines)) {
        let mut state = self.watched.state.lock();
        change(&mut state.deadlines);
        state.is_late = false;
        // It came in the last moment.
        state.met = state.met.filter(|limit| !limit.is_silence());
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

// === impl Watching ===

impl Watching {
    /// What comes of `work`, for which the backend is awaited; none if a limit is met before.
    pub(in crate::proxy) async fn awaiting<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let _awaited = Awaited::begin(&self.0);
        self.unless_over(work).await
    }

    /// What comes of `work`; none if a limit is met before. What was met before it begins ends it at once: a backend that
    /// always has something to say would never be ended otherwise.
    pub(in crate::proxy) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if self.0.state.lock().met.is_some() {
            return None;
        }
        let mut work = pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.0.poll_over(cx).map(|()| None),
        })
        .await
    }
}

// === impl Watched ===

impl Watched {
    pub(super) fn due(&self) -> Moment {
        Moment::from_nanos(self.due.load(Relaxed))
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.met.is_some() {
            return Poll::Ready(());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ends the attempt if its time is up.
    pub(super) fn end_if_over(&self, now: Moment) {
        let mut state = self.state.lock();
        let (at, limit) = state.deadlines.next();
        if at > now || self.due() > now {
            return;
        }
        if limit.is_silence() && !self.is_awaited.load(Relaxed) {
            // The client takes its answer more slowly than the backend makes it; `server.write_timeout` is about that.
            state.deadlines.excuse(now);
            self.due.store(state.deadlines.next().0.as_nanos(), Relaxed);
            return;
        }
        if limit.is_silence() && !mem::replace(&mut state.is_late, true) {
            // What has come may not have been looked at yet, where there is much to do. The next round will tell.
            return;
        }
        self.due.store(u64::MAX, Relaxed);
        state.met = Some(limit);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

// === impl Awaited ===

impl<'a> Awaited<'a> {
    fn begin(watched: &'a Watched) -> Self {
        watched.is_awaited.store(true, Relaxed);
        Self(watched)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.is_awaited.store(false, Relaxed);
    }
}
