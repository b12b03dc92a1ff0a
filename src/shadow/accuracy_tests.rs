//! How far sums are off that are made of marks, against a model that knows every block.

use std::collections::VecDeque;
use std::time::Duration;

use super::model::{IN_FLIGHT, NaiveShadow};
use super::tests::{BLOCK_TOKENS, candidate, chain};
use super::*;
use crate::locality::Tenant;

const BACKENDS: usize = 4;

/// Conversations that grow turn by turn, each behind one of some system prompts; and how much a backend holds.
struct Workload {
    name: &'static str,
    system_blocks: &'static [usize],
    /// Most blocks that a turn adds.
    turn_blocks: usize,
    conversations: usize,
    requests: usize,
    capacity_blocks: u32,
    /// Milliseconds between requests, on average.
    millis: u64,
}

struct Conversation {
    number: u64,
    system: usize,
    own_blocks: usize,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "short",
        system_blocks: &[3, 6, 10, 17],
        turn_blocks: 8,
        conversations: 200,
        requests: 6_000,
        capacity_blocks: 2_500,
        millis: 30,
    },
    Workload {
        name: "one system prompt",
        system_blocks: &[70],
        turn_blocks: 8,
        conversations: 200,
        requests: 3_000,
        capacity_blocks: 2_500,
        millis: 30,
    },
    Workload {
        name: "medium",
        system_blocks: &[21, 75, 130],
        turn_blocks: 60,
        conversations: 60,
        requests: 2_000,
        capacity_blocks: 6_000,
        millis: 250,
    },
    Workload {
        name: "long",
        system_blocks: &[100, 333, 1_001],
        turn_blocks: 600,
        conversations: 24,
        requests: 600,
        capacity_blocks: 24_000,
        millis: 5_000,
    },
];

/// Replays the workload in a shadow and in its model: what each policy got in both.
fn compare(workload: &Workload) -> Vec<(ShadowPolicy, Totals, Totals)> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut candidates: Vec<_> = (0..BACKENDS).map(|index| candidate(index, 8_000.0)).collect();
    let backend = |candidate: &Candidate| ShadowBackend {
        identity: candidate.identity,
        tenant: Tenant { slot: candidate.index as u32, generation: 1 },
        capacity_blocks: workload.capacity_blocks,
    };
    let shadow = Shadow::new(Arc::new(ShadowMemory::new(16 << 20, 1)));
    shadow.set_backends(&candidates.iter().map(backend).collect::<Vec<_>>(), PolicyKind::RoundRobin);
    let mut model = NaiveShadow::new(BACKENDS, workload.capacity_blocks);
    let (mut conversations, mut in_flight, mut now) = (Vec::new(), VecDeque::new(), Moment::ORIGIN);
    for request in 0..workload.requests {
        if conversations.len() < workload.conversations {
            let system = rng.usize(..workload.system_blocks.len());
            conversations.push(Conversation { number: request as u64, system, own_blocks: 0 });
        }
        let at = rng.usize(..conversations.len());
        let conversation = &mut conversations[at];
        conversation.own_blocks += rng.usize(1..=workload.turn_blocks);
        let system = conversation.system;
        let shared = workload.system_blocks[system];
        let blocks = chain(system as u64 + 1, shared, conversation.number, conversation.own_blocks);
        let tokens = blocks.len() as u64 * BLOCK_TOKENS + 5;
        for (backend, candidate) in candidates.iter_mut().enumerate() {
            candidate.matched_tokens = (model.matched_blocks(backend, &blocks) as u64 * BLOCK_TOKENS) as u32;
        }
        let replay = Replay {
            prompts: &[Prompt { blocks: &blocks, tokens, tokens_per_block: BLOCK_TOKENS as f64 }],
            query: Query { prompt_tokens: tokens as u32, ..Query::default() },
            candidates: &candidates,
            chosen: rng.usize(..BACKENDS),
            cost: CostModel { work_per_context_token: 2.2e-5, ..CostModel::default() },
        };
        now = now + Duration::from_millis(rng.u64(..2 * workload.millis));
        in_flight.push_back(shadow.replay(&replay, now));
        if in_flight.len() > IN_FLIGHT {
            in_flight.pop_front();
        }
        model.replay(&replay, now);
        if rng.u8(..8) == 0 {
            conversations.swap_remove(at);
        }
    }
    shadow.totals().into_iter().zip(model.totals).map(|((policy, found), expected)| (policy, found, expected)).collect()
}

/// The sums of cached tokens may be off by this much, in percent.
const CACHED_OFF: f64 = 2.0;

/// Those of the TTFT by this much.
const TTFT_OFF: f64 = 4.0;

/// That of `cost` by this much of what `round_robin` has: where nearly all is cached, a little more or less of it is much of
/// what is left.
const COST_TTFT_OFF: f64 = 8.0;

#[test]
fn sums_are_near_those_of_all_blocks() {
    for workload in &WORKLOADS {
        let all = compare(workload);
        let round_robin = all[ShadowPolicy::RoundRobin as usize].2.ttft_seconds;
        for (policy, found, expected) in all {
            assert_eq!((found.requests, found.prompt_tokens), (expected.requests, expected.prompt_tokens));
            let cached = 100.0 * (found.cached_tokens as f64 / expected.cached_tokens as f64 - 1.0);
            let is_cost = policy == ShadowPolicy::Cost;
            let (base, most) = if is_cost { (round_robin, COST_TTFT_OFF) } else { (expected.ttft_seconds, TTFT_OFF) };
            let ttft = 100.0 * (found.ttft_seconds - expected.ttft_seconds) / base;
            let share = expected.cached_tokens as f64 / expected.prompt_tokens as f64;
            let off =
                format!("{}, {}: cached {cached:+.2} % of {share:.2}, TTFT {ttft:+.2} %", workload.name, policy.name());
            println!("{off}");
            assert!(cached.abs() < CACHED_OFF && ttft.abs() < most, "{off}");
        }
    }
}
