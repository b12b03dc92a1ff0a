use super::*;

fn index(policy: &Policy, query: &Query, candidates: &[Candidate]) -> usize {
    choose(policy, query, candidates, &mut fastrand::Rng::with_seed(3)).expect("there are candidates").index
}

fn range(counts: &[u32]) -> (u32, u32) {
    (counts.iter().copied().min().expect("some"), counts.iter().copied().max().expect("some"))
}

#[test]
fn round_robin_gives_each_its_share_to_within_one() {
    for count in 1..9 {
        let fleet: Vec<_> = (0..count).map(|index| with_in_flight(index, index as u32)).collect();
        for turns in [1, 7, 100] {
            let (least, most) = range(&spread(&policy(PolicyKind::RoundRobin), &fleet, 0..turns));
            assert!(most - least <= 1, "{count} candidates, {turns} turns: {least} to {most}");
        }
    }
}

#[test]
fn ties_go_round_evenly_also_when_only_some_turns_are_ties() {
    for kind in [PolicyKind::Cost, PolicyKind::LeastRequest, PolicyKind::LOCALITY_FIRST] {
        for count in [2, 3, 4, 8] {
            let fleet: Vec<_> = (0..count).map(idle).collect();
            for step in [1, 2, 3, 4] {
                let (least, most) = range(&spread(&policy(kind), &fleet, (0..1_200).step_by(step)));
                assert!(most - least <= 8, "{}, {count} candidates, every {step}: {least} to {most}", kind.name());
            }
        }
    }
}

#[test]
fn near_costs_count_as_equal_and_the_least_in_flight_wins() {
    let mut fleet = [loaded(0, 0.0, 0), loaded(1, 0.0, 0), loaded(2, 0.0, 0)];
    fleet[0].load.in_flight = 3;
    fleet[1].load.pending_work = 24.0; // 3 ms
    fleet[2].load.pending_work = 8_000.0;
    assert_eq!(index(&policy(PolicyKind::Cost), &query(100), &fleet), 1);
}

#[test]
fn cost_takes_the_warm_backend_until_its_queue_is_too_long() {
    let cost = policy(PolicyKind::Cost);
    let warm = |queued: f64| {
        let load = LoadView { pending_work: queued, in_flight: 1, ..LoadView::IDLE };
        [Candidate { matched_tokens: 7_000, load, ..idle(0) }, with_in_flight(1, 1)]
    };
    // Prefill of 7,000 tokens saved, 0.875 s: worth 6 times that, where a second of waiting counts as two.
    assert_eq!(index(&cost, &query(8_000), &warm(20_500.0)), 0);
    assert_eq!(index(&cost, &query(8_000), &warm(21_500.0)), 1);
    let spilled = choose(&cost, &query(8_000), &warm(21_500.0), &mut fastrand::Rng::with_seed(0)).expect("some");
    assert!(spilled.is_spill);
    assert_eq!((spilled.matched_tokens, spilled.uncached_tokens), (0, 8_000));
}

#[test]
fn cost_moves_a_small_prefix_from_a_backend_with_most_of_the_traffic() {
    let fleet = |recent: [f64; 2]| {
        recent.map(|recent| LoadView { recent, ..LoadView::IDLE }).map(|load| Candidate { load, ..idle(0) })
    };
    let chosen_with = |in_flight, tokens, recent| {
        let [mut warm, mut other] = fleet(recent);
        (warm.load.in_flight, other.load.in_flight) = (in_flight, in_flight);
        let fleet = [Candidate { matched_tokens: tokens, ..warm }, Candidate { index: 1, identity: 1, ..other }];
        index(&policy(PolicyKind::Cost), &query(tokens + 100), &fleet)
    };
    let chosen = |tokens, recent| chosen_with(2, tokens, recent);
    assert_eq!(chosen(1_000, [800.0, 600.0]), 0, "within a fair share");
    assert_eq!(chosen_with(0, 1_000, [30.0, 0.0]), 0, "a lone conversation keeps its cache");
    assert_eq!(chosen(1_000, [1_000.0, 400.0]), 1, "0.6 s of prefill for a share of 1.4 times the mean");
    assert_eq!(chosen(8_000, [1_000.0, 400.0]), 0, "5 s of prefill are too much for that");
    assert_eq!(chosen(1_000, [3.0, 0.0]), 0, "three requests say nothing about shares");
}

#[test]
fn locality_first_takes_the_warmest_until_it_is_overloaded() {
    let policy = policy(PolicyKind::LOCALITY_FIRST);
    let fleet = |warm: u32, others: u32| {
        let warm = Candidate { matched_tokens: 500, ..with_in_flight(0, warm) };
        [warm, with_in_flight(1, others), with_in_flight(2, others + 1), with_in_flight(3, others + 1)]
    };
    assert_eq!(index(&policy, &query(1_000), &fleet(2, 0)), 0, "with next to nothing in flight nobody is overloaded");
    assert_eq!(index(&policy, &query(1_000), &fleet(10, 3)), 0, "10 is not twice the mean of 5.25");
    assert_eq!(index(&policy, &query(1_000), &fleet(20, 3)), 1, "20 is more than twice the mean of 7.75");
    let nobody_warm = [with_in_flight(0, 5), with_in_flight(1, 4), with_in_flight(2, 5)];
    assert_eq!(index(&policy, &query(1_000), &nobody_warm), 1, "without locality it is load that counts");
}

