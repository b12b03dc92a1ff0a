use std::num::{NonZeroU32, NonZeroU64};

use proptest::prelude::*;

use super::super::cost::Means;
use super::*;
use crate::pool::{CostModel, OtherRouters, Polled, RateSums};
use crate::time::Moment;

fn candidate() -> impl Strategy<Value = Candidate> {
    let load = (0.0..200_000.0, 0.0..1.0, 0_u64..10_000, 0_u32..200, 0_u32..20, 0_u64..2_000_000, 0.0..500.0);
    let engine = (1_u64..2_000_000, 0_u32..300, 0_u32..50, 0.0..=1.0, 1_u32..300);
    (load, 0_u32..20_000, 2_000.0..40_000.0, 0.0..50_000.0, 0_u32..50, prop::option::of(engine)).prop_map(
        |(
            (pending, head, millis, decoding, waiting, prompt_tokens, recent),
            matched_tokens,
            rate,
            others_pending_work,
            others_decoding,
            engine,
        )| {
            let others = OtherRouters {
                pending_work: others_pending_work,
                decoding: others_decoding,
                in_flight: others_decoding,
                prompt_tokens: 0,
            };
            let load = LoadView {
                pending_work: pending,
                head_work: pending * head,
                head_for: Duration::from_millis(millis),
                decoding,
                in_flight: decoding + waiting,
                prompt_tokens,
                recent,
                rate: RateSums::START,
            };
            let engine =
                engine.map_or(EngineState::default(), |(capacity, running, waiting, usage, slots)| EngineState {
                    block_tokens: NonZeroU32::new(16),
                    capacity_tokens: NonZeroU64::new(capacity),
                    max_running: NonZeroU32::new(slots),
                    polled: Some(Polled {
                        running,
                        waiting,
                        kv_usage: Some(usage),
                        observed_at: crate::time::Moment::ORIGIN,
                    }),
                });
            Candidate { matched_tokens, load, rate, others, engine, ..idle(0) }
        },
    )
}

fn fleet() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec(candidate(), 1..12).prop_map(|mut candidates| {
        for (index, candidate) in candidates.iter_mut().enumerate() {
            (candidate.index, candidate.identity) = (index, index as u64);
        }
        candidates
    })
}

fn model() -> impl Strategy<Value = CostModel> {
    prop_oneof![Just(0.0), Just(2.2e-5)]
        .prop_map(|work_per_context_token| CostModel { work_per_context_token, ..CostModel::default() })
}

fn chosen(model: CostModel, query: &Query, candidates: &[Candidate], seed: u64) -> Decision {
    let policy = Policy { cost: model, ..policy(PolicyKind::Cost) };
    choose(&policy, query, candidates, &mut fastrand::Rng::with_seed(seed)).expect("there are candidates")
}

fn terms(model: &CostModel, query: &Query, candidate: &Candidate, mean: f64) -> CostTerms {
    CostTerms::of(
        model,
        query,
        candidate,
        Means {
            neighbours: mean,
            recent: 0.0,
            rate: RATE,
            residence: 10.0,
            in_flight: 1.0,
            least_context: 0.0,
            is_behind: false,
        },
    )
}

/// How much above the lowest cost still counts as equal.
fn margin(costs: &[CostTerms]) -> f64 {
    let lowest = costs.iter().map(CostTerms::total).fold(f64::INFINITY, f64::min);
    (0.01 * lowest).max(0.005) + 1e-9 * lowest
}

