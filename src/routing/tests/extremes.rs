use std::num::{NonZeroU32, NonZeroU64};

use proptest::prelude::*;

use super::*;
use crate::pool::{CostModel, OtherRouters, Polled, RateSums};

const KINDS: [PolicyKind; 8] = [
    PolicyKind::Cost,
    PolicyKind::LOCALITY_FIRST,
    PolicyKind::PrefixAffinity,
    PolicyKind::CONSISTENT_HASH,
    PolicyKind::LeastRequest,
    PolicyKind::PowerOfTwo,
    PolicyKind::RoundRobin,
    PolicyKind::Random,
];

fn extreme() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
    ]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), Just(0), Just(1), Just(u32::MAX)]
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let load = (extreme(), extreme(), any::<u64>(), count(), count(), any::<u64>(), extreme());
    let engine = (any::<u64>(), count(), count(), prop::option::of(extreme()), count());
    (load, count(), extreme(), extreme(), count(), engine, any::<u64>()).prop_map(
        |(
            (pending_work, head_work, nanos, decoding, in_flight, prompt_tokens, recent),
            matched_tokens,
            rate,
            others,
            others_decoding,
            engine,
            identity,
        )| {
            let head_for = Duration::from_nanos(nanos);
            let load = LoadView {
                pending_work,
                head_work,
                head_for,
                decoding,
                in_flight,
                prompt_tokens,
                recent,
                rate: RateSums::START,
            };
            let (capacity, running, waiting, kv_usage, max_running) = engine;
            let engine = EngineState {
                block_tokens: None,
                capacity_tokens: NonZeroU64::new(capacity),
                max_running: NonZeroU32::new(max_running),
                polled: Some(Polled { running, waiting, kv_usage, observed_at: crate::time::Moment::ORIGIN }),
            };
            Candidate {
                index: 0,
                identity,
                matched_tokens,
                load,
                rate,
                others: OtherRouters {
                    pending_work: others,
                    decoding: others_decoding,
                    in_flight: others_decoding,
                    prompt_tokens,
                },
                engine,
            }
        },
    )
}

fn model() -> impl Strategy<Value = CostModel> {
    let balance = (extreme(), extreme(), extreme());
    (extreme(), extreme(), extreme(), extreme(), extreme(), balance, extreme(), extreme(), extreme()).prop_map(
        |(context, price, per_decoding, limit, decode, balance, residence, near, share)| CostModel {
            work_per_context_token: context,
            prefill_price: price,
            prefill_price_per_decoding: per_decoding,
            prefill_price_decoding_limit: limit,
            decode_seconds_per_token: decode,
            decode_limit_behind: limit,
            balance_seconds: balance.0,
            balance_share: balance.1,
            balance_prior: balance.2,
            residence_seconds: residence,
            near_seconds: near,
            near_share: share,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_numbers_give_a_candidate_and_finite_costs(
        model in model(), factor in extreme(), mut candidates in prop::collection::vec(candidate(), 1..16),
        prompt_tokens in count(), turn in any::<u64>(), session_key in any::<Option<u64>>(), prefix_key in any::<Option<u64>>(),
    ) {
        for (position, candidate) in candidates.iter_mut().enumerate() {
            candidate.index = position * 3;
        }
        let query = Query { prompt_tokens, turn, session_key, prefix_key, owner: None, may_be_deferred: false };
        let mut rng = fastrand::Rng::with_seed(turn);
        let factors = [PolicyKind::LocalityFirst { overload_factor: factor }, PolicyKind::ConsistentHash { overload_factor: factor }];
        for kind in KINDS.into_iter().chain(factors) {
            let policy = Policy { kind, cost: model, ..Policy::default() };
            let decision = choose(&policy, &query, &candidates, &mut rng).expect("there are candidates");
            let position = candidates.iter().position(|candidate| candidate.index == decision.index);
            prop_assert!(position.is_some(), "{} chose a stranger", kind.name());
            prop_assert!(decision.work.is_finite() && decision.work >= 0.0);
        }
        for terms in score(&model, &query, &candidates) {
            prop_assert!(terms.total().is_finite(), "{:?}", terms);
            prop_assert!(terms.named().iter().all(|&(_, seconds)| seconds >= 0.0), "{:?}", terms);
        }
    }
}

#[test]
fn without_candidates_nothing_is_chosen() {
    let mut rng = fastrand::Rng::with_seed(0);
    for kind in KINDS {
        for key in [None, Some(1)] {
            let query = Query { session_key: key, prefix_key: key, ..query(10) };
            assert_eq!(choose(&policy(kind), &query, &[], &mut rng), None, "{}", kind.name());
        }
    }
}

#[test]
fn more_candidates_than_fit_inline_are_candidates_all_the_same() {
    let fleet: Vec<_> = (0..3 * INLINE).map(idle).collect();
    for kind in [PolicyKind::Cost, PolicyKind::LeastRequest, PolicyKind::RoundRobin] {
        let chosen = spread(&policy(kind), &fleet, 0..3 * INLINE as u64 * 4);
        assert!(chosen.iter().all(|&count| (2..=6).contains(&count)), "{}: {chosen:?}", kind.name());
    }
}
