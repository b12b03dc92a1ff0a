//! The queue itself: who waits, whose turn it is to look for room, and how long it will take.
//!
//! At most one request has the turn. It gets it when there may be room ([`Queue::stir`]), looks, and says what came of it:
//! it found room (then the next one has the turn, as there may be more), the pool has none (then all wait for the next
//! event), or none that it may use (then another one has the turn until that event). An event in between is kept for the
//! end of the turn. Whoever enters says which event it had looked after; if there was none since, the look still holds. So
//! no room goes unnoticed, and an event costs one look, and another for each request that goes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::drain::Drain;
use super::fair::{FairOrder, Tag};
use super::{LOOKAHEAD, Order, PATIENCE, Priority, QueueSettings, Refusal, Room, SHORTNESS, Ticket, Wants};
use crate::time::Moment;

/// A request that waits, or has waited: never given twice, in the order of arrival.
pub(super) type Id = u64;

/// All that wait for one pool.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: Order,
    next_id: Id,
    entries: HashMap<Id, Entry>,
    /// Further attempts, with their costs.
    first: BTreeMap<Id, u64>,
    classes: [FairOrder; 3],
    bytes: u64,
    drain: Drain,
    /// Times that there may have been room.
    events: u64,
    /// The event after which the pool was found to have none.
    full_at: Option<u64>,
    turn: Option<(Id, Room)>,
    /// Events during that turn.
    missed: Option<Room>,
    /// Who looks again when time alone makes room.
    watcher: Option<Id>,
}

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    cost: u64,
    /// None in the line of further attempts.
    tag: Option<Tag>,
    passed_over: u32,
    /// The event after which it found no room that it may use.
    looked_at: Option<u64>,
    /// Whether it is occupied otherwise, and could not look.
    is_aside: bool,
}

/// How a request stands that has begun to wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entered {
    /// Requests that go before it, as things are.
    pub ahead: usize,
    /// How long these will take; none while that cannot be told.
    pub estimate: Option<Duration>,
}

/// A request that does not wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refused {
    /// Why.
    pub reason: Refusal,
    /// How long what waits will take; none while that cannot be told.
    pub estimate: Option<Duration>,
}

/// What waits, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Requests by priority, further attempts included.
    pub requests: [usize; 3],
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Work units that leave it a second while anything waits; none while too little was seen.
    pub rate: Option<f64>,
}

/// What one that has begun to wait has to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Admitted {
    pub(super) id: Id,
    pub(super) entered: Entered,
    /// Who had to make room for it.
    pub(super) displaced: Option<Id>,
}

// === impl Queue ===

impl Queue {
    pub(super) fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Begins to wait. `seen` is the number of events before the request looked for room in vain; none if it has not looked.
    pub(super) fn enter(
        &mut self,
        ticket: Ticket,
        seen: Option<u64>,
        settings: &QueueSettings,
        now: Moment,
    ) -> Result<Admitted, Refused> {
        let displaced = self.make_room(&ticket, settings, now)?;
        let (id, cost) = (self.next_id, ticket.cost());
        self.next_id += 1;
        let tag = match ticket.is_retry {
            true => None,
            false => Some(self.push(id, &ticket, cost, now)),
        };
        if tag.is_none() {
            self.first.insert(id, cost);
        }
        let has_looked = seen == Some(self.events);
        let is_restricted = matches!(ticket.wants, Wants::Only(_));
        let looked_at = seen.filter(|_| has_looked && is_restricted);
        if self.entries.is_empty() {
            self.drain.set_waiting(true, now);
        }
        self.bytes += ticket.bytes;
        self.entries.insert(id, Entry { ticket, cost, tag, passed_over: 0, looked_at, is_aside: false });
        let entered = self.standing(id, now);
        if let Some(estimate) = entered.estimate.filter(|estimate| *estimate > ticket.patience && !ticket.is_retry) {
            self.remove(id, false, now);
            return Err(Refused { reason: Refusal::TooLong, estimate: Some(estimate) });
        }
        if has_looked && !is_restricted {
            self.full_at = Some(self.events);
            self.watcher.get_or_insert(id);
        }
        let is_known_to_be_full = self.full_at == Some(self.events) && self.watcher.is_some();
        if !has_looked && !is_known_to_be_full {
            self.ask_to_look(Room::Anywhere);
        }
        Ok(Admitted { id, entered, displaced })
    }

