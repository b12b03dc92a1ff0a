//! The simulator against the real thing: one workload, replayed over HTTP through the proxy before eight simulated
//! engines and run in simulated time, has the same hit ratio.
//!
//! What is compared is the engines' own count of cached prompt tokens. Engines, cache sizes, blocks, pauses and policy are
//! the same in both worlds. The load is low, so that a busy machine delays requests but hardly changes their order.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common;

use std::net::SocketAddr;
use std::num::NonZeroU32;

use common::{client, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use warmgate::prefix::BlockHash;
use warmgate::server::Server;
use warmgate::sim::engine::{Model, Parameters, Timing};
use warmgate::sim::{EngineOptions, SimEngine};
use warmgate::simulate::workload::{Conversation, LogNormal, Session, Turn, Workload};
use warmgate::simulate::{Contender, Outcome, Setup, run};

const REQUESTS: usize = 2_000;
const BACKENDS: usize = 8;
const SEED: u64 = 1;

/// Tokens of a block in the built-in workloads, and bytes of text that the simulated engine takes for a token.
const BLOCK_TOKENS: u32 = 64;
const TOKEN_BYTES: u32 = 4;

/// KV blocks of one engine: 16,384 tokens, about ten conversations, so that blocks are evicted all the time.
const KV_BLOCKS: u32 = 256;

/// How far the two may be apart.
const TOLERANCE: f64 = 0.03;

/// Requests that fail, or take longer than a wait of the harness, end the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_over_http_has_the_hit_ratio_of_the_simulation() {
    let workload = workload();
    assert_eq!(workload.requests(), REQUESTS);
    let expected = simulated(&workload, "cost");
    let unaware = simulated(&workload, "round_robin");
    let replayed = replayed(workload).await;
    println!(
        "hit ratio of cost: replayed {replayed:.4}, simulated {expected:.4}; of round_robin: simulated {unaware:.4}"
    );
    assert!((replayed - expected).abs() < TOLERANCE, "replayed {replayed}, simulated {expected}");
    assert!((replayed - unaware).abs() > 2.0 * TOLERANCE, "any policy would pass: {unaware} by turns");
}

// === The workload ===

/// The built-in conversations, shorter and with less time between the turns.
fn workload() -> Workload {
    let parameters = Conversation {
        requests: REQUESTS,
        sessions_per_second: 28.0,
        system_tokens: LogNormal::new(450.0, 0.4, 200.0, 900.0),
        first_tokens: LogNormal::new(500.0, 0.6, 100.0, 1_200.0),
        message_tokens: LogNormal::new(80.0, 0.8, 8.0, 300.0),
        output_tokens: LogNormal::new(16.0, 0.4, 8.0, 32.0),
        max_turns: 12,
        pause_seconds: LogNormal::new(0.6, 0.8, 0.1, 3.0),
        ..Conversation::default()
    };
    let mut workload = parameters.generate(SEED);
    assert_eq!(workload.block_tokens.get(), BLOCK_TOKENS);
    let mut names = fastrand::Rng::with_seed(SEED);
    let turns = workload.sessions.iter_mut().flat_map(|session| &mut session.turns);
    turns.for_each(|turn| forget_answer(turn, workload.block_tokens, &mut names));
    workload
}

/// Gives the answer blocks of their own. Over HTTP an engine answers in words of its own, which are not what the
/// workload puts into the next prompt; they take room in its cache all the same.
fn forget_answer(turn: &mut Turn, block_tokens: NonZeroU32, names: &mut fastrand::Rng) {
    let whole = ((turn.prompt_tokens + turn.output_tokens) / block_tokens) as usize;
    let prompt = turn.prompt_blocks(block_tokens);
    let answer = (prompt.len()..whole).map(|_| BlockHash(names.u64(..)));
    turn.chain = prompt.iter().copied().chain(answer).collect();
}

/// The text of a prompt: equal blocks have equal text, and what is behind the last whole block is no other prompt's.
fn text_of(turn: &Turn, block_tokens: NonZeroU32, name: u64) -> String {
    let mut text = String::new();
    for block in turn.prompt_blocks(block_tokens) {
        write(&mut text, block.0, BLOCK_TOKENS);
    }
    write(&mut text, name, turn.prompt_tokens % BLOCK_TOKENS);
    text
}

/// Writes `tokens` tokens that nothing but another text with this seed has.
fn write(text: &mut String, seed: u64, tokens: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    text.extend((0..tokens).map(|_| format!("{:04x}", rng.u16(..))));
}

// === Simulated time ===

