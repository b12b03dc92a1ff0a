use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::*;
use crate::locality::Tenant;
use crate::pool::{
    Answer, Backend, BackendSnapshot, CostModel, Drain, DrainCause, FailureKind, Health, InFlight, InFlightLimit,
    Origin, Polled, Pool, PoolSnapshot, Transition,
};
use crate::prefix::Scale;
use crate::queue::{Priority, QueueSettings, Ticket, Wants};
use crate::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::at(Duration::from_secs(seconds))
}

fn pool(healths: &[Health]) -> PoolSnapshot {
    let backend = |(index, &health): (usize, &Health)| {
        let origin = Origin { is_tls: false, host: "127.0.0.1".into(), port: 8_000 + index as u16 };
        let tenant = Tenant { slot: index as u32, generation: 0 };
        BackendSnapshot {
            address: Some(([127, 0, 0, 1], 8_000 + index as u16).into()),
            health,
            ..BackendSnapshot::new(Arc::new(Backend::new(format!("b{index}"), origin)), tenant)
        }
    };
    PoolSnapshot {
        backends: healths.iter().enumerate().map(backend).collect(),
        ..PoolSnapshot::new(Arc::new(Pool::new("llama", Scale::new(NonZeroU32::MIN))))
    }
}

/// Ejects a backend at 0 s; it may be probed at 5 s.
fn eject(pool: &PoolSnapshot, index: usize) {
    let ejection = pool.backends[index].backend.ejection();
    while ejection.record_failure(None, FailureKind::Connect, &pool.ejection, at(0)).is_none() {}
}

/// Drains a backend from 0 s on; its conversations may go on for so many.
fn drain(pool: &mut PoolSnapshot, index: usize, seconds: u64) {
    pool.backends[index].drain = Some(Drain::begin(DrainCause::Operator, Duration::from_secs(seconds), at(0)));
}

/// One letter a backend: `o`k, `u`nhealthy, `e`jected with a probe under way, `p`robe due from 5 s on, `s`tarting,
/// `d`raining and past its deadline, `l`eaving before it, `n`o address; capital: tried.
fn look(backends: &str, now: Moment) -> (PoolSnapshot, Filtered) {
    let healths: Vec<_> = backends
        .chars()
        .map(|letter| match letter.to_ascii_lowercase() {
            'u' => Health::Unhealthy,
            's' => Health::Starting,
            _ => Health::Healthy,
        })
        .collect();
    let mut pool = pool(&healths);
    let mut tried = Vec::new();
    for (index, letter) in backends.chars().enumerate() {
        match letter.to_ascii_lowercase() {
            'e' => {
                eject(&pool, index);
                std::mem::forget(pool.backends[index].backend.ejection().try_probe(at(5)));
            }
            'p' => eject(&pool, index),
            'd' => drain(&mut pool, index, 0),
            'l' => drain(&mut pool, index, 60),
            'n' => pool.backends[index].address = None,
            _ => {}
        }
        if letter.is_ascii_uppercase() {
            tried.push(index);
        }
    }
    let filtered = candidates(&pool, &query(0), &[], &tried, now);
    (pool, filtered)
}

#[test]
fn the_rules_give_way_in_their_order() {
    let table: [(&str, Pass, &[usize]); 24] = [
        ("ooo", Pass::Normal, &[0, 1, 2]),
        ("ousednp", Pass::Normal, &[0, 6]),
        ("Oo", Pass::Normal, &[1]),
        ("Op", Pass::Normal, &[1]),
        ("Ou", Pass::FailOpen, &[1]),
        ("OEs", Pass::None, &[]),
        ("ue", Pass::FailOpen, &[0, 1]),
        ("uE", Pass::FailOpen, &[0]),
        ("uesd", Pass::FailOpen, &[0, 1]),
        ("UE", Pass::None, &[]),
        ("Usd", Pass::None, &[]),
        ("ss", Pass::None, &[]),
        ("sdn", Pass::None, &[]),
        ("dd", Pass::None, &[]),
        ("ol", Pass::Normal, &[0]),
        ("Ol", Pass::Draining, &[1]),
        ("OL", Pass::None, &[]),
        ("ulds", Pass::Draining, &[1]),
        ("ll", Pass::Draining, &[0, 1]),
        ("uL", Pass::FailOpen, &[0]),
        ("L", Pass::None, &[]),
        ("n", Pass::None, &[]),
        ("S", Pass::None, &[]),
        ("", Pass::None, &[]),
    ];
    for (backends, pass, expected) in table {
        let (pool, filtered) = look(backends, at(6));
        let indices: Vec<_> = filtered.candidates.iter().map(|candidate| candidate.index).collect();
        assert_eq!((filtered.pass, &indices[..]), (pass, expected), "of {backends:?}");
        assert_eq!(filtered.excluded.len() + indices.len(), pool.backends.len(), "each is in or out, of {backends:?}");
    }
}

