//! A pool's queue as requests use it: they take a [`Place`], wait for their turn to look for room, and leave by dropping it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::state::{Entered, Id, Queue, Refused, Stats};
use super::{Order, Priority, QueueSettings, Room, Ticket};
use crate::time::{self, Moment};

/// The requests that wait for one pool.
#[derive(Debug, Default)]
pub struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    /// What wakes each of those that wait.
    wakers: HashMap<Id, Arc<Notify>>,
}

/// How the line is before a request looks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Whether others wait.
    pub is_taken: bool,
    events: u64,
}

/// A request's place in the line. Dropping it leaves the line.
#[must_use = "dropping it leaves the line"]
pub struct Place {
    line: Arc<Line>,
    id: Id,
    wake: Arc<Notify>,
    /// How it stood at the beginning.
    pub entered: Entered,
    is_served: bool,
    /// When it left, where that was said.
    left_at: Option<Moment>,
}

/// What one that waits is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// There may be room: it is to look, and to say what came of it.
    Look,
    /// A more urgent request has taken its place.
    Displaced,
}

// === impl Line ===

impl Line {
    /// A line in which nobody waits.
    pub fn new(order: Order) -> Self {
        Self(Mutex::new(State { queue: Queue::new(order), wakers: HashMap::new() }))
    }

    /// How the line is now. To be asked before a request looks for room, so that nothing that happens between the look and
    /// [`Line::enter`] is missed.
    pub fn seat(&self) -> Seat {
        let state = self.0.lock();
        Seat { is_taken: !state.queue.is_empty(), events: state.queue.events() }
    }

    /// The [`Place::id`] that has the turn to look: for requests in simulated time, which no task waits for.
    pub fn turn(&self) -> Option<u64> {
        self.0.lock().queue.turn()
    }

    /// Whether anyone waits.
    pub fn is_taken(&self) -> bool {
        !self.0.lock().queue.is_empty()
    }

    /// Begins to wait. `looked` is how the line was before the request looked for room in vain; none if it has not looked.
    ///
    /// # Errors
    /// [`Refused`], if waiting is no use.
    pub fn enter(
        self: &Arc<Self>,
        ticket: Ticket,
        looked: Option<Seat>,
        settings: &QueueSettings,
        now: Moment,
    ) -> Result<Place, Refused> {
        let wake = Arc::<Notify>::default();
        let admitted = self.change(|state| {
            let admitted = state.queue.enter(ticket, looked.map(|seat| seat.events), settings, now)?;
            state.wakers.insert(admitted.id, Arc::clone(&wake));
            if let Some(waker) = admitted.displaced.and_then(|id| state.wakers.remove(&id)) {
                waker.notify_one();
            }
            Ok(admitted)
        })?;
        Ok(Place {
            line: Arc::clone(self),
            id: admitted.id,
            wake,
            entered: admitted.entered,
            is_served: false,
            left_at: None,
        })
    }

    /// There may be room.
    pub fn stir(&self, room: Room) {
        self.change(|state| state.queue.stir(room));
    }

    /// What waits.
    pub fn stats(&self, now: Moment) -> Stats {
        self.0.lock().queue.stats(now)
    }

    /// How long those of this priority and above will take; none while that cannot be told.
    pub fn estimate(&self, priority: Priority, now: Moment) -> Option<Duration> {
        self.0.lock().queue.estimate(priority, now)
    }

    /// Runs `change` under the lock, and wakes who has the turn then. One that had it before as well may have looked
    /// already and have it anew; if not, it is woken once too often.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.lock();
        let result = change(&mut state);
        if let Some(wake) = state.queue.turn().and_then(|id| state.wakers.get(&id)) {
            wake.notify_one();
        }
        result
    }
}

// === impl Place ===

impl Place {
    /// Waits for the turn. It stays this request's until it says what came of it.
    pub async fn turn(&self) -> Turn {
        loop {
            {
                let state = self.line.0.lock();
                if !state.queue.is_waiting(self.id) {
                    return Turn::Displaced;
                }
                if state.queue.turn() == Some(self.id) {
                    return Turn::Look;
                }
            }
            self.wake.notified().await;
        }
    }

    /// It looked, and the pool has no room.
    pub fn found_none(&self) {
        self.line.change(|state| state.queue.found_none(self.id));
    }

    /// It looked, and there is no room that it may use.
    pub fn found_none_for_itself(&self) {
        self.line.change(|state| state.queue.found_none_for_itself(self.id));
    }

    /// Runs `work`, which may take its time: others have their turn meanwhile.
    pub async fn aside<R>(&self, work: impl Future<Output = R>) -> R {
        self.line.change(|state| state.queue.set_aside(self.id, true));
        let result = work.await;
        self.line.change(|state| state.queue.set_aside(self.id, false));
        result
    }

    /// There may be room because of the time: somebody is to look.
    pub fn stir(&self) {
        self.line.stir(Room::Anywhere);
    }

    /// It found room.
    pub fn served(mut self, now: Moment) {
        self.is_served = true;
        self.left_at = Some(now);
    }

    /// What [`Line::turn`] calls it.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.change(|state| {
            state.wakers.remove(&self.id);
            let left_at = self.left_at.unwrap_or_else(time::now);
            state.queue.leave(self.id, self.is_served, left_at);
        });
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("id", &self.id).finish_non_exhaustive()
    }
}
