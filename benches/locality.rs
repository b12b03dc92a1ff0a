//! The locality index: lookups by shape of prompt and size of fleet, and changes in the steady state.
//!
//! Run with `cargo bench --bench locality`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use warmgate::locality::Tenant;
use warmgate::locality::{LocalityIndex, Matches};
use warmgate::prefix::BlockHash;

/// 128k tokens in blocks of 16.
const LONG: usize = 8192;

/// The system prompt that all conversations share.
const SYSTEM: usize = 128;

const BUDGET_BYTES: usize = 256 << 20;

/// Chained hashes of a prompt: `shared` blocks that all prompts have, then blocks of the conversation's own.
fn prompt(conversation: u64, shared: usize, blocks: usize) -> Arc<[BlockHash]> {
    let label = |at: usize| if at < shared { at as u64 } else { conversation << 20 | at as u64 };
    let next = |parent: &mut u64, at: usize| {
        *parent = (*parent ^ label(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ at as u64;
        Some(BlockHash(*parent))
    };
    (0..blocks).scan(1, next).collect()
}

fn fleet(index: &LocalityIndex, tenants: usize, capacity_blocks: u32) -> Vec<Tenant> {
    (0..tenants).map(|_| index.join(capacity_blocks)).collect()
}

/// A conversation of 24 turns that `holders` backends know to different lengths, all know the system prompt, among
/// 2,000 other conversations.
fn conversations(tenants: usize, holders: usize) -> (LocalityIndex, Vec<Tenant>, Arc<[BlockHash]>) {
    let index = LocalityIndex::new(BUDGET_BYTES, 42);
    let fleet = fleet(&index, tenants, 200_000);
    for (nth, tenant) in fleet.iter().enumerate() {
        index.insert(*tenant, &prompt(nth as u64 + 2, SYSTEM, SYSTEM + 40));
    }
    for other in 0..2000 {
        index.insert(fleet[other % tenants], &prompt(other as u64 + 10_000, SYSTEM, 700));
    }
    let asked = prompt(1, SYSTEM, LONG);
    for turn in 1..=24 {
        for (nth, tenant) in fleet.iter().take(holders).enumerate() {
            if nth % 24 < turn || nth < 2 {
                index.insert(*tenant, &asked[..LONG * turn / 24]);
            }
        }
    }
    (index, fleet, asked)
}

/// The same prompt, cut before every `stride`th block by prompts that end there, held whole by every backend.
fn cut_up(tenants: usize, stride: usize) -> (LocalityIndex, Vec<Tenant>, Arc<[BlockHash]>) {
    let index = LocalityIndex::new(BUDGET_BYTES, 42);
    let fleet = fleet(&index, tenants, 200_000);
    let asked = prompt(1, SYSTEM, LONG);
    for end in (1..=LONG / stride).rev() {
        // From the longest to the shortest: each is cut from the one before.
        index.insert(fleet[0], &asked[..end * stride]);
    }
    fleet.iter().for_each(|tenant| index.insert(*tenant, &asked));
    (index, fleet, asked)
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup_8192_blocks");
    let mut bench = |name: &str, (index, fleet, asked): (LocalityIndex, Vec<Tenant>, Arc<[BlockHash]>)| {
        let mut matches = Matches::new();
        index.lookup(&asked, &mut matches);
        assert!(matches.blocks(fleet[0]) >= 512, "the prompt is not held");
        group.bench_function(BenchmarkId::new(name, fleet.len()), |b| {
            b.iter(|| index.lookup(black_box(&asked), &mut matches));
        });
    };
    bench("conversation_4_hold_it", conversations(64, 4));
    bench("conversation_all_hold_it", conversations(64, 64));
    bench("conversation_4_hold_it", conversations(1000, 4));
    bench("conversation_64_hold_it", conversations(1000, 64));
    bench("cut_every_341_blocks_all_hold_it", cut_up(64, 341));
    bench("cut_every_64_blocks_all_hold_it", cut_up(64, 64));
    bench("cut_every_block_4_hold_it", cut_up(4, 1));
    bench("cut_every_block_all_hold_it", cut_up(64, 1));
    group.finish();
}

fn changes(c: &mut Criterion) {
    let mut group = c.benchmark_group("change");
    for tenants in [1, 64, 1000] {
        // 480 known blocks in 12 runs, 32 new ones; the tenant is full, so that as many are evicted each time.
        let index = Arc::new(LocalityIndex::new(BUDGET_BYTES, 42));
        let fleet = fleet(&index, tenants, 20_000);
        let known = prompt(1, SYSTEM, 480);
        for end in (1..=12).rev() {
            fleet.iter().for_each(|tenant| index.insert(*tenant, &known[..end * 40]));
        }
        let mut ends = 100_000..;
        let mut next = || prompt(ends.next().unwrap_or(0), 480, 512);
        for _ in 0..1000 {
            index.insert(fleet[0], &next());
        }
        group.bench_function(BenchmarkId::new("insert_512_of_which_480_known", tenants), |b| {
            b.iter_batched(&mut next, |chain| index.insert(fleet[0], &chain), criterion::BatchSize::SmallInput);
        });
        group.bench_function(BenchmarkId::new("begin_and_commit_512_of_which_480_known", tenants), |b| {
            b.iter_batched(&mut next, |chain| index.begin(fleet[0], chain).commit(), criterion::BatchSize::SmallInput);
        });
    }
    group.bench_function("evict_512_blocks_of_16_prompts", |b| {
        let index = LocalityIndex::new(BUDGET_BYTES, 42);
        let tenant = index.join(100_000);
        let setup = |round: &mut u64| {
            index.set_capacity(tenant, 100_000);
            for _ in 0..16 {
                *round += 1;
                index.insert(tenant, &prompt(*round, 0, 32));
            }
        };
        let mut round = 0;
        b.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times {
                setup(&mut round);
                let start = Instant::now();
                index.set_capacity(tenant, 0);
                spent += start.elapsed();
            }
            spent
        });
    });
    group.finish();
}