#[test]
fn a_conversation_may_go_on_at_a_draining_backend_until_its_deadline() {
    let mut pool = pool(&[Health::Healthy; 3]);
    drain(&mut pool, 1, 60);
    let chosen_from = |pool: &PoolSnapshot, query: &Query, matched: &[u32], now| -> Vec<usize> {
        candidates(pool, query, matched, &[], now).candidates.iter().map(|candidate| candidate.index).collect()
    };
    let (prompt, conversation, shared) = (query(4_000), [1_000, 3_500, 1_000], [1_000, 1_000, 0]);
    assert_eq!(chosen_from(&pool, &prompt, &conversation, at(59)), [0, 1, 2], "among the others, by the policy");
    assert_eq!(chosen_from(&pool, &prompt, &conversation, at(60)), [0, 2], "its time is over");
    assert_eq!(chosen_from(&pool, &prompt, &shared, at(1)), [0, 2], "a prefix that others hold is nobody's home");
    let owned = Query { owner: Some(1), ..prompt };
    assert_eq!(chosen_from(&pool, &owned, &[], at(1)), [0, 1, 2]);
    pool.backends[1].health = Health::Unhealthy;
    assert_eq!(chosen_from(&pool, &prompt, &conversation, at(1)), [0, 2], "it is out for another reason");
    pool.backends[1].health = Health::Healthy;
    drain(&mut pool, 0, 60);
    let both = [3_500, 3_500, 0];
    assert_eq!(chosen_from(&pool, &prompt, &both, at(1)), [0, 1, 2], "what leaves with one leaves with the other");
}

#[test]
fn each_excluded_backend_has_its_reason() {
    let (_, filtered) = look("oOuepsdn", at(4));
    let reasons: Vec<_> = filtered.excluded.iter().map(|(_, exclusion)| exclusion.name()).collect();
    assert_eq!(reasons, ["tried", "unhealthy", "ejected", "ejected", "starting", "draining", "no_address"]);
    assert_eq!(filtered.excluded[2].1, Exclusion::Ejected { until: None }, "its probe is under way");
    assert_eq!(filtered.excluded[3].1, Exclusion::Ejected { until: Some(at(5)) });
}

#[test]
fn candidates_carry_what_was_matched_and_fresh_polls_only() {
    let mut pool = pool(&[Health::Healthy; 3]);
    for (backend, observed_at) in pool.backends.iter_mut().zip([at(10), at(4)]) {
        backend.engine.capacity_tokens = NonZeroU64::new(1_000);
        backend.engine.polled = Some(Polled { running: 9, waiting: 9, kv_usage: Some(1.0), observed_at });
    }
    let _in_flight = pool.backends[2].backend.load().dispatch(500.0, 0, Answer::Streamed, at(10));
    let filtered = candidates(&pool, &query(0), &[16, 32], &[], at(10));
    let matched: Vec<_> = filtered.candidates.iter().map(|candidate| candidate.matched_tokens).collect();
    assert_eq!(matched, [16, 32, 0], "what is not told counts as none");
    let polled: Vec<_> = filtered.candidates.iter().map(|candidate| candidate.engine.polled.is_some()).collect();
    assert_eq!(polled, [true, false, false], "six seconds are too old");
    assert_eq!(filtered.candidates[1].engine.capacity_tokens, NonZeroU64::new(1_000), "capacity does not age");
    assert_eq!(filtered.candidates[2].load.pending_work, 500.0);
    // Invariant (6), from the snapshot on: the stale poll leaves no trace in any cost.
    let costs = score(&pool.policy.cost, &query(100), &filtered.candidates);
    assert!(costs[0].memory > 0.0);
    assert_eq!((costs[1].memory, costs[1].slots), (0.0, 0.0));
}

