//! What faults do to a fleet.

use super::*;
use crate::time::Moment;

fn seconds_of(moment: Moment) -> f64 {
    moment.since(Moment::ORIGIN).as_secs_f64()
}

fn with(setup: &Setup, texts: &[&str]) -> Setup {
    Setup { faults: faults(texts), ..setup.clone() }
}

#[test]
fn a_restart_loses_the_cache() {
    let workload = builtin(Builtin::Conversation, 400);
    let healthy = setup(2, Model::Reference, 1_000_000);
    let struck = with(&healthy, &["restart@30:0:1", "restart@35:1:1"]);
    let minute_after = |setup: &Setup| {
        let outcome = outcome(&workload, setup, COST);
        let after = |record: &&Record| record.times.is_some() && (36.0..96.0).contains(&seconds_of(record.arrived));
        hit_ratio(outcome.records.iter().filter(after))
    };
    let (healthy, struck) = (minute_after(&healthy), minute_after(&struck));
    assert!(struck < healthy - 0.02, "{struck} after restarts, {healthy} without");
}

#[test]
fn a_restarted_backend_is_believed_to_hold_nothing() {
    // Ten documents, asked for while both backends are there, while one is away, and when it is back.
    let asked = (0..30).map(|at| (seconds(at + 1), at % 10, 4_000, 4));
    let struck = with(&setup(2, Model::Reference, 1_000_000), &["restart@10.9:0:10"]);
    let records = by_arrival(&outcome(&asks(&asked.collect::<Vec<_>>()), &struck, COST));
    assert!(records[..10].iter().any(|record| record.backend == 0));
    assert!(records[10..20].iter().all(|record| record.backend == 1));
    assert!(records[20..].iter().all(|record| record.cached_blocks > 0), "all are at the other one");
}

/// A long answer that decodes at one backend, with a turn to follow, and a long prompt at the other.
fn two_requests() -> Workload {
    let talk = vec![turn(Duration::ZERO, 1, 200, 2_000), turn(seconds(2), 1, 300, 4)];
    let read = vec![turn(Duration::ZERO, 2, 20_000, 4)];
    workload(vec![
        Session { start: Duration::ZERO, key: None, turns: talk },
        Session { start: seconds(1), key: None, turns: read },
    ])
}

#[test]
fn what_has_begun_is_cut_off_and_its_session_goes_on() {
    let (workload, healthy) = (two_requests(), setup(2, Model::Linear, 1_000_000));
    let backend = by_arrival(&outcome(&workload, &healthy, COST))[0].backend;
    let fault = format!("restart@1.5:{backend}:30");
    let records = by_arrival(&outcome(&workload, &with(&healthy, &[&fault]), COST));
    assert_eq!((records[0].times, records[0].backend), (None, backend));
    let next = &records[2];
    assert!((seconds_of(next.arrived) - 3.5).abs() < 1e-6, "two seconds after it was cut off: {next:?}");
    assert!(next.times.is_some() && next.backend != backend, "{next:?}");
}

#[test]
fn what_has_not_begun_goes_elsewhere_and_waits_all_the_longer() {
    let (workload, healthy) = (two_requests(), setup(2, Model::Linear, 1_000_000));
    let records = by_arrival(&outcome(&workload, &healthy, COST));
    let (before, backend) = (records[1].times.unwrap().first_token, records[1].backend);
    assert_ne!(backend, records[0].backend, "the second request goes where nothing is");
    let fault = format!("restart@2:{backend}:30");
    let records = by_arrival(&outcome(&workload, &with(&healthy, &[&fault]), COST));
    assert_ne!(records[1].backend, backend);
    let after = records[1].times.unwrap().first_token;
    assert!(after >= before + 1.0, "a second is lost: {after} s, {before} without the fault");
    assert!(records.iter().all(|record| record.times.is_some()), "nothing failed");
}

#[test]
fn a_backend_that_is_away_gets_nothing_until_it_is_back() {
    let workload = builtin(Builtin::NoSharing, 600);
    // The second restart is over before the first, which ends at 35.
    let struck = with(&setup(3, Model::Reference, 1_000_000), &["restart@5:1:30", "restart@15:1:5"]);
    for contender in Contender::ALL {
        let outcome = outcome(&workload, &struck, contender);
        let failed = outcome.records.iter().filter(|record| record.times.is_none());
        assert!(failed.clone().count() > 0 && failed.clone().all(|record| seconds_of(record.arrived) < 5.0));
        let served = |record: &&Record| record.backend == 1 && record.times.is_some();
        let begun = |record: &Record| seconds_of(record.arrived) + record.times.map_or(0.0, |times| times.first_token);
        let at: Vec<f64> = outcome.records.iter().filter(served).map(begun).collect();
        let name = contender.name();
        assert!(!at.iter().any(|at| (5.0..35.0).contains(at)), "{name} served by a backend that was away");
        assert!(at.iter().any(|&at| at > 35.0), "{name} never came back to it");
    }
}

#[test]
fn requests_fail_while_no_backend_is_there() {
    let list: Vec<Ask> = [1, 5, 8, 20].map(|at| (seconds(at), at, 500, 4)).to_vec();
    let struck = with(&setup(2, Model::Reference, 1_000_000), &["restart@4:0:6", "restart@4:1:6"]);
    let outcome = outcome(&asks(&list), &struck, COST);
    let is_served: Vec<bool> = by_arrival(&outcome).iter().map(|record| record.times.is_some()).collect();
    assert_eq!(is_served, [true, false, false, true]);
}

#[test]
fn an_added_backend_gets_requests_from_then_on() {
    let workload = builtin(Builtin::Conversation, 400);
    let grown = with(&Setup { speed: 2.0, ..setup(2, Model::Reference, 1_000_000) }, &["add@20"]);
    for contender in Contender::ALL.into_iter().filter(|&contender| contender != Contender::Pooled) {
        let outcome = outcome(&workload, &grown, contender);
        assert_eq!(outcome.backends, 3);
        let arrivals = outcome.records.iter().filter(|record| record.backend == 2).map(|record| record.arrived);
        let arrivals: Vec<f64> = arrivals.map(seconds_of).collect();
        assert!(arrivals.len() > 20, "{}: {} of 400", contender.name(), arrivals.len());
        assert!(arrivals.iter().all(|&at| at >= 20.0));
    }
}

#[test]
fn a_slow_backend_gets_less_prefill_under_cost() {
    let workload = builtin(Builtin::NoSharing, 800);
    let healthy = Setup { speed: 0.7, ..setup(4, Model::Reference, 1_000_000) };
    let share = |setup: &Setup| {
        let outcome = outcome(&workload, setup, COST);
        let after: Vec<_> = outcome.records.iter().filter(|record| seconds_of(record.arrived) > 30.0).collect();
        let all: u32 = after.iter().map(|record| record.prefill_tokens).sum();
        let there = after.iter().filter(|record| record.backend == 1).map(|record| record.prefill_tokens);
        f64::from(there.sum::<u32>()) / f64::from(all)
    };
    let (before, after) = (share(&healthy), share(&with(&healthy, &["slow@20:1:8"])));
    assert!(before > 0.15 && after < 0.7 * before, "{after} of the tokens, {before} when it is not slow");
}
