//! Any sequence of events against what must hold of them, kept in the plainest way.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::state::{Id, Queue};
use super::*;
use crate::testing::config;
use crate::time::Moment;

#[derive(Debug, Clone)]
enum Step {
    Enter {
        ticket: Ticket,
        has_looked: bool,
    },
    Stir(Room),
    FoundNone,
    FoundNoneForItself,
    Served,
    /// The so manieth of those that wait leaves.
    Gone(usize),
}

/// What is known of one that waits.
#[derive(Debug, Clone, Copy)]
struct Known {
    ticket: Ticket,
    /// Room may have come that it could use, and nobody has looked since.
    is_owed_a_look: bool,
    /// The same since the one with the turn got it: that one may have looked before.
    is_owed_another: bool,
}

#[derive(Debug, Default)]
struct Model {
    waiting: BTreeMap<Id, Known>,
    /// Whether a look since the last event found that the pool has no room.
    is_full: bool,
}

fn ticket() -> impl Strategy<Value = Ticket> {
    let priority = prop::sample::select(Priority::ALL.to_vec());
    let wants = prop_oneof![
        4 => Just(Wants::Any),
        4 => (0..3_u64).prop_map(Wants::Rather),
        1 => (0..3_u64).prop_map(Wants::Only),
    ];
    let work = prop_oneof![0.0..100.0, 0.0..1e6, Just(f64::NAN), Just(f64::INFINITY)];
    (priority, prop::bool::weighted(0.1), work, 0..100_u64, wants).prop_map(
        |(priority, is_retry, work, bytes, wants)| Ticket {
            priority,
            is_retry,
            work,
            prefill: Duration::ZERO,
            bytes,
            wants,
            patience: Duration::from_secs(30),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let room = prop_oneof![Just(Room::Anywhere), (0..3_u64).prop_map(Room::At)];
    prop_oneof![
        4 => (ticket(), any::<bool>()).prop_map(|(ticket, has_looked)| Step::Enter { ticket, has_looked }),
        3 => room.prop_map(Step::Stir),
        3 => Just(Step::FoundNone),
        1 => Just(Step::FoundNoneForItself),
        3 => Just(Step::Served),
        1 => (0..20_usize).prop_map(Step::Gone),
    ]
}

const SETTINGS: QueueSettings =
    QueueSettings { max_requests: 12, max_bytes: 800, max_wait: Duration::from_secs(30), max_defer: None };

// === impl Model ===

impl Model {
    fn owe(&mut self, room: Room) {
        for known in self.waiting.values_mut() {
            let is_for_it = match (known.ticket.wants, room) {
                (Wants::Only(only), Room::At(backend)) => only == backend,
                _ => true,
            };
            known.is_owed_a_look |= is_for_it;
            known.is_owed_another |= is_for_it;
        }
        self.is_full = false;
    }

    fn apply(&mut self, queue: &mut Queue, step: &Step, now: Moment) {
        let before = queue.turn();
        match step {
            Step::Enter { ticket, has_looked } => self.enter(queue, *ticket, *has_looked, now),
            Step::Stir(room) => {
                self.owe(*room);
                queue.stir(*room);
            }
            Step::FoundNone => {
                let Some(id) = before else { return };
                self.waiting.values_mut().for_each(|known| known.is_owed_a_look = known.is_owed_another);
                self.is_full |= !self.waiting.values().any(|known| known.is_owed_a_look);
                queue.found_none(id);
            }
            Step::FoundNoneForItself => {
                let Some(id) = before else { return };
                if let Some(known) = self.waiting.get_mut(&id) {
                    known.is_owed_a_look = known.is_owed_another;
                }
                queue.found_none_for_itself(id);
            }
            Step::Served => {
                let Some(id) = before else { return };
                self.waiting.remove(&id);
                queue.leave(id, true, now);
            }
            Step::Gone(at) => {
                let Some(&id) = self.waiting.keys().nth(*at) else { return };
                self.waiting.remove(&id);
                queue.leave(id, false, now);
            }
        }
        let is_another_turn = queue.turn() != before || matches!(step, Step::FoundNone | Step::FoundNoneForItself);
        if is_another_turn {
            self.waiting.values_mut().for_each(|known| known.is_owed_another = false);
        }
    }

    fn enter(&mut self, queue: &mut Queue, ticket: Ticket, has_looked: bool, now: Moment) {
        let seen = has_looked.then(|| queue.events());
        let Ok(admitted) = queue.enter(ticket, seen, &SETTINGS, now) else { return };
        if let Some(displaced) = admitted.displaced {
            let known = self.waiting.remove(&displaced).expect("only those that wait are displaced");
            assert!(known.ticket.priority > ticket.priority, "only the less urgent make room");
        }
        // Where a look since the last event found nothing for anybody, there is nothing for this one either.
        self.is_full |= has_looked && !matches!(ticket.wants, Wants::Only(_));
        let is_owed_a_look = !has_looked && !self.is_full;
        self.waiting.insert(admitted.id, Known { ticket, is_owed_a_look, is_owed_another: is_owed_a_look });
    }

    fn check(&self, queue: &Queue) {
        let stats = queue.stats(Moment::ORIGIN);
        assert_eq!(stats.requests.iter().sum::<usize>(), self.waiting.len());
        assert_eq!(stats.bytes, self.waiting.values().map(|known| known.ticket.bytes).sum::<u64>());
        for priority in Priority::ALL {
            let of = self.waiting.values().filter(|known| known.ticket.priority == priority).count();
            assert_eq!(stats.requests[priority as usize], of);
        }
        match queue.turn() {
            Some(id) => assert!(self.waiting.contains_key(&id), "only who waits has the turn"),
            None => assert!(
                !self.waiting.values().any(|known| known.is_owed_a_look),
                "there may be room, and nobody looks: {:?}",
                self.waiting
            ),
        }
        for id in self.waiting.keys() {
            assert!(queue.is_waiting(*id));
            assert!(queue.standing(*id, Moment::ORIGIN).ahead < self.waiting.len());
        }
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn no_room_goes_unnoticed_and_nothing_is_lost(order in prop::sample::select(vec![Order::Fair, Order::ShortFirst]), steps in prop::collection::vec(step(), 1..120)) {
        let (mut queue, mut model) = (Queue::new(order), Model::default());
        for (second, step) in (0..).zip(&steps) {
            model.apply(&mut queue, step, Moment::at(Duration::from_secs(second)));
            model.check(&queue);
        }
        // With room for all, all go.
        model.apply(&mut queue, &Step::Stir(Room::Anywhere), Moment::at(Duration::from_secs(1_000)));
        while queue.turn().is_some() {
            model.apply(&mut queue, &Step::Served, Moment::at(Duration::from_secs(1_000)));
            model.check(&queue);
        }
        prop_assert!(queue.is_empty());
    }

    #[test]
    fn in_a_short_first_line_nobody_goes_before_one_that_came_long_before(
        prefills in prop::collection::vec(0.0..10.0_f64, 1..60), watched in 0.0..10.0_f64, every in 0.1..5.0_f64,
    ) {
        let settings = QueueSettings { max_requests: 1_000, max_bytes: u64::MAX, ..SETTINGS };
        let mut queue = Queue::new(Order::ShortFirst);
        let mut enter = |prefill: f64, now: f64| {
            let ticket = Ticket {
                priority: Priority::Normal, is_retry: false, work: 1.0, prefill: Duration::from_secs_f64(prefill), bytes: 0,
                wants: Wants::Any, patience: Duration::MAX,
            };
            let seen = Some(queue.events());
            queue.enter(ticket, seen, &settings, Moment::at(Duration::from_secs_f64(now))).unwrap().id
        };
        let first = enter(watched, 0.0);
        let came: BTreeMap<Id, f64> = prefills.iter().zip(1..).map(|(&prefill, place)| {
            let now = f64::from(place) * every;
            (enter(prefill, now), now)
        }).collect();
        queue.stir(Room::Anywhere);
        loop {
            let id = queue.turn().unwrap();
            queue.leave(id, true, Moment::ORIGIN);
            if id == first {
                break;
            }
            prop_assert!(came[&id] <= 20.0 * watched + 1e-6, "one that came after {} s", came[&id]);
        }
    }

    #[test]
    fn nobody_waits_longer_than_its_share(costs in prop::collection::vec(1.0..200_000.0_f64, 2..80), last in 1.0..200_000.0_f64) {
        let settings = QueueSettings { max_requests: 1_000, max_bytes: u64::MAX, max_wait: Duration::MAX, max_defer: None };
        let mut queue = Queue::default();
        let ticket = |work| Ticket {
            priority: Priority::Normal, is_retry: false, work, prefill: Duration::ZERO, bytes: 0, wants: Wants::Any, patience: Duration::MAX,
        };
        let enter = |queue: &mut Queue, work| queue.enter(ticket(work), None, &settings, Moment::ORIGIN).unwrap().id;
        let class = |work: f64| [1_024.0, 4_096.0, 16_384.0, 65_536.0].iter().position(|end| (REQUEST_COST + work).floor() <= *end);
        let mut works: BTreeMap<Id, f64> = costs.iter().map(|&work| (enter(&mut queue, work), work)).collect();
        let watched = enter(&mut queue, last);
        let own: f64 = works.values().filter(|work| class(**work) == class(last)).map(|work| REQUEST_COST + work).sum();
        let share = own + REQUEST_COST + last;
        let mut of_others: BTreeMap<Option<usize>, f64> = BTreeMap::new();
        // Whatever goes is followed by another one like it, so that every class has some waiting to the end.
        loop {
            let id = queue.turn().unwrap();
            queue.leave(id, true, Moment::ORIGIN);
            if id == watched {
                break;
            }
            let work = works.remove(&id).unwrap();
            works.insert(enter(&mut queue, work), work);
            if class(work) != class(last) {
                let sum = of_others.entry(class(work)).or_default();
                *sum += REQUEST_COST + work;
                prop_assert!(*sum <= share + 200_000.0 + REQUEST_COST, "{sum} units of another class went before {share}");
            }
        }
    }
}
