//! Goodput: requests whose first token comes in time, at what the fleet can do and at three times that.
//!
//! Engines are simulated, in real time; requests come at random (seeded) whatever becomes of those before. No prompt shares
//! a prefix with another, so that the fleet can do the same at any load.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use warmgate::server::Server;
use warmgate::sim::engine::{Parameters, Timing};
use warmgate::sim::{EngineOptions, SimEngine};

use crate::common::client::{self, Client};
use crate::common::eventually;

/// Prompt tokens that an engine computes in a second.
const PREFILL_RATE: f64 = 8_000.0;
/// Tokens of the mean prompt.
const MEAN_TOKENS: usize = 1_000;

/// The lengths of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    /// All have as many tokens.
    Alike,
    /// Four short ones to one that is sixteen times as long.
    ShortAndLong,
}

/// A fleet under load.
#[derive(Debug, Clone, Copy)]
struct Trial {
    engines: usize,
    mix: Mix,
    /// What comes, as a multiple of the prefill that the fleet can do.
    load: f64,
    lasts: Duration,
    /// Until when a first token is in time.
    limit: Duration,
}

/// What became of the requests.
#[derive(Debug, Default)]
struct Outcome {
    sent: usize,
    in_time: usize,
    late: usize,
    /// The longest time to a first token.
    latest: Duration,
    refused: usize,
    /// Prompt tokens of those in time.
    tokens_in_time: usize,
    /// Those in time with more tokens than the mean.
    long_in_time: usize,
}

enum Ended {
    Token { ttft: Duration, tokens: usize },
    Refused,
}

// === impl Mix ===

impl Mix {
    fn draw(self, rng: &mut fastrand::Rng) -> usize {
        match (self, rng.usize(..5)) {
            (Self::Alike, _) => MEAN_TOKENS,
            (Self::ShortAndLong, 0) => MEAN_TOKENS * 4,
            (Self::ShortAndLong, _) => MEAN_TOKENS / 4,
        }
    }
}

// === impl Trial ===

impl Trial {
    async fn run(self) -> Outcome {
        let engines: Vec<SimEngine> = (0..self.engines).map(engine).collect();
        let server = self.proxy(&engines).await;
        let (address, admin) = (server.addresses()[0], server.admin_address());
        let (mut rng, mut requests) = (fastrand::Rng::with_seed(7), JoinSet::new());
        let rate = self.load * self.engines as f64 * PREFILL_RATE / MEAN_TOKENS as f64;
        let (started, mut at) = (Instant::now(), 0.0);
        let mut outcome = Outcome::default();
        loop {
            at -= (1.0 - rng.f64()).ln() / rate;
            if at > self.lasts.as_secs_f64() {
                break;
            }
            let tokens = self.mix.draw(&mut rng);
            let body = body(outcome.sent, tokens);
            sleep_until(started + Duration::from_secs_f64(at)).await;
            requests.spawn(ask(address, body, tokens));
            outcome.sent += 1;
        }
        while let Some(ended) = requests.join_next().await {
            let ended = ended.unwrap();
            if let Ended::Token { ttft, .. } = ended {
                outcome.latest = outcome.latest.max(ttft);
            }
            match ended {
                Ended::Refused => outcome.refused += 1,
                Ended::Token { ttft, .. } if ttft > self.limit => outcome.late += 1,
                Ended::Token { tokens, .. } => {
                    outcome.in_time += 1;
                    outcome.tokens_in_time += tokens;
                    outcome.long_in_time += usize::from(tokens > MEAN_TOKENS);
                }
            }
        }
        let text = client::get(admin, "/metrics").await.text();
        assert!(text.contains("warmgate_queued_requests{pool=\"p\",priority=\"normal\"} 0.0"), "nobody is left behind");
        server.stop().await;
        outcome
    }