/// Changes where the byte budget, not the capacity, is what evicts, in a fleet of a thousand.
fn at_the_budget(c: &mut Criterion) {
    let index = LocalityIndex::new(16 << 20, 42);
    let fleet = fleet(&index, 1000, 1_000_000);
    let mut conversations = 1u64..;
    let mut next = || {
        let conversation = conversations.next().unwrap_or(0);
        (fleet[conversation as usize % fleet.len()], prompt(conversation, SYSTEM, SYSTEM + 100))
    };
    for _ in 0..30_000 {
        let (tenant, chain) = next();
        index.insert(tenant, &chain);
    }
    assert!(index.stats().evicted_blocks_total > 0);
    c.bench_function("change/insert_100_new_at_the_byte_budget/1000", |b| {
        b.iter_batched(&mut next, |(tenant, chain)| index.insert(tenant, &chain), criterion::BatchSize::SmallInput);
    });
}

/// One lookup while another thread does the same, or changes the index without pause.
fn beside_others(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookup_beside");
    let (index, fleet, asked) = conversations(64, 4);
    let other = prompt(10_001, SYSTEM, 700);
    let mut matches = Matches::new();
    group.bench_function("nobody", |b| b.iter(|| index.lookup(black_box(&asked), &mut matches)));
    let cases =
        [("a_reader_of_the_same", false, &asked), ("a_reader_of_another", false, &other), ("a_writer", true, &asked)];
    for (name, is_writing, read) in cases {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut matches = Matches::new();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    match is_writing {
                        true => index.insert(fleet[round % 64], &prompt(round as u64 + 1_000_000, SYSTEM, 512)),
                        false => index.lookup(read, &mut matches),
                    }
                }
            });
            let mut matches = Matches::new();
            group.bench_function(name, |b| b.iter(|| index.lookup(black_box(&asked), &mut matches)));
            stop.store(true, Ordering::Relaxed);
        });
    }
    group.finish();
}

/// Lookups of many conversations, all behind one system prompt, by one thread and by two: of one index, and of an index
/// each, which share nothing and so say what the machine itself makes of a second thread.
fn by_two(c: &mut Criterion) {
    let mut group = c.benchmark_group("lookups_by");
    let indexes = [conversations(64, 4).0, conversations(64, 4).0];
    let asked: Vec<_> = (0..2000).map(|other| prompt(other + 10_000, SYSTEM, 700)).collect();
    let (even, odd) = asked.split_at(1000);
    let read = |index: &LocalityIndex, asked: &[Arc<[BlockHash]>], times: u64| {
        let mut matches = Matches::new();
        asked.iter().cycle().take(times as usize).for_each(|chain| index.lookup(black_box(chain), &mut matches));
    };
    group.bench_function("one", |b| {
        b.iter_custom(|times| {
            let start = Instant::now();
            read(&indexes[0], even, times);
            start.elapsed()
        });
    });
    for (name, second) in [("two_of_one_index", &indexes[0]), ("two_of_an_index_each", &indexes[1])] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                thread::scope(|scope| {
                    scope.spawn(|| read(second, odd, times));
                    read(&indexes[0], even, times);
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(20)
}

criterion_group! { name = benches; config = quick(); targets = lookups, changes, at_the_budget, beside_others, by_two }
criterion_main!(benches);
