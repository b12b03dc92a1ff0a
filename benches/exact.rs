//! The exact index: bytes a block, block events a second, and lookups by shape of prompt and beside a writer.
//!
//! A plain program, since most of what it measures is not the time of one call. Run with `cargo bench --bench exact`, all
//! of it takes two minutes and 2 GiB; `-- NAME` runs what has NAME in its name. As a test it does the same to little.
//! What one thread does is measured in its time on a processor, so that other processes matter less.

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use cap::Cap;
use warmgate::kv_events::{Batch, Decoder, EngineHash, Form, Medium, encode};
use warmgate::locality::{ExactIndex, ExactMatches, ExactTenant};
use warmgate::prefix::{BlockHash, token_chain, token_root};

/// The allocator of the program, with its bytes counted as they are asked for.
#[global_allocator]
static ALLOCATOR: Cap<mimalloc::MiMalloc> = Cap::new(mimalloc::MiMalloc, usize::MAX);

const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).expect("not zero");

/// 128k tokens in blocks of 16.
const LONG: usize = 8192;

/// Blocks of the system prompt that all conversations share.
const SYSTEM: usize = 128;

/// Blocks of a prompt in the streams of events.
const PROMPT: usize = 64;

const PLENTY: usize = 4 << 30;

/// How much is done: all of it, or a thousandth.
#[derive(Clone, Copy)]
struct Extent {
    divisor: usize,
}

/// How an engine words its events.
#[derive(Clone, Copy)]
enum Wording {
    /// vLLM: one event for all stored blocks of a prompt, one for each removed block.
    StoredTogether,
    /// SGLang: one event for each stored block, one for all removed blocks of a prompt.
    StoredSingly,
}

/// A stream of an engine's events: prompts come, and the oldest go when the cache is full.
struct Stream {
    rng: fastrand::Rng,
    wording: Wording,
    capacity_prompts: usize,
    held: std::collections::VecDeque<[EngineHash; PROMPT]>,
}

/// What lookups took.
struct Times {
    /// By the clock.
    sorted: Vec<Duration>,
    /// Of the thread's time on a processor, in which other processes have less part.
    mean: Duration,
}

/// A part of the whole, by its name.
type Part = (&'static str, fn(Extent));

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let extent = Extent { divisor: if is_bench { 1 } else { 1000 } };
    let parts: [Part; 5] = [
        ("memory", memory),
        ("ingest", ingest),
        ("lookup", lookups),
        ("beside", lookups_beside_a_writer),
        ("two", lookups_by_two),
    ];
    let wanted: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    for (name, run) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            run(extent);
        }
    }
}

/// Bytes a block, of blocks that one tenant has and of those that many have. With 7.5 million the tables have just doubled.
fn memory(extent: Extent) {
    for (tenants, blocks, is_shared) in
        [(1, 10_000_000, false), (16, 10_000_000, false), (16, 7_500_000, false), (16, 10_000_000, true)]
    {
        let prompts = blocks / tenants / PROMPT / extent.divisor;
        let before = ALLOCATOR.allocated();
        let index = Arc::new(ExactIndex::new(PLENTY, 42));
        let fleet: Vec<ExactTenant> = (0..tenants).map(|_| index.join()).collect();
        let mut batch = Batch::default();
        let start = processor_time();
        for (nth, tenant) in fleet.iter().enumerate() {
            let mut stream =
                Stream::new(if is_shared { 1 } else { nth as u64 + 1 }, Wording::StoredTogether, usize::MAX);
            for _ in 0..prompts {
                batch.clear();
                stream.forget();
                stream.next(&mut batch);
                tenant.apply(&batch);
            }
        }
        let (stats, real) = (index.stats(), ALLOCATOR.allocated() - before - batch_bytes(&batch));
        let each = |bytes: usize| bytes as f64 / stats.blocks as f64;
        println!(
            "memory: {} blocks of {tenants} tenants{}: {:.1} bytes a block allocated, {:.1} counted, built in {:.1} s",
            stats.blocks,
            if is_shared { ", each block with all of them" } else { "" },
            each(real),
            each(stats.bytes as usize),
            (processor_time() - start).as_secs_f64(),
        );
        assert_eq!(stats.refused_blocks_total, 0, "the budget is too small to measure");
        drop(fleet);
        let start = processor_time();
        let swept = index.sweep(usize::MAX);
        println!("memory: {swept} places of them swept in {:.2} s", (processor_time() - start).as_secs_f64());
        assert_eq!(index.stats().bytes, 0, "something is left");
    }
}