#[test]
fn a_fuller_engine_is_not_cheaper_when_its_queue_exceeds_its_cache() {
    let polled = |waiting, kv_usage| {
        let polled = Polled { running: 0, waiting, kv_usage: Some(kv_usage), observed_at: Moment::ORIGIN };
        let capacity_tokens = NonZeroU64::new(600_000);
        let engine = EngineState { capacity_tokens, polled: Some(polled), ..EngineState::default() };
        Candidate { engine, ..loaded(0, 0.0, 0) }
    };
    let cost = |candidate| terms(&CostModel::default(), &query(21_000), &candidate, 1.0).total();
    assert!(cost(polled(29, 1.0)) >= cost(polled(28, 0.0)), "more is waiting, and more is in use");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// (1) The extra predicted TTFT accepted for a warmer backend is at most 7 times the prefill seconds it saves; no
    /// saving, no detour. Backends that decode differently, or got more requests lately, may differ by what that costs as
    /// well: the price of prefill and the interference rise with decoding.
    #[test]
    fn a_detour_is_worth_at_most_seven_times_its_saving(
        model in model(), mut candidates in fleet(), prompt in 1_u32..30_000, same_load in prop::option::of(0_u32..200), seed in any::<u64>(),
    ) {
        if let Some(decoding) = same_load {
            for candidate in &mut candidates {
                let load = &mut candidate.load;
                (load.decoding, load.in_flight, load.recent) = (decoding, decoding + 5, 100.0);
                load.prompt_tokens = u64::from(decoding) * 1_000;
                (candidate.others.decoding, candidate.others.in_flight) = (0, 0);
            }
        }
        let query = query(prompt);
        let costs = score(&model, &query, &candidates);
        let decision = chosen(model, &query, &candidates, seed);
        let here = costs[decision.index];
        for there in &costs {
            let saving = there.prefill - here.prefill;
            let detour = here.predicted_ttft() - there.predicted_ttft();
            let price_per_second = |terms: &CostTerms| terms.price / terms.prefill;
            let interference = if same_load.is_some() { 0.0 } else {
                (price_per_second(there) - price_per_second(&here)).max(0.0) * here.prefill
                    + (there.decode - here.decode).max(0.0)
            };
            let relief = interference + (there.balance - here.balance).max(0.0);
            prop_assert!(detour <= 7.0 * saving.max(0.0) + relief + margin(&costs), "detour {} for a saving of {}", detour, saving);
        }
    }

    /// (2) With no hits anywhere, equal rates and equal shares of decoding and of late requests it picks the shortest
    /// queue.
    #[test]
    fn without_hits_the_shortest_queue_is_picked(
        model in model(), queues in prop::collection::vec(0.0..200_000.0, 1..12), decoding in 0_u32..100, prompt in 1_u32..30_000, seed in any::<u64>(),
    ) {
        let candidates: Vec<_> = queues.iter().enumerate().map(|(index, &queue)| loaded(index, queue, decoding)).collect();
        let costs = score(&model, &query(prompt), &candidates);
        let decision = chosen(model, &query(prompt), &candidates, seed);
        let shortest = costs.iter().map(|terms| terms.queue).fold(f64::INFINITY, f64::min);
        prop_assert!(costs[decision.index].queue <= shortest + margin(&costs));
        prop_assert!(!decision.is_spill, "where nobody holds anything there is nothing to spill");
    }

    /// (3) More cached tokens never raise a cost; more pending work, decoding, waiting or KV usage never lower it.
    #[test]
    fn costs_fall_with_cached_tokens_and_rise_with_load(
        model in model(), before in candidate(), prompt in 1_u32..30_000, more in 1_u32..10_000, mean in 1.0..100.0,
    ) {
        let query = query(prompt);
        let cost = |candidate: &Candidate| terms(&model, &query, candidate, mean).total();
        let (base, slack) = (cost(&before), 1e-9 * cost(&before));
        let warmer = Candidate { matched_tokens: before.matched_tokens + more, ..before };
        prop_assert!(cost(&warmer) <= base + slack);
        let mut busier = [before; 7];
        busier[0].load.pending_work += f64::from(more);
        busier[1].others.pending_work += f64::from(more);
        busier[2].load.decoding += more;
        busier[2].load.in_flight += more;
        if let Some(polled) = &mut busier[3].engine.polled {
            polled.waiting += more;
            polled.kv_usage = Some(1.0);
        }
        busier[4].load.prompt_tokens += u64::from(more);
        busier[5].load.recent += f64::from(more);
        busier[6].load.in_flight += more;
        for candidate in busier {
            prop_assert!(cost(&candidate) >= base - slack, "{:?} costs less than {:?}", candidate, before);
        }
    }

    /// (6) What is polled changes the memory and slot terms only.
    #[test]
    fn a_poll_changes_the_memory_and_slot_terms_only(model in model(), candidates in fleet(), prompt in 1_u32..30_000) {
        let unpolled: Vec<_> = candidates
            .iter()
            .map(|&candidate| Candidate { engine: EngineState { polled: None, ..candidate.engine }, ..candidate })
            .collect();
        let query = query(prompt);
        for (with, without) in score(&model, &query, &candidates).iter().zip(score(&model, &query, &unpolled)) {
            prop_assert_eq!(CostTerms { memory: 0.0, slots: 0.0, ..*with }, CostTerms { memory: 0.0, slots: 0.0, ..without });
            prop_assert_eq!(without.memory, 0.0);
        }
    }

    /// The choice is near the lowest cost, and the decision describes it.
    #[test]
    fn the_decision_is_near_the_lowest_cost_and_describes_itself(
        model in model(), candidates in fleet(), prompt in 0_u32..30_000, seed in any::<u64>(),
    ) {
        let query = query(prompt);
        let costs = score(&model, &query, &candidates);
        let decision = chosen(model, &query, &candidates, seed);
        let lowest = costs.iter().map(CostTerms::total).fold(f64::INFINITY, f64::min);
        prop_assert!(decision.cost.total() <= lowest + margin(&costs));
        prop_assert_eq!(decision.cost, costs[decision.index], "the same terms as everyone's");
        prop_assert_eq!(decision.matched_tokens + decision.uncached_tokens, prompt);
        prop_assert!(prompt == 0 || decision.uncached_tokens >= 1, "the last token is always computed");
        prop_assert_eq!(decision.work, work(decision.uncached_tokens, prompt, &model));
        let warmest = candidates.iter().map(|candidate| candidate.matched_tokens).max().expect("some");
        prop_assert_eq!(decision.is_spill, candidates[decision.index].matched_tokens < warmest);
        for candidate in &candidates {
            let near = costs[candidate.index].total() <= lowest + margin(&costs) * 0.999;
            prop_assert!(!near || candidates[decision.index].load.in_flight <= candidate.load.in_flight);
        }
    }

    /// Work is that of the formula: it adds up over the parts of a prompt.
    #[test]
    fn work_adds_up_over_the_parts_of_a_prompt(model in model(), first in 0_u32..50_000, second in 0_u32..50_000) {
        let whole = work(first + second, first + second, &model);
        let parts = work(first, first, &model) + work(second, first + second, &model);
        prop_assert!((whole - parts).abs() <= 1e-6 * whole.max(1.0), "{} is not {}", whole, parts);
    }
}