/// Prefill of 40,000 tokens a second and a token a millisecond: slow against the proxy's own time, and idle most of the
/// time with this workload.
fn engine() -> Parameters {
    Parameters { timing: Timing::from_rates(40_000.0, 1_000.0), ..Model::Reference.parameters(BLOCK_TOKENS, KV_BLOCKS) }
}

fn setup() -> Setup {
    Setup::new(BACKENDS, engine())
}

fn simulated(workload: &Workload, policy: &str) -> f64 {
    let Outcome { records, utilization, .. } =
        run(workload, &setup(), Contender::named(policy).unwrap(), SEED, &|_| ());
    assert!(records.iter().all(|record| record.times.is_some()) && records.len() == REQUESTS);
    assert!(utilization < 0.5, "the load is low: {utilization}");
    let computed: f64 = records.iter().map(|record| f64::from(record.prefill_tokens)).sum();
    let cached: f64 = records.iter().map(|record| f64::from(record.cached_blocks * BLOCK_TOKENS)).sum();
    cached / (cached + computed)
}

// === Real time ===

/// Replays the workload through a proxy; the hit ratio that the engines counted.
async fn replayed(workload: Workload) -> f64 {
    let engines: Vec<SimEngine> = (0..BACKENDS).map(start_engine).collect();
    let config = warmgate::config::parse(&configuration(&engines), "replay").unwrap();
    let server = Server::start(config, None).await.unwrap();
    let admin = server.admin_address();
    eventually("every backend is healthy", async || are_healthy(admin).await).await;

    let (address, block_tokens, started) = (server.addresses()[0], workload.block_tokens, Instant::now());
    let mut replays = JoinSet::new();
    for (number, session) in workload.sessions.into_iter().enumerate() {
        replays.spawn(async move {
            sleep_until(started + session.start).await;
            replay(&session, number as u64, block_tokens, address).await;
        });
    }
    while let Some(ended) = replays.join_next().await {
        ended.unwrap();
    }

    let counts: Vec<_> = engines.iter().map(|engine| engine.state().engine).collect();
    assert_eq!(counts.iter().map(|count| count.finished).sum::<u64>(), REQUESTS as u64, "each was served once");
    let cached: u64 = counts.iter().map(|count| count.cached_tokens).sum();
    let asked: u64 = counts.iter().map(|count| count.queried_tokens).sum();
    server.stop().await;
    cached as f64 / asked as f64
}

/// The turns of a session, one after the other.
async fn replay(session: &Session, number: u64, block_tokens: NonZeroU32, proxy: SocketAddr) {
    for (turn, place) in session.turns.iter().zip(0_u64..) {
        sleep(turn.pause).await;
        let prompt = text_of(turn, block_tokens, number << 32 | place);
        assert_eq!(prompt.len(), (turn.prompt_tokens * TOKEN_BYTES) as usize);
        let body = json!({"prompt": prompt, "max_tokens": turn.output_tokens, "stream": true,
            "stream_options": {"include_usage": true}});
        let headers = "content-type: application/json\r\n";
        let reply = client::post(proxy, "/v1/completions", headers, body.to_string().as_bytes()).await;
        let usage = format!("\"prompt_tokens\":{}", turn.prompt_tokens);
        let text = reply.text();
        assert!(reply.status == 200 && text.contains(&usage) && text.trim_end().ends_with("[DONE]"), "{text}");
    }
}

fn start_engine(number: usize) -> SimEngine {
    let options = EngineOptions {
        name: format!("engine-{number}"),
        parameters: engine(),
        seed: number as u64,
        ..EngineOptions::default()
    };
    SimEngine::start(options).unwrap()
}

/// The shadows are off, being much of a debug build's time, and so are probes after the first.
fn configuration(engines: &[SimEngine]) -> String {
    let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: '{}'}}", engine.url())).collect();
    format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
         logging: {{access_log: 'off', level: 'off'}}\npools:\n- name: p\n  engine: vllm\n  policy: cost\n  \
         shadow: false\n  block_tokens: {BLOCK_TOKENS}\n  kv_tokens: {}\n  \
         health: {{interval: 5m, timeout: 20s}}\n  backends: [{}]\n",
        KV_BLOCKS * BLOCK_TOKENS,
        backends.join(", "),
    )
}

async fn are_healthy(admin: SocketAddr) -> bool {
    let report: Value = client::get(admin, "/backends").await.json();
    let backends = report["pools"][0]["backends"].as_array().unwrap().clone();
    backends.len() == BACKENDS && backends.iter().all(|backend| backend["state"] == "healthy")
}