#[test]
fn costs_of_few_candidates_need_no_allocation() {
    let filtered = candidates(&pool(&[Health::Healthy; INLINE]), &query(0), &[], &[], at(1));
    assert_eq!(filtered.candidates.len(), INLINE);
    assert!(!score(&CostModel::default(), &query(9), &filtered.candidates).spilled());
}

#[test]
fn simultaneous_requests_see_each_other() {
    let pool = pool(&[Health::Healthy; 4]);
    let held: Vec<_> = std::thread::scope(|scope| {
        let arrive = |seed| {
            let pool = &pool;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                dispatch(pool, &query(4_000), &[], &[], Answer::Streamed, at(1), &mut rng).expect("all are healthy")
            })
        };
        let threads: Vec<_> = (0..8).map(arrive).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let loads: Vec<_> = pool.backends.iter().map(|backend| backend.backend.load().in_flight()).collect();
    assert_eq!(loads, [2; 4], "eight requests at once, two for each of four idle backends");
    drop(held);
    assert!(pool.backends.iter().all(|backend| backend.backend.load().in_flight() == 0));
}

#[test]
fn an_ejected_backend_gets_one_probing_request() {
    let pool = pool(&[Health::Healthy; 2]);
    eject(&pool, 0);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut send =
        |now| dispatch(&pool, &query(4_000), &[], &[], Answer::Streamed, now, &mut rng).expect("one is healthy");
    let early: Vec<_> = (0..5).map(|_| send(at(4))).collect();
    assert!(early.iter().all(|sent| sent.decision.index == 1 && sent.permit.is_none()), "not before its time");
    let due: Vec<_> = (0..5).map(|_| send(at(5))).collect();
    let probing: Vec<_> = due.iter().filter(|sent| sent.decision.index == 0).collect();
    assert_eq!(probing.len(), 1, "one request at a time");
    assert!(probing[0].permit.is_some());

    let permit = due.into_iter().find_map(|sent| sent.permit);
    let transition = pool.backends[0].backend.ejection().record_success(permit, at(6));
    assert_eq!(transition, Some(Transition::Readmitted));
    assert_eq!(send(at(6)).decision.index, 0, "back, and the least loaded");
}

#[test]
fn with_all_out_requests_are_sent_nevertheless_and_without_a_permit() {
    let pool = pool(&[Health::Healthy; 2]);
    eject(&pool, 0);
    eject(&pool, 1);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut send = |now| dispatch(&pool, &query(100), &[], &[], Answer::Streamed, now, &mut rng).expect("fails open");
    let sent = [send(at(1)), send(at(1))];
    assert!(sent.iter().all(|sent| sent.pass == Pass::FailOpen && sent.permit.is_none()));
    assert_ne!(sent[0].decision.index, sent[1].decision.index, "by load, as ever");
    let probing = [send(at(5)), send(at(5)), send(at(5))];
    let permits = probing.iter().filter(|sent| sent.permit.is_some()).count();
    assert_eq!(permits, 2, "when their time has come, each gets one probe");
    assert_eq!(probing[2].pass, Pass::FailOpen, "and the rest go there as well");
}

#[test]
fn no_backend_says_what_keeps_each_out() {
    let mut pool = pool(&[Health::Starting, Health::Healthy]);
    drain(&mut pool, 1, 0);
    let mut rng = fastrand::Rng::with_seed(1);
    let refused = dispatch(&pool, &query(100), &[], &[], Answer::Whole, at(1), &mut rng).expect_err("none is usable");
    assert_eq!(refused.excluded, [(0, Exclusion::Starting), (1, Exclusion::Draining)]);
}

// === full backends ===