/// Block events a second on one core, from messages that lie ready: applied, and decoded and applied.
fn ingest(extent: Extent) {
    for (name, wording) in
        [("stored together, removed singly", Wording::StoredTogether), ("stored singly", Wording::StoredSingly)]
    {
        for (tenants, blocks) in [(1, 100_000), (64, 1_000_000), (16, 10_000_000)] {
            let [applied, decoded] = [false, true].map(|is_decoded| {
                let index = Arc::new(ExactIndex::new(PLENTY, 42));
                let mut fleet = filled(&index, tenants, blocks / extent.divisor, wording);
                events_a_second(&mut fleet, wording, is_decoded, extent) / 1e6
            });
            println!(
                "ingest: {name}, {tenants} tenants with {blocks} blocks: {applied:.2} million block events a second \
                 applied, {decoded:.2} decoded and applied"
            );
        }
    }
}

fn events_a_second(fleet: &mut [(ExactTenant, Stream)], wording: Wording, is_decoded: bool, extent: Extent) -> f64 {
    let (mut events, mut spent) = (0, Duration::ZERO);
    let mut batches: Vec<Batch> = (0..512).map(|_| Batch::default()).collect();
    let (mut decoder, mut scratch, tenants) = (Decoder::default(), Batch::default(), fleet.len());
    for round in 0..(4_000_000 / (128 * 512) / extent.divisor).max(1) {
        let (tenant, stream) = &mut fleet[round % tenants];
        batches.iter_mut().for_each(|batch| {
            batch.clear();
            stream.next(batch);
            events += batch.hashes.len();
        });
        let payloads: Vec<Vec<u8>> = batches.iter().map(|batch| encode(batch, wording.form())).collect();
        let start = processor_time();
        if is_decoded {
            payloads.iter().for_each(|payload| {
                decoder.decode(payload, &mut scratch).expect("it was encoded");
                black_box(tenant.apply(&scratch));
            });
        } else {
            batches.iter().for_each(|batch| {
                black_box(tenant.apply(batch));
            });
        }
        spent += processor_time() - start;
    }
    events as f64 / spent.as_secs_f64()
}

/// Lookups of a prompt of 8,192 blocks.
fn lookups(extent: Extent) {
    for (tenants, holders) in [(64, 0), (64, 4), (64, 64), (1000, 4), (1000, 64), (1000, 1000)] {
        let index = Arc::new(ExactIndex::new(PLENTY, 42));
        let (_fleet, asked) = conversation(&index, tenants, holders, 1);
        let _others = filled(&index, 8, 2_000_000 / extent.divisor, Wording::StoredTogether);
        let times = lookup_times(&index, &asked, 20_000 / extent.divisor);
        println!("lookup: {LONG} blocks, {tenants} tenants, {holders} hold it to 24 lengths: {}", times.shown());
    }
}

