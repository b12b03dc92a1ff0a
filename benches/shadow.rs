//! What a shadow adds to a decision: one replay under all its policies.
//!
//! Run with `cargo bench --bench shadow`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use warmgate::locality::Tenant;
use warmgate::pool::{CostModel, EngineState, LoadView, OtherRouters, PolicyKind};
use warmgate::prefix::BlockHash;
use warmgate::routing::{Candidate, Query};
use warmgate::shadow::{Prompt, Replay, Shadow, ShadowBackend, ShadowMemory};
use warmgate::time::Moment;

/// Tokens of a block.
const BLOCK_TOKENS: f64 = 16.0;

/// What is replayed, on how many backends.
struct Traffic {
    blocks: usize,
    /// Leading blocks that all prompts share.
    shared_blocks: usize,
    conversations: u64,
    backends: usize,
}

/// Short prompts that are new more often than not, on caches that are full; and conversations that come again and again, so
/// that most of each is held somewhere.
const TRAFFIC: [Traffic; 4] = [
    Traffic { blocks: 32, shared_blocks: 8, conversations: 65_536, backends: 8 },
    Traffic { blocks: 512, shared_blocks: 128, conversations: 32, backends: 8 },
    Traffic { blocks: 8_192, shared_blocks: 128, conversations: 32, backends: 8 },
    Traffic { blocks: 8_192, shared_blocks: 128, conversations: 256, backends: 64 },
];

/// Chained hashes of a prompt.
fn prompt(conversation: u64, traffic: &Traffic) -> Vec<BlockHash> {
    let next = |parent: &mut u64, at: usize| {
        let label = if at < traffic.shared_blocks { 0 } else { conversation };
        *parent = (*parent ^ label).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 1;
        Some(BlockHash(*parent))
    };
    (0..traffic.blocks).scan(1, next).collect()
}

fn candidate(index: usize) -> Candidate {
    Candidate {
        index,
        identity: index as u64,
        matched_tokens: 0,
        load: LoadView::IDLE,
        rate: 8_000.0,
        others: OtherRouters::default(),
        engine: EngineState::default(),
    }
}

fn replays(c: &mut Criterion) {
    replays_under(c, "replay", PolicyKind::Cost);
    replays_under(c, "replay_and_simulate_cost", PolicyKind::RoundRobin);
}

fn replays_under(c: &mut Criterion, name: &str, in_force: PolicyKind) {
    let mut group = c.benchmark_group(name);
    for traffic in &TRAFFIC {
        let &Traffic { blocks, conversations, backends, .. } = traffic;
        let shadow = Shadow::new(Arc::new(ShadowMemory::new(64 << 20, 42)));
        let candidates: Vec<Candidate> = (0..backends).map(candidate).collect();
        let backend = |index: usize| ShadowBackend {
            identity: index as u64,
            tenant: Tenant { slot: index as u32, generation: 1 },
            capacity_blocks: 100_000,
        };
        shadow.set_backends(&(0..backends).map(backend).collect::<Vec<_>>(), in_force);
        let prompts: Vec<_> = (0..conversations).map(|conversation| prompt(conversation, traffic)).collect();
        let mut turn = 0;
        // Copied anew each time, as a request's hashes have just been written when it is decided.
        let mut next = || {
            turn += 1;
            (turn, prompts[turn * 7 % prompts.len()].clone())
        };
        let replay = |(turn, chain): (usize, Vec<BlockHash>)| {
            let tokens = blocks as f64 * BLOCK_TOKENS;
            let prompt = Prompt { blocks: &chain, tokens: tokens as u64, tokens_per_block: BLOCK_TOKENS };
            let query = Query { prompt_tokens: tokens as u32, ..Query::default() };
            let replay = Replay {
                prompts: &[prompt],
                query,
                candidates: &candidates,
                chosen: turn % candidates.len(),
                cost: CostModel::default(),
            };
            let in_flight = shadow.replay(black_box(&replay), Moment::at(Duration::from_millis(100 * turn as u64)));
            (chain, in_flight)
        };
        (0..conversations.max(4_000)).for_each(|_| drop(replay(next())));
        group.bench_function(BenchmarkId::new(format!("{blocks}_blocks"), backends), |b| {
            b.iter_batched(&mut next, replay, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, replays);
criterion_main!(benches);
