use std::sync::Arc;

use super::state::{Admitted, Id, Queue};
use super::*;
use crate::time::Moment;

const SETTINGS: QueueSettings =
    QueueSettings { max_requests: 8, max_bytes: 1_000, max_wait: Duration::from_secs(30), max_defer: None };

fn at(seconds: f64) -> Moment {
    Moment::at(Duration::from_secs_f64(seconds))
}

fn ticket() -> Ticket {
    Ticket {
        priority: Priority::Normal,
        is_retry: false,
        work: 100.0,
        prefill: Duration::ZERO,
        bytes: 10,
        wants: Wants::Any,
        patience: Duration::from_secs(30),
    }
}

/// Enters a request that has looked in vain just before.
fn enter(queue: &mut Queue, ticket: Ticket) -> Admitted {
    let seen = Some(queue.events());
    queue.enter(ticket, seen, &SETTINGS, at(0.0)).unwrap()
}

/// Who goes, as there is room for all.
fn drain(queue: &mut Queue) -> Vec<Id> {
    queue.stir(Room::Anywhere);
    let mut gone = Vec::new();
    while let Some(id) = queue.turn() {
        queue.leave(id, true, at(1.0));
        gone.push(id);
    }
    gone
}

#[test]
fn urgent_requests_go_first_and_further_attempts_before_them() {
    let mut queue = Queue::default();
    let of = |priority| Ticket { priority, ..ticket() };
    let low = enter(&mut queue, of(Priority::Low)).id;
    let normal = enter(&mut queue, of(Priority::Normal)).id;
    let high = enter(&mut queue, of(Priority::High)).id;
    let retry = enter(&mut queue, Ticket { is_retry: true, ..of(Priority::Low) }).id;
    assert_eq!(drain(&mut queue), [retry, high, normal, low]);
}

#[test]
fn one_event_has_one_request_look_and_another_for_each_that_goes() {
    let mut queue = Queue::default();
    let ids: Vec<Id> = (0..5).map(|_| enter(&mut queue, ticket()).id).collect();
    assert_eq!(queue.turn(), None, "all have looked, and nothing has happened since");
    queue.stir(Room::Anywhere);
    assert_eq!(queue.turn(), Some(ids[0]));
    queue.leave(ids[0], true, at(1.0));
    assert_eq!(queue.turn(), Some(ids[1]), "there may be room for two");
    queue.found_none(ids[1]);
    assert_eq!(queue.turn(), None, "nobody else looks in vain");
}

#[test]
fn room_that_came_between_a_look_and_the_wait_is_not_missed() {
    let mut queue = Queue::default();
    let seen = Some(queue.events());
    queue.stir(Room::At(1));
    let id = queue.enter(ticket(), seen, &SETTINGS, at(0.0)).unwrap().id;
    assert_eq!(queue.turn(), Some(id));
}

#[test]
fn room_that_came_during_a_look_is_not_missed() {
    let mut queue = Queue::default();
    let id = enter(&mut queue, ticket()).id;
    queue.stir(Room::At(1));
    queue.stir(Room::At(2));
    queue.found_none(id);
    assert_eq!(queue.turn(), Some(id), "it may have looked at the second one before");
    queue.found_none(id);
    assert_eq!(queue.turn(), None);
}

#[test]
fn one_that_leaves_with_the_turn_hands_it_on() {
    let mut queue = Queue::default();
    let ids: Vec<Id> = (0..2).map(|_| enter(&mut queue, ticket()).id).collect();
    queue.stir(Room::Anywhere);
    queue.leave(ids[0], false, at(1.0));
    assert_eq!(queue.turn(), Some(ids[1]));
}

#[test]
fn when_the_one_leaves_that_watches_the_time_another_takes_over() {
    let mut queue = Queue::default();
    let ids: Vec<Id> = (0..3).map(|_| enter(&mut queue, ticket()).id).collect();
    queue.leave(ids[0], false, at(1.0));
    assert_eq!(queue.turn(), Some(ids[1]), "it looks, and learns when to look again");
    queue.found_none(ids[1]);
    queue.leave(ids[2], false, at(1.0));
    assert_eq!(queue.turn(), None, "one that did not watch leaves no duty");
}

