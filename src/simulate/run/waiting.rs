//! Requests that wait at their router because no backend has room, or because their prefill is long: the queues that serve,
//! in simulated time.
//!
//! Nobody gives up or is refused, so that every request has a TTFT and policies are compared over the same requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Event, Run};
use crate::queue::{Line, Place, Priority, QueueSettings, Room, Seat, Ticket, Wants};
use crate::routing::Deferred;
use crate::simulate::router::{Full, Look, Router};
use crate::time::Moment;

/// All that wait.
pub(super) struct Waiting {
    /// By router and [`Place::id`].
    places: HashMap<(usize, Row, u64), (Place, Coming)>,
    /// By router and row: when time will have made room for somebody.
    again: Vec<[Option<Moment>; 2]>,
}

/// Which of its router's lines a request waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Row {
    /// That of requests for which no backend has room.
    Full,
    /// That of requests with a long prefill.
    Deferred,
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
    /// Whether it goes even if its prefill is long: it has waited, or was lost before.
    pub(super) has_waited: bool,
}

/// The run's own size is the bound: each request waits in one place.
const BOUNDLESS: QueueSettings =
    QueueSettings { max_requests: u32::MAX, max_bytes: u64::MAX, max_wait: Duration::MAX, max_defer: None };

// === impl Row ===

impl Row {
    pub(super) const ALL: [Self; 2] = [Self::Full, Self::Deferred];
}

// === impl Waiting ===

impl Waiting {
    pub(super) fn new(routers: usize) -> Self {
        Self { places: HashMap::new(), again: vec![[None; 2]; routers] }
    }

    /// Requests that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}

// === impl Run ===

impl Run<'_> {
    pub(super) fn line(&self, router: usize, row: Row) -> &Arc<Line> {
        let router = &self.routers[router];
        match row {
            Row::Full => router.line(),
            Row::Deferred => router.deferred(),
        }
    }

    /// Takes a place in the line of its router. `seat` is how that was before the request looked in vain. Who has waited for
    /// room is not deferred on top.
    pub(super) fn enter(&mut self, coming: Coming, full: Full, seat: Seat, now: Moment) {
        let Full { outlook, wants } = full;
        let is_retry = coming.tried.is_some();
        let coming = Coming { has_waited: true, ..coming };
        let ticket = Ticket { is_retry, work: outlook.work, prefill: outlook.prefill, wants, ..ticket() };
        self.take_place(coming, Row::Full, ticket, outlook.look_again, seat, now);
    }

    /// The same among those whose prefill is long; not for longer than it may.
    pub(super) fn defer(&mut self, coming: Coming, deferred: Deferred, seat: Seat, now: Moment) {
        let ticket = Ticket { work: deferred.work, prefill: deferred.prefill, ..ticket() };
        let place = self.take_place(coming, Row::Deferred, ticket, deferred.look_again, seat, now);
        if let Some((id, most)) = place.zip(self.setup.max_defer) {
            self.plan(now + most, Event::Overdue { router: coming.router, id });
        }
    }

    fn take_place(
        &mut self,
        coming: Coming,
        row: Row,
        ticket: Ticket,
        look_again: Option<Moment>,
        seat: Seat,
        now: Moment,
    ) -> Option<u64> {
        let Ok(place) = self.line(coming.router, row).enter(ticket, Some(seat), &BOUNDLESS, now) else {
            // It cannot be, without bounds.
            self.give_up(coming.session, coming.turn, coming.arrived, 0, now);
            return None;
        };
        let id = place.id();
        self.keep(place, coming, row, look_again);
        Some(id)
    }

    /// Each that has the turn looks, until nobody has it.
    pub(super) fn give_turns(&mut self, now: Moment) {
        for (router, row) in (0..self.routers.len()).flat_map(|router| Row::ALL.map(|row| (router, row))) {
            while let Some(id) = self.line(router, row).turn() {
                let Some((place, coming)) = self.waiting.places.remove(&(router, row, id)) else { break };
                self.take_turn(place, coming, row, now);
            }
        }
    }

    fn take_turn(&mut self, place: Place, coming: Coming, row: Row, now: Moment) {
        let seat = self.line(coming.router, Row::Full).seat();
        match self.look(&coming, now) {
            Look::Found(routed) => {
                self.submit(coming, Some(*routed), now);
                place.served(now);
            }
            Look::Full(full) if row == Row::Deferred => {
                place.served(now);
                self.enter(coming, full, seat, now);
            }
            Look::Full(full) => self.stay(place, coming, row, full.outlook.look_again),
            Look::Deferred(deferred) => self.stay(place, coming, row, deferred.look_again),
            Look::None => {
                self.submit(coming, None, now);
                place.served(now);
            }
        }
    }

    /// It has looked in vain.
    fn stay(&mut self, place: Place, coming: Coming, row: Row, look_again: Option<Moment>) {
        // Where it may not go there can be room for others.
        if coming.tried.is_some() {
            place.found_none_for_itself();
        } else {
            place.found_none();
        }
        self.keep(place, coming, row, look_again);
    }

    fn keep(&mut self, place: Place, coming: Coming, row: Row, look_again: Option<Moment>) {
        let router = coming.router;
        self.waiting.places.insert((router, row, place.id()), (place, coming));
        let Some(at) = look_again else { return };
        let again = &mut self.waiting.again[router][row as usize];
        if again.is_none_or(|planned| at < planned) {
            *again = Some(at);
            self.plan(at, Event::Again { router, row });
        }
    }

    /// Only the earliest of the moments that were planned counts: whoever looks then says when to look again.
    pub(super) fn look_again(&mut self, router: usize, row: Row, now: Moment) {
        let again = &mut self.waiting.again[router][row as usize];
        if *again == Some(now) {
            *again = None;
            self.line(router, row).stir(Room::Anywhere);
        }
    }

    /// A request has been deferred for as long as it may, unless it went before.
    pub(super) fn end_deferral(&mut self, router: usize, id: u64, now: Moment) {
        if let Some((place, coming)) = self.waiting.places.remove(&(router, Row::Deferred, id)) {
            place.served(now);
            self.send(Coming { has_waited: true, ..coming }, now);
        }
    }

    /// Backends have changed, or are known better.
    pub(super) fn stir_all(&self) {
        self.routers.iter().for_each(Router::stir_all);
    }
}

/// What all tickets have in common.
fn ticket() -> Ticket {
    Ticket {
        priority: Priority::Normal,
        is_retry: false,
        work: 0.0,
        prefill: Duration::ZERO,
        bytes: 0,
        wants: Wants::Any,
        patience: Duration::MAX,
    }
}