/// The same lookups while another thread applies events: a million block events a second, or as many as it can.
fn lookups_beside_a_writer(extent: Extent) {
    let index = Arc::new(ExactIndex::new(PLENTY, 42));
    let (_fleet, asked) = conversation(&index, 64, 64, 1);
    let mut fleet = filled(&index, 64, 1_000_000 / extent.divisor, Wording::StoredTogether);
    let alone = lookup_times(&index, &asked, 100_000 / extent.divisor);
    println!("beside nobody: {}", alone.shown());
    for rate in [1e6, f64::INFINITY] {
        let (stop, applied) = (AtomicBool::new(false), AtomicU64::new(0));
        let (times, spent) = thread::scope(|scope| {
            scope.spawn(|| write_at(rate, &mut fleet, &stop, &applied));
            while applied.load(Relaxed) == 0 {
                thread::yield_now();
            }
            let (start, before) = (Instant::now(), applied.load(Relaxed));
            let times = lookup_times(&index, &asked, 100_000 / extent.divisor);
            let spent = (applied.load(Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
            stop.store(true, Relaxed);
            (times, spent)
        });
        println!(
            "beside a writer of {:.2} million block events a second: {}, median x {:.2}, mean x {:.2}",
            spent / 1e6,
            times.shown(),
            times.within(0.5).as_secs_f64() / alone.within(0.5).as_secs_f64(),
            times.mean.as_secs_f64() / alone.mean.as_secs_f64(),
        );
    }
}

/// Lookups by two threads of one index, of the same prompt and of prompts that share a system prompt; and of an index
/// each, which share nothing and so say what the machine itself makes of a second thread.
fn lookups_by_two(extent: Extent) {
    let times = 200_000 / extent.divisor;
    let prepared: Vec<_> = (0..2)
        .map(|_| {
            let index = Arc::new(ExactIndex::new(PLENTY, 42));
            let (fleet, asked) = conversation(&index, 64, 4, 1);
            let (more, other) = conversation(&index, 64, 4, 2);
            (index, [fleet, more], [asked, other])
        })
        .collect();
    let read = |at: usize, which: usize| {
        let (index, _, asked) = &prepared[at];
        let asked = &asked[which];
        let mut matches = ExactMatches::new();
        (0..times).for_each(|_| index.lookup(black_box(asked), &mut matches));
    };
    let by = |second: Option<(usize, usize)>| {
        let start = Instant::now();
        thread::scope(|scope| {
            second.map(|(at, which)| scope.spawn(move || read(at, which)));
            read(0, 0);
        });
        start.elapsed().as_secs_f64()
    };
    let cases =
        [("one index, the same prompt", (0, 0)), ("one index, another prompt", (0, 1)), ("an index each", (1, 0))];
    for (name, second) in cases {
        let mut scaling: Vec<_> = (0..9).map(|_| 2.0 * by(None) / by(Some(second))).collect();
        scaling.sort_by(f64::total_cmp);
        println!(
            "two threads on {name}: {:.2} times the lookups of one (median of 9, {:.2} to {:.2})",
            scaling[4], scaling[0], scaling[8]
        );
    }
}

/// Applies so many block events a second, made on the way, until told to stop.
fn write_at(rate: f64, fleet: &mut [(ExactTenant, Stream)], stop: &AtomicBool, applied: &AtomicU64) {
    let (start, mut batch, tenants) = (Instant::now(), Batch::default(), fleet.len());
    for round in 0.. {
        let (tenant, stream) = &mut fleet[round % tenants];
        batch.clear();
        stream.next(&mut batch);
        tenant.apply(&batch);
        let sum = applied.fetch_add(batch.hashes.len() as u64, Relaxed) as f64;
        while start.elapsed().as_secs_f64() < sum / rate && !stop.load(Relaxed) {
            std::hint::spin_loop();
        }
        if stop.load(Relaxed) {
            return;
        }
    }
}

/// A prompt of which `holders` tenants know the beginning, each up to one of 24 turns; all know the system prompt.
/// What comes after the system prompt differs by `seed`.
fn conversation(
    index: &Arc<ExactIndex>,
    tenants: usize,
    holders: usize,
    seed: u64,
) -> (Vec<ExactTenant>, Vec<BlockHash>) {
    let (mut system, mut own) = (fastrand::Rng::with_seed(99), fastrand::Rng::with_seed(seed));
    let mut rng = |block: usize| if block < SYSTEM { &mut system } else { &mut own }.u64(..);
    let block_tokens = BLOCK_TOKENS.get() as usize;
    let ids: Vec<u32> = (0..LONG * block_tokens).map(|at| (rng(at / block_tokens) % 128_000) as u32).collect();
    let names: Vec<EngineHash> = (0..LONG).map(|block| EngineHash(rng(block))).collect();
    let mut fleet = Vec::new();
    for nth in 0..tenants {
        let turn = if nth < holders { 24 - nth % 24 } else { 0 };
        let blocks = (LONG * turn / 24).max(SYSTEM);
        let mut batch = Batch::default();
        let ids = &ids[..blocks * BLOCK_TOKENS.get() as usize];
        batch.push_stored(&names[..blocks], None, ids, BLOCK_TOKENS, Medium::Gpu);
        let tenant = index.join();
        tenant.apply(&batch);
        fleet.push(tenant);
    }
    let chain = token_chain(token_root(None, None), &ids, BLOCK_TOKENS);
    let mut matches = ExactMatches::new();
    index.lookup(&chain, &mut matches);
    for (nth, tenant) in fleet.iter().enumerate() {
        let turn = if nth < holders { 24 - nth % 24 } else { 0 };
        assert_eq!(matches.levels(tenant.slot()).gpu as usize, (LONG * turn / 24).max(SYSTEM), "it is held otherwise");
    }
    (fleet, chain)
}

/// Tenants whose caches are full with so many blocks in all.
fn filled(index: &Arc<ExactIndex>, tenants: usize, blocks: usize, wording: Wording) -> Vec<(ExactTenant, Stream)> {
    let mut batch = Batch::default();
    let tenant = |nth: usize| {
        let (tenant, mut stream) = (index.join(), Stream::new(nth as u64 + 1000, wording, blocks / tenants / PROMPT));
        for _ in 0..stream.capacity_prompts {
            batch.clear();
            stream.next(&mut batch);
            tenant.apply(&batch);
        }
        (tenant, stream)
    };
    (0..tenants).map(tenant).collect()
}

fn lookup_times(index: &ExactIndex, asked: &[BlockHash], times: usize) -> Times {
    let mut matches = ExactMatches::new();
    let before = processor_time();
    let mut sorted: Vec<Duration> = (0..times.max(1))
        .map(|_| {
            let start = Instant::now();
            index.lookup(black_box(asked), &mut matches);
            start.elapsed()
        })
        .collect();
    let mean = (processor_time() - before) / sorted.len() as u32;
    sorted.sort_unstable();
    Times { sorted, mean }
}

/// The time that this thread has been on a processor, or that has passed where the system does not say.
fn processor_time() -> Duration {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = said.and_then(|said| said.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

fn batch_bytes(batch: &Batch) -> usize {
    batch.tokens.capacity() * 4 + batch.hashes.capacity() * 8 + batch.events.capacity() * size_of_val(&batch.events[0])
}

// === impl Wording ===

impl Wording {
    fn form(self) -> Form {
        match self {
            Self::StoredTogether => Form::Vllm,
            Self::StoredSingly => Form::Sglang,
        }
    }
}

// === impl Times ===

impl Times {
    fn within(&self, share: f64) -> Duration {
        self.sorted[((self.sorted.len() - 1) as f64 * share) as usize]
    }

    fn shown(&self) -> String {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        format!(
            "median {:.1} us, 99 % within {:.1} us, mean on the processor {:.1} us",
            micros(self.within(0.5)),
            micros(self.within(0.99)),
            micros(self.mean)
        )
    }
}

// === impl Stream ===

impl Stream {
    fn new(seed: u64, wording: Wording, capacity_prompts: usize) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), wording, capacity_prompts, held: Default::default() }
    }

    /// Makes room without saying so.
    fn forget(&mut self) {
        self.held.clear();
    }

    /// The events of the next prompt: what it takes the place of, then itself.
    fn next(&mut self, batch: &mut Batch) {
        if self.held.len() >= self.capacity_prompts
            && let Some(names) = self.held.pop_front()
        {
            let last_first: Vec<EngineHash> = names.into_iter().rev().collect();
            match self.wording {
                Wording::StoredTogether => {
                    last_first.iter().for_each(|name| batch.push_removed(&[*name], Medium::Gpu));
                }
                Wording::StoredSingly => batch.push_removed(&last_first, Medium::Gpu),
            }
        }
        let names = [(); PROMPT].map(|()| EngineHash(self.rng.u64(..)));
        let ids = [(); PROMPT * BLOCK_TOKENS.get() as usize].map(|()| self.rng.u32(..128_000));
        match self.wording {
            Wording::StoredTogether => batch.push_stored(&names, None, &ids, BLOCK_TOKENS, Medium::Gpu),
            Wording::StoredSingly => {
                let blocks = ids.chunks(BLOCK_TOKENS.get() as usize).enumerate();
                blocks.for_each(|(at, ids)| {
                    let parent = at.checked_sub(1).map(|before| names[before]);
                    batch.push_stored(&[names[at]], parent, ids, BLOCK_TOKENS, Medium::Gpu);
                });
            }
        }
        self.held.push_back(names);
    }
}