#[test]
fn the_terms_are_those_of_the_formula() {
    let model = CostModel { work_per_context_token: 2.2e-5, ..CostModel::default() };
    let mut one = loaded(0, 16_000.0, 30);
    one.matched_tokens = 6_000;
    one.others = OtherRouters { pending_work: 800.0, decoding: 0, in_flight: 9, prompt_tokens: 50_000 };
    one.load = LoadView { prompt_tokens: 250_000, recent: 350.0, ..one.load };
    let candidates = [one, loaded(1, 0.0, 10)];
    let costs = score(&model, &query(8_000), &candidates);
    let w = 2_000.0 * (1.0 + 2.2e-5 * 14_000.0);
    let (q, d, f, mean) = (16_000.0 - 0.1 * RATE + 800.0, 30.0, 40.0, 25.0);
    // Pending are 1 s on average, and a prefill of 120/175 s is long.
    let means = Means {
        neighbours: mean,
        recent: 175.0,
        rate: RATE,
        residence: 60.0 * 20.5 / 175.0,
        in_flight: 20.5,
        least_context: 80_000.0,
        is_behind: true,
    };
    assert_eq!(Means::of(&query(8_000), &candidates), means);
    let (decode, balance) = (1.3e-5 * 80_000.0 + 0.3, 6.0 * (370.0 / 195.0 - 1.15));
    let expected = (q + w) / RATE * (1.0 + f / mean) + (4.0 + 0.05 * d) * w / RATE + decode + balance;
    assert!((costs[0].total() / expected - 1.0).abs() < 1e-12, "{:?} is not {expected}", costs[0]);
    let named: f64 = costs[0].named().iter().map(|(_, seconds)| seconds).sum();
    assert!((named / expected - 1.0).abs() < 1e-12, "the named terms are all terms");
}

#[test]
fn an_engine_without_room_costs_the_wait_for_it() {
    let model = CostModel::default();
    let engine = |kv_usage, running, waiting| EngineState {
        block_tokens: None,
        capacity_tokens: NonZeroU64::new(100_000),
        max_running: NonZeroU32::new(10),
        polled: Some(Polled { running, waiting, kv_usage: Some(kv_usage), observed_at: crate::time::Moment::ORIGIN }),
    };
    let waits = |kv_usage, running, waiting| {
        let candidate = Candidate { engine: engine(kv_usage, running, waiting), ..idle(0) };
        let terms = terms(&model, &query(10_000), &candidate, 1.0);
        (terms.memory, terms.slots)
    };
    assert_eq!(waits(0.9, 9, 0), (0.0, 0.0), "room for 10,000 tokens and one more request");
    assert_eq!(waits(1.0, 10, 0), (1.0, 1.0), "a tenth of the blocks and one place in ten, of 10 s");
    assert_eq!(waits(1.0, 10, 3), (4.0, 4.0), "behind the three that wait");
    let own = Candidate { engine: EngineState { polled: None, ..engine(1.0, 0, 0) }, ..with_in_flight(0, 11) };
    assert_eq!(terms(&model, &query(10_000), &own, 1.0).slots, 2.0, "own requests count without a poll");
}