    async fn proxy(&self, engines: &[SimEngine]) -> Server {
        let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: '{}'}}", engine.url())).collect();
        let text = format!(
            "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
             logging: {{access_log: 'off', level: 'off'}}\nserver: {{drain_delay: 0s}}\npools:\n- name: p\n  engine: vllm\n  \
             shadow: false\n  max_pending_prefill: {}ms\n  queue: {{max_wait: {}ms}}\n  \
             health: {{interval: 5m, timeout: 20s}}\n  backends: [{}]\n",
            self.limit.as_millis() / 4,
            self.limit.as_millis(),
            backends.join(", "),
        );
        let server = Server::start(warmgate::config::parse(&text, "goodput").unwrap(), None).await.unwrap();
        let admin = server.admin_address();
        eventually("every backend is healthy", async || {
            let report: serde_json::Value = client::get(admin, "/backends").await.json();
            report["pools"][0]["backends"].as_array().unwrap().iter().all(|backend| backend["state"] == "healthy")
        })
        .await;
        server
    }
}

fn engine(number: usize) -> SimEngine {
    let defaults = EngineOptions::default();
    let timing = Timing::from_rates(PREFILL_RATE, 100.0);
    SimEngine::start(EngineOptions {
        name: format!("engine-{number}"),
        parameters: Parameters { timing, ..defaults.parameters },
        seed: number as u64,
        ..defaults
    })
    .unwrap()
}

/// A prompt like no other one, from its first token on.
fn body(number: usize, tokens: usize) -> Vec<u8> {
    let prompt = format!("{number:08} {}", "word".repeat(tokens - 2));
    let model = "sim-model";
    serde_json::json!({"model": model, "prompt": prompt, "stream": true, "max_tokens": 4}).to_string().into_bytes()
}

async fn ask(address: SocketAddr, body: Vec<u8>, tokens: usize) -> Ended {
    let sent = Instant::now();
    let mut client = Client::connect(address).await;
    client.send("POST", "/v1/completions", "content-type: application/json\r\n", &body).await;
    let head = client.head().await.unwrap();
    if head.second_word() == "429" {
        let seconds: u32 = head.header("retry-after").expect("a refusal says when to come back").parse().unwrap();
        assert!((1..=60).contains(&seconds));
        return Ended::Refused;
    }
    assert_eq!(head.second_word(), "200");
    client.event().await.unwrap().expect("a first token");
    let ttft = sent.elapsed();
    let mut last = String::new();
    while let Some(event) = client.event().await.unwrap() {
        last = event;
    }
    assert!(last.ends_with("[DONE]"), "what has begun is whole: {last}");
    Ended::Token { ttft, tokens }
}

async fn compare(trial: Trial) -> (Outcome, Outcome) {
    let once = Trial { load: 1.0, ..trial }.run().await;
    let thrice = Trial { load: 3.0, ..trial }.run().await;
    let share = thrice.in_time as f64 / once.in_time as f64;
    let of_tokens = thrice.tokens_in_time as f64 / once.tokens_in_time as f64;
    println!("{trial:?}\n1x: {once:?}\n3x: {thrice:?}");
    println!("goodput at 3x: {:.0} % of that at 1x, {:.0} % by prompt tokens", share * 100.0, of_tokens * 100.0);
    assert!(share >= 0.85, "{once:?}, then {thrice:?}");
    assert!(of_tokens >= 0.85, "{once:?}, then {thrice:?}");
    assert!(thrice.refused > 0, "there was overload: {thrice:?}");
    (once, thrice)
}

#[tokio::test(flavor = "multi_thread")]
async fn at_three_times_what_a_fleet_can_do_as_many_requests_have_their_first_token_in_time() {
    let limit = Duration::from_secs(2);
    let trial = Trial { engines: 2, mix: Mix::Alike, load: 1.0, lasts: Duration::from_secs(5), limit };
    compare(trial).await;
}

async fn compare_for_a_minute(mix: Mix) {
    let limit = Duration::from_secs(5);
    let trial = Trial { engines: 8, mix, load: 1.0, lasts: Duration::from_secs(60), limit };
    let (once, thrice) = compare(trial).await;
    assert!(thrice.late < thrice.sent / 20, "those that were let in had their first token in time: {thrice:?}");
    assert!(thrice.long_in_time * 4 >= once.long_in_time, "long prompts have their share: {once:?}, then {thrice:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes; for the figure, with --release, --ignored and --nocapture"]
async fn the_same_for_a_minute() {
    compare_for_a_minute(Mix::Alike).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes; for the figure, with --release, --ignored and --nocapture"]
async fn the_same_for_a_minute_with_long_prompts_among_short_ones() {
    compare_for_a_minute(Mix::ShortAndLong).await;
}