#[test]
fn a_request_for_one_backend_only_holds_nobody_up() {
    let mut queue = Queue::default();
    let bound = enter(&mut queue, Ticket { wants: Wants::Only(7), ..ticket() }).id;
    let free = queue.enter(ticket(), None, &SETTINGS, at(0.0)).unwrap().id;
    assert_eq!(queue.turn(), Some(free), "what has not looked does");
    queue.found_none(free);
    queue.stir(Room::At(1));
    assert_eq!(queue.turn(), Some(free), "that room is none for the first one");
    queue.found_none(free);
    queue.stir(Room::Anywhere);
    assert_eq!(queue.turn(), Some(bound));
    queue.found_none_for_itself(bound);
    assert_eq!(queue.turn(), Some(free), "though the first one found nothing");
    queue.leave(free, true, at(1.0));
    assert_eq!(queue.turn(), None, "it has looked after the last event");
    queue.stir(Room::At(7));
    assert_eq!(queue.turn(), Some(bound));
}

#[test]
fn room_goes_to_a_request_that_has_its_prefix_there() {
    let mut queue = Queue::default();
    let rather = |backend| Ticket { wants: Wants::Rather(backend), ..ticket() };
    let first = enter(&mut queue, rather(1)).id;
    let second = enter(&mut queue, rather(2)).id;
    queue.stir(Room::At(2));
    assert_eq!(queue.turn(), Some(second));
    queue.leave(second, true, at(1.0));
    assert_eq!(queue.turn(), Some(first), "nobody else wants it, so the room is used");
}

#[test]
fn nobody_is_passed_over_for_ever() {
    let mut queue = Queue::default();
    let rather = |backend| Ticket { wants: Wants::Rather(backend), ..ticket() };
    let first = enter(&mut queue, rather(1)).id;
    let mut passed_over = 0;
    loop {
        enter(&mut queue, rather(2));
        queue.stir(Room::At(2));
        let next = queue.turn().unwrap();
        queue.leave(next, true, at(1.0));
        // The turn goes on; there is no more room.
        if next == first {
            break;
        }
        passed_over += 1;
        if let Some(id) = queue.turn() {
            queue.found_none(id);
        }
    }
    assert_eq!(passed_over, PATIENCE);
}

#[test]
fn a_full_queue_refuses_unless_a_less_urgent_one_can_make_room() {
    let mut queue = Queue::default();
    let of = |priority| Ticket { priority, ..ticket() };
    for _ in 0..7 {
        enter(&mut queue, of(Priority::Normal));
    }
    let low = enter(&mut queue, of(Priority::Low)).id;
    let refused = queue.enter(of(Priority::Low), None, &SETTINGS, at(0.0)).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    let high = enter(&mut queue, of(Priority::High));
    assert_eq!(high.displaced, Some(low));
    assert!(!queue.is_waiting(low));
    assert_eq!(enter(&mut queue, of(Priority::High)).displaced, Some(6), "the last of the normal ones");
    assert!(queue.enter(of(Priority::Normal), None, &SETTINGS, at(0.0)).is_err());
    let retry = Ticket { is_retry: true, ..of(Priority::Low) };
    assert_eq!(enter(&mut queue, retry).displaced, None, "what was let in before stays in");
}

#[test]
fn bytes_are_bounded_as_well() {
    let mut queue = Queue::default();
    enter(&mut queue, Ticket { bytes: 600, ..ticket() });
    let more = Ticket { bytes: 500, ..ticket() };
    assert_eq!(queue.enter(more, None, &SETTINGS, at(0.0)).unwrap_err().reason, Refusal::Full);
    enter(&mut queue, Ticket { bytes: 400, ..ticket() });
    assert_eq!(queue.stats(at(0.0)).bytes, 1_000);
    drain(&mut queue);
    assert_eq!(queue.stats(at(0.0)), Stats { rate: queue.stats(at(0.0)).rate, ..Stats::default() });
}

