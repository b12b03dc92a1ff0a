//! What holds of every run, whatever the contender, the fleet, the load and the faults.

use std::collections::HashMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::super::fault::FaultKind;
use super::super::run::run_to_nothing;
use super::*;
use crate::pool::{InFlightLimit, Limits};
use crate::testing::config;
use crate::time::Moment;

/// A backend of at most four, at a time within the workload.
fn any_fault() -> impl Strategy<Value = Fault> {
    let kind = prop_oneof![
        (0..2_usize, 0..40_u64).prop_map(|(backend, down)| FaultKind::Restart { backend, down: seconds(down) }),
        (0..2_usize, 0.2..8.0).prop_map(|(backend, factor)| FaultKind::Slow { backend, factor }),
        Just(FaultKind::Add),
    ];
    (0..30_000_u64, kind).prop_map(|(millis, kind)| Fault { at: Duration::from_millis(millis), kind })
}

/// From none to those by which requests wait most of the time.
fn any_limits() -> impl Strategy<Value = Limits> {
    let in_flight = prop_oneof![
        Just(InFlightLimit::Unlimited),
        Just(InFlightLimit::Auto),
        (1..20_u32).prop_map(|most| InFlightLimit::Requests(NonZeroU32::MIN.saturating_add(most))),
    ];
    let pending = prop::option::of((1..5_000_u64).prop_map(Duration::from_millis));
    (in_flight, pending).prop_map(|(in_flight, max_pending_prefill)| Limits { in_flight, max_pending_prefill })
}

prop_compose! {
    fn any_setup()(
        backends in 2..5_usize,
        model in prop::sample::select(&Model::ALL[..]),
        // From where a prompt may not fit to where nothing is evicted.
        kv_tokens in prop::sample::select(&[8_192_u32, 40_000, 1_000_000][..]),
        routers in 1..4_usize,
        share_ms in prop::sample::select(&[None, Some(20), Some(700)][..]),
        is_exact in any::<bool>(),
        session_keys in any::<bool>(),
        speed in 0.5..20.0_f64,
        limits in any_limits(),
        faults in prop::collection::vec(any_fault(), 0..5),
    ) -> Setup {
        Setup {
            routers,
            sharing: share_ms.map(Duration::from_millis),
            locality: if is_exact { Locality::Exact } else { Locality::Assumed },
            session_keys,
            speed,
            limits,
            faults,
            ..setup(backends, model, kv_tokens)
        }
    }
}

prop_compose! {
    /// A built-in workload that is open: the closed loop's blocks are not those of the engines here.
    fn any_work()(
        builtin in prop::sample::select(&Builtin::ALL[1..]), requests in 1..60_usize, seed in any::<u64>(),
    ) -> (Builtin, usize, u64) {
        (builtin, requests, seed)
    }
}

/// How many requests of each size there are: prompt and answer.
fn sizes(sizes: impl Iterator<Item = (Option<u32>, u32)>) -> HashMap<(Option<u32>, u32), u32> {
    sizes.fold(HashMap::new(), |mut counts, size| {
        *counts.entry(size).or_default() += 1;
        counts
    })
}

/// Nothing of a request that failed is counted but its answer's length.
fn check_record(record: &Record, setup: &Setup) {
    let adds = setup.faults.iter().filter(|fault| fault.kind == FaultKind::Add).count();
    assert!(record.backend < setup.backends + adds);
    assert!(record.cached_blocks <= record.blocks, "{record:?}");
    let Some(times) = record.times else {
        assert_eq!((record.blocks, record.cached_blocks, record.prefill_tokens), (0, 0, 0));
        return;
    };
    assert!(record.prefill_tokens > 0, "the last token of a prompt is always computed: {record:?}");
    assert!(0.0 < times.first_token && times.first_token <= times.end, "{record:?}");
    assert!(times.alone > 0.0, "{record:?}");
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn a_request_has_one_record_and_nothing_is_held_at_the_end(
        (builtin, requests, work_seed) in any_work(), setup in any_setup(), contender in prop::sample::select(&Contender::ALL[..]),
        seed in any::<u64>(),
    ) {
        let workload = builtin.generate(Some(requests), None, work_seed);
        let (outcome, held) = run_to_nothing(&workload, &setup, contender, seed);
        prop_assert_eq!((outcome.records.len(), held), (workload.requests(), 0));
        outcome.records.iter().for_each(|record| check_record(record, &setup));
        prop_assert!(outcome.records.iter().filter_map(ended).is_sorted_by(|left, right| *left <= right + 1e-6));

        // What failed has no prompt in its record, so that answers are compared alone where one did.
        let has_failed = outcome.records.iter().any(|record| record.times.is_none());
        let prompt = |tokens: u32| (!has_failed).then_some(tokens);
        let asked = workload.sessions.iter().flat_map(|session| &session.turns);
        let answered = outcome.records.iter().map(|record| {
            (prompt(record.prefill_tokens + record.cached_blocks * BLOCK_TOKENS.get()), record.output_tokens)
        });
        prop_assert_eq!(sizes(answered), sizes(asked.map(|turn| (prompt(turn.prompt_tokens), turn.output_tokens))));
    }

    #[test]
    fn a_seed_gives_the_same_run_again(
        (builtin, requests, work_seed) in any_work(), setup in any_setup(), contender in prop::sample::select(&Contender::ALL[..]),
        seed in any::<u64>(),
    ) {
        let workload = builtin.generate(Some(requests), None, work_seed);
        let [left, right] = [(); 2].map(|()| run(&workload, &setup, contender, seed, &|_| ()));
        prop_assert_eq!(left, right);
    }
}

/// When a request that was served was done, in seconds.
fn ended(record: &Record) -> Option<f64> {
    Some(record.arrived.since(Moment::ORIGIN).as_secs_f64() + record.times?.end)
}

#[test]
fn a_seed_decides_ties_and_another_decides_them_otherwise() {
    let workload = builtin(Builtin::NoSharing, 60);
    let setup = setup(4, Model::Reference, 1_000_000);
    let chosen = |seed| {
        let outcome = run(&workload, &setup, Contender::Policy(PolicyKind::Random), seed, &|_| ());
        by_arrival(&outcome).iter().map(|record| record.backend).collect::<Vec<_>>()
    };
    assert_eq!(chosen(1), chosen(1));
    assert_ne!(chosen(1), chosen(2));
}

#[test]
fn progress_is_told_and_only_grows() {
    let told = parking_lot::Mutex::new(Vec::new());
    let workload = builtin(Builtin::NoSharing, 600);
    run(&workload, &setup(2, Model::Linear, 1_000_000), COST, 1, &|done| told.lock().push(done));
    let told = told.into_inner();
    assert!(told.len() == 2 && told.is_sorted() && told.iter().all(|&done| done <= 600), "{told:?}");
}