/// Backends with so many requests in flight each, of which at most three are allowed, with the requests.
fn loaded(in_flight: &[u32]) -> (PoolSnapshot, Vec<InFlight>) {
    let mut pool = pool(&vec![Health::Healthy; in_flight.len()]);
    pool.limits.in_flight = InFlightLimit::Requests(NonZeroU32::new(3).unwrap());
    // 1,000 tokens at the rate that is assumed at first are more than a tenth of a second, 500 are not.
    pool.limits.max_pending_prefill = Some(Duration::from_millis(100));
    let mut requests = Vec::new();
    for (backend, &count) in pool.backends.iter().zip(in_flight) {
        for _ in 0..count {
            requests.push(backend.backend.load().dispatch(500.0, 500, Answer::Streamed, at(0)));
        }
    }
    (pool, requests)
}

fn indices(candidates: &[Candidate]) -> Vec<usize> {
    candidates.iter().map(|candidate| candidate.index).collect()
}

#[test]
fn a_busy_backend_is_a_candidate_while_another_has_room_and_a_full_one_never_is() {
    let (pool, _requests) = loaded(&[3, 2, 1]);
    let filtered = candidates(&pool, &Query::default(), &[], &[], at(0));
    assert_eq!(indices(&filtered.candidates), [1, 2]);
    assert_eq!(filtered.excluded.to_vec(), [(0, Exclusion::Full)]);
}

#[test]
fn where_nobody_has_room_nobody_is_a_candidate() {
    let (pool, requests) = loaded(&[3, 2]);
    let filtered = candidates(&pool, &Query::default(), &[7], &[], at(0));
    assert!(filtered.candidates.is_empty());
    assert_eq!(indices(&filtered.full), [0, 1]);
    assert_eq!((filtered.full[0].matched_tokens, filtered.pass), (7, Pass::Normal));
    drop(requests);
    assert_eq!(candidates(&pool, &Query::default(), &[], &[], at(0)).candidates.len(), 2, "there is room again");
}

#[test]
fn while_others_wait_only_room_counts() {
    let (pool, _requests) = loaded(&[2, 1]);
    let ticket = Ticket {
        priority: Priority::Normal,
        is_retry: false,
        work: 1.0,
        prefill: Duration::ZERO,
        bytes: 0,
        wants: Wants::Any,
        patience: Duration::from_secs(1),
    };
    let place = pool.pool.line().enter(ticket, None, &QueueSettings::default(), at(0)).unwrap();
    assert_eq!(indices(&candidates(&pool, &Query::default(), &[], &[], at(0)).candidates), [1]);
    drop(place);
    assert_eq!(indices(&candidates(&pool, &Query::default(), &[], &[], at(0)).candidates), [0, 1]);
}

#[test]
fn what_was_not_tried_is_waited_for_and_no_rule_gives_way() {
    let (mut pool, _requests) = loaded(&[3, 0, 0]);
    pool.backends[2].health = Health::Unhealthy;
    let filtered = candidates(&pool, &Query::default(), &[], &[1], at(0));
    assert!(filtered.candidates.is_empty(), "neither the one that was tried nor the unhealthy one");
    assert_eq!((indices(&filtered.full), filtered.pass), (vec![0], Pass::Normal));
}

#[test]
fn the_outlook_is_that_of_the_warmest_backend() {
    let (pool, _requests) = loaded(&[3, 3]);
    let filtered = candidates(&pool, &Query::default(), &[100, 900], &[], at(0));
    let query = Query { prompt_tokens: 1_000, ..Query::default() };
    let outlook = Outlook::of(&pool.policy.cost, &pool.limits, &query, &filtered.full, at(0));
    let rate = filtered.full[0].rate;
    assert_eq!((outlook.warmest, outlook.work), (Some(1), 100.0));
    assert!((outlook.ttft.as_secs_f64() - 1_600.0 / rate).abs() < 1e-9, "1,500 tokens pending and 100 of its own");
    let cold = Outlook::of(
        &pool.policy.cost,
        &pool.limits,
        &query,
        &candidates(&pool, &Query::default(), &[], &[], at(0)).full,
        at(0),
    );
    assert_eq!((cold.warmest, cold.work), (None, 1_000.0));
}