#[test]
fn who_cannot_make_it_is_told_at_once() {
    let mut queue = Queue::default();
    let settings = QueueSettings { max_requests: 1_000, ..SETTINGS };
    // 356 units each, ten a second.
    let enter = |queue: &mut Queue, patience: f64, now: f64| {
        let patience = Duration::from_secs_f64(patience);
        queue.enter(Ticket { patience, bytes: 0, ..ticket() }, None, &settings, at(now))
    };
    for _ in 0..60 {
        enter(&mut queue, 30.0, 0.0).unwrap();
    }
    for step in 1..=40 {
        queue.leave(queue.turn().unwrap(), true, at(f64::from(step) / 10.0));
    }
    let entered = enter(&mut queue, 2.5, 4.0).unwrap().entered;
    assert_eq!(entered.ahead, 20);
    assert!((1.8..2.2).contains(&entered.estimate.unwrap().as_secs_f64()), "{entered:?}");
    let refused = enter(&mut queue, 1.5, 4.0).unwrap_err();
    assert_eq!(refused.reason, Refusal::TooLong);
    assert!((1.8..2.4).contains(&refused.estimate.unwrap().as_secs_f64()), "{refused:?}");
    assert_eq!(queue.stats(at(4.0)).requests, [0, 21, 0], "the refused one does not wait");
}

#[test]
fn in_a_short_first_line_a_second_of_prefill_weighs_as_much_as_coming_20_s_later() {
    let mut queue = Queue::new(Order::ShortFirst);
    let mut enter = |prefill: f64, now: f64| {
        let prefill = Duration::from_secs_f64(prefill);
        let seen = Some(queue.events());
        queue.enter(Ticket { prefill, ..ticket() }, seen, &SETTINGS, at(now)).unwrap().id
    };
    let long = enter(2.0, 0.0);
    let short = enter(0.5, 1.0);
    let in_time = enter(1.0, 19.0);
    let late = enter(1.0, 21.0);
    let urgent = Ticket { priority: Priority::High, prefill: Duration::from_secs(9), ..ticket() };
    let seen = Some(queue.events());
    let urgent = queue.enter(urgent, seen, &SETTINGS, at(30.0)).unwrap().id;
    assert_eq!(drain(&mut queue), [urgent, short, in_time, long, late]);
}

#[tokio::test]
async fn a_place_is_woken_for_its_turn_and_left_by_dropping_it() {
    let line = Arc::<Line>::default();
    let enter = |looked| line.enter(ticket(), looked, &SETTINGS, at(0.0)).unwrap();
    let first = enter(Some(line.seat()));
    let second = enter(None);
    let waiting = tokio::spawn(async move {
        let turn = second.turn().await;
        (turn, second)
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    line.stir(Room::Anywhere);
    assert_eq!(first.turn().await, Turn::Look);
    first.served(at(1.0));
    let (turn, second) = waiting.await.unwrap();
    assert_eq!(turn, Turn::Look);
    assert!(line.seat().is_taken);
    drop(second);
    assert!(!line.seat().is_taken);
}

#[tokio::test]
async fn a_displaced_place_is_told() {
    let line = Arc::<Line>::default();
    let settings = QueueSettings { max_requests: 1, ..SETTINGS };
    let low = Ticket { priority: Priority::Low, ..ticket() };
    let place = line.enter(low, Some(line.seat()), &settings, at(0.0)).unwrap();
    let waiting = tokio::spawn(async move { place.turn().await });
    tokio::task::yield_now().await;
    let _high = line.enter(ticket(), Some(line.seat()), &settings, at(0.0)).unwrap();
    assert_eq!(waiting.await.unwrap(), Turn::Displaced);
}
