//! What must be seen of fleets: what a shared cache, more routers, exact locality and the speed do.

use super::super::utilization::speed_for;
use super::*;

fn policies() -> impl Iterator<Item = Contender> {
    Contender::ALL.into_iter().filter(|&contender| contender != Contender::Pooled)
}

#[test]
fn no_policy_finds_more_than_one_cache_for_all() {
    for kind in [Builtin::Conversation, Builtin::Agentic, Builtin::Rag] {
        let workload = builtin(kind, 300);
        for kv_tokens in [60_000, 1_000_000] {
            let setup = setup(4, Model::Reference, kv_tokens);
            let bound = hit_ratio(&outcome(&workload, &setup, Contender::Pooled).records);
            for contender in policies() {
                let ratio = hit_ratio(&outcome(&workload, &setup, contender).records);
                let names = (kind.name(), contender.name());
                assert!(ratio <= bound, "{names:?} with {kv_tokens} tokens each: {ratio} against {bound}");
            }
        }
    }
}

#[test]
fn locality_is_worth_more_than_turns_where_prompts_are_shared() {
    let (workload, setup) = (builtin(Builtin::Conversation, 300), setup(4, Model::Reference, 1_000_000));
    let [cost, turns] =
        [COST, Contender::Policy(PolicyKind::RoundRobin)].map(|contender| outcome(&workload, &setup, contender));
    let ratios = (hit_ratio(&cost.records), hit_ratio(&turns.records));
    assert!(ratios.0 > ratios.1 + 0.15, "{ratios:?}");
    assert!(p90(&cost) < p90(&turns));
}

#[test]
fn routers_that_tell_each_other_what_they_do_answer_sooner() {
    let workload = builtin(Builtin::NoSharing, 800);
    let alone = Setup { speed: 0.8, routers: 4, ..setup(4, Model::Reference, 1_000_000) };
    let sharing = Setup { sharing: Some(Duration::from_millis(50)), ..alone.clone() };
    let [alone, sharing] = [alone, sharing].map(|setup| outcome(&workload, &setup, COST));
    assert!(alone.utilization > 0.6, "the load is high: {}", alone.utilization);
    assert!(p90(&sharing) < 0.85 * p90(&alone), "{} and {} without", p90(&sharing), p90(&alone));
}

#[test]
fn every_router_gets_requests_and_knows_its_own_only() {
    // Each text twice, far apart. A lone router finds each second one, two of them at most what went through the same.
    let list: Vec<Ask> = (0..80).map(|at| (seconds(10 * at), at % 40, 2_000, 4)).collect();
    let one = setup(8, Model::Reference, 1_000_000);
    let two = Setup { routers: 2, ..one.clone() };
    let found = |setup: &Setup| {
        let outcome = outcome(&asks(&list), setup, COST);
        outcome.records.iter().filter(|record| record.cached_blocks > 0).count()
    };
    assert_eq!(found(&one), 40);
    assert!((15..36).contains(&found(&two)), "{} of 40", found(&two));
}

#[test]
fn where_caches_are_starved_the_engines_themselves_know_better() {
    let workload = builtin(Builtin::Conversation, 400);
    let assumed = setup(4, Model::Reference, 50_000);
    let exact = Setup { locality: Locality::Exact, ..assumed.clone() };
    let ratio = |setup: &Setup| hit_ratio(&outcome(&workload, setup, COST).records);
    let (assumed, exact) = (ratio(&assumed), ratio(&exact));
    let ample = ratio(&setup(4, Model::Reference, 1_000_000));
    assert!(ample > assumed + 0.05, "the cache is starved: {ample} with room, {assumed} without");
    assert!(exact >= assumed - 0.01, "{exact} by events, {assumed} by assumption");
}

#[test]
fn a_session_key_reaches_policies_that_go_by_it() {
    let workload = builtin(Builtin::Conversation, 200);
    let setup = Setup { session_keys: true, ..setup(4, Model::Reference, 1_000_000) };
    let hash = Contender::Policy(PolicyKind::CONSISTENT_HASH);
    let with = outcome(&workload, &setup, hash);
    let without = outcome(&workload, &Setup { session_keys: false, ..setup }, hash);
    let backends = |outcome: &Outcome| by_arrival(outcome).iter().map(|record| record.backend).collect::<Vec<_>>();
    assert_ne!(backends(&with), backends(&without));
}

#[test]
fn the_speed_for_a_utilization_gives_it() {
    let workload = builtin(Builtin::NoSharing, 400);
    for (target, locality) in [(0.3, Locality::Assumed), (0.7, Locality::Exact)] {
        let setup = Setup { locality, faults: faults(&["slow@0:0:5"]), ..setup(4, Model::Reference, 1_000_000) };
        let speed = speed_for(&workload, &setup, target, 1, &|_| ()).unwrap();
        let judged = Setup { speed, locality: Locality::Exact, faults: Vec::new(), ..setup };
        let reached = outcome(&workload, &judged, COST).utilization;
        assert!((reached / target - 1.0).abs() < 0.011, "{reached} instead of {target}");
    }
}

#[test]
fn a_utilization_out_of_reach_is_told() {
    let lone = asks(&[(Duration::ZERO, 1, 1_000, 4)]);
    let error = speed_for(&lone, &setup(1, Model::Reference, 100_000), 0.5, 1, &|_| ()).unwrap_err().to_string();
    assert!(error.contains("0.5 cannot be reached") && error.ends_with("use --speed, or more requests"), "{error}");
}

#[test]
fn the_utilization_of_a_closed_loop_is_that_of_its_whole_run() {
    // One client asks without a pause: 8,000 tokens are a second of prefill, ten tokens follow in a millisecond each.
    let turns = (0..5).map(|name| turn(Duration::ZERO, name, 8_000, 11)).collect();
    let lone = workload(vec![Session { start: Duration::ZERO, key: None, turns }]);
    let busy = |backends| outcome(&lone, &setup(backends, Model::Linear, 100_000), COST).utilization;
    assert!((busy(1) - 1.0 / 1.01).abs() < 1e-3, "{}", busy(1));
    assert!((busy(4) - 0.25 / 1.01).abs() < 1e-3, "{}", busy(4));
}