    fn push(&mut self, id: Id, ticket: &Ticket, cost: u64, now: Moment) -> Tag {
        let class = &mut self.classes[ticket.priority.index()];
        match self.order {
            Order::Fair => class.push(id, cost),
            Order::ShortFirst => class.push_at((now + ticket.prefill.saturating_mul(SHORTNESS)).as_nanos(), id, cost),
        }
    }

    /// There may be room.
    pub(super) fn stir(&mut self, room: Room) {
        self.events += 1;
        self.ask_to_look(room);
    }

    /// Who has the turn.
    pub(super) fn turn(&self) -> Option<Id> {
        self.turn.map(|(id, _)| id)
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn is_waiting(&self, id: Id) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The one with the turn found that the pool has no room.
    pub(super) fn found_none(&mut self, id: Id) {
        let Some((_, missed)) = self.end_turn(id) else { return };
        self.watcher = Some(id);
        match missed {
            Some(missed) => self.give_turn(missed),
            None => self.full_at = Some(self.events),
        }
    }

    /// The one with the turn found no room that it may use; the pool may have some for others.
    pub(super) fn found_none_for_itself(&mut self, id: Id) {
        let Some((room, missed)) = self.end_turn(id) else { return };
        if let Some(entry) = self.entries.get_mut(&id).filter(|_| missed.is_none()) {
            entry.looked_at = Some(self.events);
        }
        self.give_turn(missed.map_or(room, |missed| merged(Some(room), missed)));
    }

    /// A request cannot look for a while, or can again. It keeps its place, but no turn.
    pub(super) fn set_aside(&mut self, id: Id, is_aside: bool) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.is_aside = is_aside;
        if !is_aside && self.full_at != Some(self.events) {
            self.ask_to_look(Room::Anywhere);
        } else if is_aside && let Some((room, missed)) = self.end_turn(id) {
            self.give_turn(missed.map_or(room, |missed| merged(Some(room), missed)));
        }
    }

    /// A request ends its waiting: it goes to a backend, or gives up.
    pub(super) fn leave(&mut self, id: Id, is_served: bool, now: Moment) {
        self.remove(id, is_served, now);
        let was_watcher = self.watcher.take_if(|watcher| *watcher == id).is_some();
        match self.end_turn(id) {
            Some((room, missed)) => self.give_turn(missed.map_or(room, |missed| merged(Some(room), missed))),
            // Another one has to say when to look again.
            None if was_watcher && self.turn.is_none() => self.give_turn(Room::Anywhere),
            None => {}
        }
    }

    pub(super) fn standing(&self, id: Id, now: Moment) -> Entered {
        let (ahead, cost) = self.ahead_of(id);
        Entered { ahead, estimate: self.time_for(cost, now) }
    }

    pub(super) fn stats(&self, now: Moment) -> Stats {
        let mut requests = [0, 1, 2].map(|class: usize| self.classes[class].all().0);
        for id in self.first.keys() {
            if let Some(entry) = self.entries.get(id) {
                requests[entry.ticket.priority.index()] += 1;
            }
        }
        Stats { requests, bytes: self.bytes, rate: self.drain.rate(now) }
    }

    /// How long all of this priority and above will take.
    pub(super) fn estimate(&self, priority: Priority, now: Moment) -> Option<Duration> {
        let at_least = |entry: &&Entry| entry.ticket.is_retry || entry.ticket.priority <= priority;
        self.time_for(self.entries.values().filter(at_least).map(|entry| entry.cost).sum(), now)
    }

    /// Takes in the sizes of the queue; who had to leave for it. Further attempts were let in before.
    fn make_room(&mut self, ticket: &Ticket, settings: &QueueSettings, now: Moment) -> Result<Option<Id>, Refused> {
        let has_bytes = self.bytes.saturating_add(ticket.bytes) <= settings.max_bytes;
        let has_place = self.entries.len() < settings.max_requests as usize;
        if ticket.is_retry || (has_bytes && has_place) {
            return Ok(None);
        }
        let last = self.last_below(ticket.priority).filter(|last| {
            let freed = self.entries.get(last).map_or(0, |entry| entry.ticket.bytes);
            has_bytes || self.bytes - freed + ticket.bytes <= settings.max_bytes
        });
        match last {
            Some(last) => {
                self.leave(last, false, now);
                Ok(Some(last))
            }
            None => Err(Refused { reason: Refusal::Full, estimate: self.estimate(ticket.priority, now) }),
        }
    }

    /// The last one of the least urgent that are less so than `priority`.
    fn last_below(&self, priority: Priority) -> Option<Id> {
        let below = Priority::ALL.into_iter().rev().take_while(|other| *other > priority);
        below.filter_map(|other| self.classes[other.index()].iter().next_back()).next()
    }

