//! What it takes to know a request: reading its body and hashing its prompt, beside a typed parse of the same body, and the
//! whole way from the body to a backend.
//!
//! `cargo bench --bench request`

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde::Deserialize;
use warmgate::locality::{LocalityIndex, Matches, Tenant};
use warmgate::pool::{Answer, Backend, BackendSnapshot, Health, Origin, Pool, PoolSnapshot};
use warmgate::prefix::{BlockHasher, Chain, Scale, prompt_root};
use warmgate::request::{Endpoint, read};
use warmgate::routing::{Query, dispatch};
use warmgate::time::Moment;

#[path = "proxy/prose.rs"]
mod prose;

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Those of 32 tokens, the smallest that prompts are cut into.
const BLOCK_BYTES: NonZeroU32 = NonZeroU32::new(128).unwrap();

const BACKENDS: u32 = 8;

/// What a server that builds documents would parse a chat into.
#[derive(Deserialize)]
#[expect(dead_code, reason = "only parsed")]
struct Chat {
    model: String,
    messages: Vec<Message>,
    stream: Option<bool>,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only parsed")]
struct Message {
    role: String,
    content: String,
}

/// A chat of about `bytes` bytes: a system prompt and turns of some paragraphs, in lines of `words_a_line` words.
fn chat(bytes: usize, words_a_line: usize) -> Vec<u8> {
    const WORDS: [&str; 12] =
        ["prefill", "the", "cache", "holds", "a", "prefix", "of", "every", "conversation", "that", "engines", "know"];
    let mut rng = fastrand::Rng::with_seed(7);
    let mut text = |length: usize| {
        let mut text = String::with_capacity(length + 16);
        let mut words = 0;
        while text.len() < length {
            text.push_str(WORDS[rng.usize(..WORDS.len())]);
            words += 1;
            text.push(if words % words_a_line == 0 { '\n' } else { ' ' });
        }
        text
    };
    let turn_bytes = (bytes / 10).clamp(200, 8_000);
    let mut messages = vec![serde_json::json!({"role": "system", "content": text(turn_bytes)})];
    let mut written = turn_bytes;
    while written < bytes {
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(serde_json::json!({"role": role, "content": text(turn_bytes)}));
        written += turn_bytes;
    }
    let chat =
        serde_json::json!({"model": "m", "messages": messages, "stream": true, "max_tokens": 256, "temperature": 0.7});
    chat.to_string().into_bytes()
}

fn blocks(body: &[u8]) -> Chain {
    let request = read(Endpoint::ChatCompletions, body).expect("a chat");
    let mut hasher = BlockHasher::new(prompt_root("m", None, None, false), BLOCK_BYTES);
    hasher.reserve(request.prompts[0].expected_bytes());
    request.prompts[0].canonical(&mut |bytes| hasher.update(bytes));
    hasher.finish()
}

fn reading(c: &mut Criterion) {
    for (name, words_a_line) in [("prose", 100), ("lines", 8)] {
        let mut group = c.benchmark_group(format!("chat_of_{name}"));
        for bytes in [2_000, 33_000, 256_000] {
            let body = chat(bytes, words_a_line);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_function(BenchmarkId::new("read", bytes), |bencher| {
                bencher.iter(|| black_box(read(Endpoint::ChatCompletions, black_box(&body)).is_ok()));
            });
            group.bench_function(BenchmarkId::new("read_and_hash", bytes), |bencher| {
                bencher.iter(|| blocks(black_box(&body)));
            });
            group.bench_function(BenchmarkId::new("typed_parse", bytes), |bencher| {
                bencher.iter(|| serde_json::from_slice::<Chat>(black_box(&body)).expect("a chat"));
            });
        }
    }
}

/// Reading text that does not come again: of one that does, the processor learns where its escapes are.
fn reading_anew(c: &mut Criterion) {
    const BODIES: usize = 16;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut message = || format!(r#"{{"role":"user","content":"{}"}}"#, prose::escaped(&mut rng, 2 << 10));
    let mut body = || {
        let messages: Vec<String> = std::iter::repeat_with(&mut message).take(512).collect();
        format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(",")).into_bytes()
    };
    let bodies: Vec<Vec<u8>> = std::iter::repeat_with(&mut body).take(BODIES).collect();
    let mut group = c.benchmark_group("chats_that_differ");
    group.throughput(Throughput::Bytes(bodies[0].len() as u64));
    let mut bodies_in_turn = bodies.iter().cycle();
    group.bench_function(BenchmarkId::new("read", 1 << 20), |bencher| {
        bencher.iter(|| read(Endpoint::ChatCompletions, bodies_in_turn.next().expect("a body")).is_ok());
    });
    group.bench_function(BenchmarkId::new("read_and_hash", 1 << 20), |bencher| {
        bencher.iter(|| blocks(bodies_in_turn.next().expect("a body")));
    });
    group.bench_function(BenchmarkId::new("typed_parse", 1 << 20), |bencher| {
        bencher.iter(|| serde_json::from_slice::<Chat>(bodies_in_turn.next().expect("a body")).expect("a chat"));
    });
}

/// Reading, hashing, lookup and choice for a prompt of which two of eight backends hold three quarters.
fn deciding(c: &mut Criterion) {
    let body = chat(32_000, 100);
    let index = LocalityIndex::new(64 << 20, 42);
    let pool = pool(&index);
    let chain = blocks(&body);
    for backend in &pool.backends[..2] {
        index.insert(backend.tenant, &chain.blocks[..chain.blocks.len() * 3 / 4]);
    }
    let (mut matches, mut rng) = (Matches::new(), fastrand::Rng::with_seed(1));
    let now = Moment::at(Duration::from_secs(1));
    c.bench_function("decide_32_KB", |bencher| {
        bencher.iter(|| {
            let chain = blocks(black_box(&body));
            index.lookup(&chain.blocks, &mut matches);
            let matched: Vec<u32> = pool.backends.iter().map(|backend| matches.blocks(backend.tenant) * 32).collect();
            let query = Query { prompt_tokens: chain.blocks.len() as u32 * 32, ..Query::default() };
            dispatch(&pool, &query, &matched, &[], Answer::Streamed, now, &mut rng)
        });
    });
}

fn pool(index: &LocalityIndex) -> PoolSnapshot {
    let backend = |place: u32, tenant: Tenant| BackendSnapshot {
        address: Some(([10, 0, 0, 1], 8_000).into()),
        health: Health::Healthy,
        ..BackendSnapshot::new(
            Arc::new(Backend::new(
                format!("backend-{place}"),
                Origin { is_tls: false, host: "10.0.0.1".into(), port: 8_000 },
            )),
            tenant,
        )
    };
    PoolSnapshot {
        backends: (0..BACKENDS).map(|place| backend(place, index.join(100_000))).collect(),
        ..PoolSnapshot::new(Arc::new(Pool::new("benched", Scale::new(NonZeroU32::MIN))))
    }
}

criterion_group!(benches, reading, reading_anew, deciding);
criterion_main!(benches);
