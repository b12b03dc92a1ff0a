//! Requests that wait at their router because no backend has room: the queue that serves, in simulated time.
//!
//! Nobody gives up or is refused, so that every request has a TTFT and policies are compared over the same requests.

use std::collections::HashMap;
use std::time::Duration;

use super::{Event, Run};
use crate::queue::{Place, Priority, QueueSettings, Room, Seat, Ticket};
use crate::simulate::router::{Full, Look};
use crate::time::Moment;

/// All that wait.
pub(super) struct Waiting {
    /// By router and [`Place::id`].
    places: HashMap<(usize, u64), (Place, Coming)>,
    /// By router: when time will have made room for somebody.
    again: Vec<Option<Moment>>,
}

/// A request that has no backend yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coming {
    pub(super) session: usize,
    pub(super) turn: usize,
    pub(super) router: usize,
    pub(super) arrived: Moment,
    /// [`crate::simulate::Times::alone`]
    pub(super) alone: f64,
    /// Where it was lost before.
    pub(super) tried: Option<usize>,
}

/// The run's own size is the bound: each request waits in one place.
const BOUNDLESS: QueueSettings = QueueSettings { max_requests: u32::MAX, max_bytes: u64::MAX, max_wait: Duration::MAX };

// === impl Waiting ===

impl Waiting {
    pub(super) fn new(routers: usize) -> Self {
        Self { places: HashMap::new(), again: vec![None; routers] }
    }

    /// Requests that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}

// === impl Run ===

impl Run<'_> {
    /// Takes a place in the line of its router. `seat` is how that was before the request looked in vain.
    pub(super) fn enter(&mut self, coming: Coming, full: Full, seat: Seat, now: Moment) {
        let ticket = Ticket {
            priority: Priority::Normal,
            is_retry: coming.tried.is_some(),
            work: full.outlook.work,
            bytes: 0,
            wants: full.wants,
            patience: Duration::MAX,
        };
        match self.routers[coming.router].line().enter(ticket, Some(seat), &BOUNDLESS, now) {
            Ok(place) => self.keep(place, coming, full),
            // It cannot be, without bounds.
            Err(_) => self.give_up(coming.session, coming.turn, coming.arrived, 0, now),
        }
    }

    /// Each that has the turn looks, until nobody has it.
    pub(super) fn give_turns(&mut self, now: Moment) {
        for router in 0..self.routers.len() {
            while let Some(id) = self.routers[router].line().turn() {
                let Some((place, coming)) = self.waiting.places.remove(&(router, id)) else { break };
                self.take_turn(place, coming, now);
            }
        }
    }

    fn take_turn(&mut self, place: Place, coming: Coming, now: Moment) {
        match self.look(&coming, now) {
            Look::Found(routed) => {
                self.submit(coming, Some(*routed), now);
                place.served(now);
            }
            Look::Full(full) => {
                // Where it may not go there can be room for others.
                if coming.tried.is_some() {
                    place.found_none_for_itself();
                } else {
                    place.found_none();
                }
                self.keep(place, coming, full);
            }
            Look::None => {
                self.submit(coming, None, now);
                place.served(now);
            }
        }
    }

    fn keep(&mut self, place: Place, coming: Coming, full: Full) {
        let router = coming.router;
        self.waiting.places.insert((router, place.id()), (place, coming));
        let Some(at) = full.outlook.look_again else { return };
        if self.waiting.again[router].is_none_or(|planned| at < planned) {
            self.waiting.again[router] = Some(at);
            self.plan(at, Event::Again { router });
        }
    }

    /// Only the earliest of the moments that were planned counts: whoever looks then says when to look again.
    pub(super) fn look_again(&mut self, router: usize, now: Moment) {
        if self.waiting.again[router] == Some(now) {
            self.waiting.again[router] = None;
            self.routers[router].line().stir(Room::Anywhere);
        }
    }

    /// Backends have changed, or are known better.
    pub(super) fn stir_all(&self) {
        self.routers.iter().for_each(|router| router.line().stir(Room::Anywhere));
    }
}
