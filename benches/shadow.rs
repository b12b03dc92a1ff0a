//! What a shadow adds to a decision: one replay under all its policies.
//!
//! Run with `cargo bench --bench shadow`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use warmgate::locality::LocalityIndex;
use warmgate::locality::Tenant;
use warmgate::pool::{CostModel, EngineState, LoadView, OtherRouters};
use warmgate::prefix::BlockHash;
use warmgate::routing::{Candidate, Query};
use warmgate::shadow::{Prompt, Replay, Shadow, ShadowBackend};
use warmgate::time::Moment;

/// Tokens of a block.
const BLOCK_TOKENS: f64 = 16.0;

/// Chained hashes of a prompt: 128 blocks that all share, then the conversation's own.
fn prompt(conversation: u64, blocks: usize) -> Vec<BlockHash> {
    let next = |parent: &mut u64, at: usize| {
        let label = if at < 128 { 0 } else { conversation };
        *parent = (*parent ^ label).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 1;
        Some(BlockHash(*parent))
    };
    (0..blocks).scan(1, next).collect()
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
    let mut group = c.benchmark_group("replay");
    for (blocks, backends) in [(512, 8), (8_192, 8), (8_192, 64)] {
        let shadow = Shadow::new(Arc::new(LocalityIndex::new(64 << 20, 42)));
        let candidates: Vec<Candidate> = (0..backends).map(candidate).collect();
        let backend = |index: usize| ShadowBackend {
            identity: index as u64,
            tenant: Tenant { slot: index as u32, generation: 1 },
            capacity_blocks: 100_000,
        };
        shadow.set_backends(&(0..backends).map(backend).collect::<Vec<_>>());
        // Conversations that come again and again, so that most of each is held somewhere.
        let prompts: Vec<_> = (0..4 * backends as u64).map(|conversation| prompt(conversation, blocks)).collect();
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
        (0..4_000).for_each(|_| drop(replay(next())));
        group.bench_function(BenchmarkId::new(format!("{blocks}_blocks"), backends), |b| {
            b.iter_batched(&mut next, replay, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, replays);
criterion_main!(benches);