#[test]
fn least_request_takes_the_least_in_flight() {
    let fleet = [with_in_flight(0, 3), with_in_flight(1, 1), with_in_flight(2, 2)];
    assert_eq!(spread(&policy(PolicyKind::LeastRequest), &fleet, 0..20), [0, 20, 0]);
}

#[test]
fn power_of_two_never_takes_the_worst_and_random_takes_all() {
    let fleet = [with_in_flight(0, 3), with_in_flight(1, 1), with_in_flight(2, 2)];
    let two = spread(&policy(PolicyKind::PowerOfTwo), &fleet, 0..3_000);
    assert_eq!(two[0], 0, "whatever it is paired with is better");
    assert!((1_900..=2_100).contains(&two[1]), "the best is in two of three pairs: {two:?}");
    let (least, most) = range(&spread(&policy(PolicyKind::Random), &fleet, 0..3_000));
    assert!(least > 900 && most < 1_100, "{least} to {most}");
    assert_eq!(spread(&policy(PolicyKind::PowerOfTwo), &fleet[..1], 0..3), [3]);
}

#[test]
fn hashing_policies_keep_a_key_where_it_is_and_move_only_keys_of_the_one_that_left() {
    let fleet: Vec<_> = (0..8).map(idle).collect();
    let rest: Vec<_> = fleet.iter().copied().filter(|candidate| candidate.index != 5).collect();
    for kind in [PolicyKind::PrefixAffinity, PolicyKind::CONSISTENT_HASH] {
        let mut counts = vec![0; 8];
        for key in 0..4_000 {
            let query = Query { prefix_key: Some(key), turn: key, ..query(100) };
            let before = index(&policy(kind), &query, &fleet);
            counts[before] += 1;
            let after = index(&policy(kind), &query, &rest);
            assert!(after == before || before == 5, "{} moved key {key} from {before} to {after}", kind.name());
        }
        let (least, most) = range(&counts);
        assert!(least > 400 && most < 600, "{} spreads keys: {counts:?}", kind.name());
    }
}

#[test]
fn prefix_affinity_ignores_load_and_consistent_hash_is_bounded_by_it() {
    let mut fleet: Vec<_> = (0..4).map(idle).collect();
    let query = Query { prefix_key: Some(7), ..query(100) };
    let (affine, bounded) = (policy(PolicyKind::PrefixAffinity), policy(PolicyKind::CONSISTENT_HASH));
    let home = index(&affine, &query, &fleet);
    assert_eq!(index(&bounded, &query, &fleet), home);
    fleet[home].load.in_flight = 8;
    assert_eq!(index(&affine, &query, &fleet), home);
    assert_ne!(index(&bounded, &query, &fleet), home, "more than 1.25 times its share");
    for candidate in &mut fleet {
        candidate.load.in_flight = 8;
    }
    assert_eq!(index(&bounded, &query, &fleet), home, "its share, when all have as much");
}

#[test]
fn a_session_has_precedence_in_consistent_hash() {
    let fleet: Vec<_> = (0..8).map(idle).collect();
    let bounded = policy(PolicyKind::CONSISTENT_HASH);
    let home = |session_key, prefix_key| index(&bounded, &Query { session_key, prefix_key, ..query(100) }, &fleet);
    for prefix in 0..50 {
        assert_eq!(home(Some(3), Some(prefix)), home(Some(3), None));
    }
}

#[test]
fn a_session_keeps_its_place_among_equals_in_cost_while_nothing_is_cached() {
    let cost = policy(PolicyKind::Cost);
    let fleet: Vec<_> = (0..8).map(idle).collect();
    let in_session = |key, turn| Query { session_key: Some(key), turn, ..query(100) };
    let mut counts = vec![0; 8];
    for key in 0..4_000 {
        let home = index(&cost, &in_session(key, key), &fleet);
        counts[home] += 1;
        assert!((0..3).all(|turn| index(&cost, &in_session(key, turn), &fleet) == home), "the turn moved key {key}");
        let mut busy = fleet.clone();
        busy[home].load.in_flight = 1;
        assert_ne!(index(&cost, &in_session(key, 0), &busy), home, "less in flight counts more than the session");
    }
    let (least, most) = range(&counts);
    assert!(least > 400 && most < 600, "sessions are spread: {counts:?}");

    let warm: Vec<_> = fleet.iter().map(|candidate| Candidate { matched_tokens: 16, ..*candidate }).collect();
    let places: std::collections::BTreeSet<_> = (0..50).map(|turn| index(&cost, &in_session(1, turn), &warm)).collect();
    assert_eq!(places.len(), 8, "where all hold the same, they take turns");
}

#[test]
fn hashing_policies_go_by_load_without_a_key() {
    let fleet = [with_in_flight(0, 3), with_in_flight(1, 1), with_in_flight(2, 2)];
    for kind in [PolicyKind::PrefixAffinity, PolicyKind::CONSISTENT_HASH] {
        assert_eq!(index(&policy(kind), &query(100), &fleet), 1, "{}", kind.name());
    }
}