    /// Has somebody look, after the turn that there is.
    fn ask_to_look(&mut self, room: Room) {
        match self.turn {
            Some(_) => self.missed = Some(merged(self.missed, room)),
            None => self.give_turn(room),
        }
    }

    /// Gives the turn to the next one that can use room there.
    fn give_turn(&mut self, room: Room) {
        self.turn = self.next(room).map(|id| (id, room));
    }

    fn next(&mut self, room: Room) -> Option<Id> {
        let (head, passed, local) = {
            let mut able = self.order().filter(|id| self.is_able(*id, room));
            let head = able.next()?;
            let Room::At(backend) = room else { return Some(head) };
            if self.is_glad_of(head, backend) {
                return Some(head);
            }
            let line = self.line_of(head);
            let behind: Vec<Id> = able.take(LOOKAHEAD).take_while(|id| self.line_of(*id) == line).collect();
            let local = behind.iter().position(|id| self.is_glad_of(*id, backend));
            (head, behind, local)
        };
        // Nobody near wants it more: room that is there is used.
        let Some(local) = local else { return Some(head) };
        for id in passed[..local].iter().chain([&head]) {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.passed_over += 1;
            }
        }
        Some(passed[local])
    }

    /// All, the next one first.
    fn order(&self) -> impl Iterator<Item = Id> {
        self.first.keys().copied().chain(self.classes.iter().flat_map(FairOrder::iter))
    }

    /// The line that it stands in: none is that of further attempts.
    fn line_of(&self, id: Id) -> Option<Priority> {
        self.entries.get(&id).and_then(|entry| entry.tag.map(|_| entry.ticket.priority))
    }

    /// Whether it can use room there, as far as is known.
    fn is_able(&self, id: Id, room: Room) -> bool {
        self.entries.get(&id).is_some_and(|entry| {
            let has_looked = entry.looked_at == Some(self.events);
            let is_right_place = match (entry.ticket.wants, room) {
                (Wants::Only(only), Room::At(backend)) => only == backend,
                _ => true,
            };
            !has_looked && is_right_place && !entry.is_aside
        })
    }

    /// Whether it takes room there without a second thought.
    fn is_glad_of(&self, id: Id, backend: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| match entry.ticket.wants {
            Wants::Any | Wants::Only(_) => true,
            Wants::Rather(other) => other == backend || entry.passed_over >= PATIENCE,
        })
    }

    /// How many go before it, and what they cost together.
    fn ahead_of(&self, id: Id) -> (usize, u64) {
        let Some(entry) = self.entries.get(&id) else { return (0, 0) };
        let add = |(count, cost): (usize, u64), (more, of): (usize, u64)| (count + more, cost + of);
        let Some(tag) = entry.tag else {
            return self.first.range(..id).fold((0, 0), |sum, (_, cost)| add(sum, (1, *cost)));
        };
        let first = (self.first.len(), self.first.values().sum());
        let class = entry.ticket.priority.index();
        let above = self.classes[..class].iter().map(FairOrder::all).fold(first, add);
        add(above, self.classes[class].ahead_of(tag))
    }

    fn time_for(&self, cost: u64, now: Moment) -> Option<Duration> {
        let rate = self.drain.rate(now).filter(|rate| *rate > 0.0)?;
        Some(Duration::try_from_secs_f64(cost as f64 / rate).unwrap_or(Duration::MAX))
    }

    fn remove(&mut self, id: Id, is_served: bool, now: Moment) {
        let Some(entry) = self.entries.remove(&id) else { return };
        match entry.tag {
            Some(tag) => self.classes[entry.ticket.priority.index()].remove(tag, is_served),
            None => _ = self.first.remove(&id),
        }
        self.bytes -= entry.ticket.bytes;
        if is_served {
            self.drain.served(entry.cost, now);
        }
        if self.entries.is_empty() {
            self.drain.set_waiting(false, now);
        }
    }

    /// Takes the turn from `id`, if it has it: where the room was, and what was missed meanwhile.
    fn end_turn(&mut self, id: Id) -> Option<(Room, Option<Room>)> {
        let (_, room) = self.turn.take_if(|(holder, _)| *holder == id)?;
        Some((room, self.missed.take()))
    }
}

fn merged(before: Option<Room>, room: Room) -> Room {
    if before.is_none_or(|before| before == room) { room } else { Room::Anywhere }
}
