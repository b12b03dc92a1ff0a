//! Simulated engines, proxies before them, and a workload that is sent through.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use warmgate::server::Server;
use warmgate::sim::engine::Parameters;
use warmgate::sim::{EngineOptions, KvEventOptions, SimEngine};
use warmgate::simulate::Locality;
use warmgate::simulate::workload::{Session, Turn, Workload};

use crate::common::client::{self, Client};
use crate::common::eventually;
use crate::prompts::{Spelling, body_of};
use crate::{BACKENDS, BLOCK_TOKENS};

/// How a workload is replayed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) engine: Parameters,
    /// Proxies before the same engines, which do not know of one another; requests go to any.
    pub(crate) routers: usize,
    /// Exact: the proxies follow the engines' KV events.
    pub(crate) locality: Locality,
    pub(crate) spelling: Spelling,
}

/// What came of a replay.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Seconds to the first token, one for each request.
    pub(crate) ttfts: Vec<f64>,
    /// The share of prompt tokens that the engines found in their caches, by their own count.
    pub(crate) hit_ratio: f64,
}

/// Who sends the turns of one session.
struct Caller {
    proxies: Arc<[SocketAddr]>,
    /// Which proxy a request goes to.
    rng: fastrand::Rng,
    number: u64,
    block_tokens: NonZeroU32,
    spelling: Spelling,
}

// === impl Plan ===

impl Plan {
    /// Replays the workload through fresh proxies before fresh engines. Requests that fail, or take longer than a wait of
    /// the harness, end the test.
    pub(crate) async fn replay(self, workload: Workload) -> Replayed {
        let engines: Vec<SimEngine> = (0..BACKENDS).map(|number| self.start_engine(number)).collect();
        let mut proxies = Vec::new();
        for _ in 0..self.routers {
            proxies.push(self.start_proxy(&engines).await);
        }
        let requests = workload.requests();
        let ttfts = self.send(workload, proxies.iter().map(|proxy| proxy.addresses()[0]).collect()).await;

        let counts: Vec<_> = engines.iter().map(|engine| engine.state().engine).collect();
        assert_eq!(counts.iter().map(|count| count.finished).sum::<u64>(), requests as u64, "each was served once");
        let cached: u64 = counts.iter().map(|count| count.cached_tokens).sum();
        let asked: u64 = counts.iter().map(|count| count.queried_tokens).sum();
        for proxy in proxies {
            self.check_trust(proxy.admin_address()).await;
            proxy.stop().await;
        }
        Replayed { ttfts, hit_ratio: cached as f64 / asked as f64 }
    }

    async fn send(&self, workload: Workload, proxies: Arc<[SocketAddr]>) -> Vec<f64> {
        let (block_tokens, started) = (workload.block_tokens, Instant::now());
        let mut sessions = JoinSet::new();
        for (number, session) in (0..).zip(workload.sessions) {
            let (proxies, rng) = (Arc::clone(&proxies), fastrand::Rng::with_seed(number));
            let caller = Caller { proxies, rng, number, block_tokens, spelling: self.spelling };
            sessions.spawn(async move {
                sleep_until(started + session.start).await;
                caller.send(&session).await
            });
        }
        let mut ttfts = Vec::new();
        while let Some(ended) = sessions.join_next().await {
            ttfts.extend(ended.unwrap());
        }
        ttfts
    }

    fn start_engine(&self, number: usize) -> SimEngine {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = EngineOptions {
            name: format!("engine-{number}"),
            parameters: self.engine,
            seed: number as u64,
            kv_events: Some(KvEventOptions { replay: Some(any), ..KvEventOptions::at(any) }),
            ..EngineOptions::default()
        };
        SimEngine::start(options).unwrap()
    }

    /// A proxy that is ready: all backends are healthy and, if that is planned, followed.
    async fn start_proxy(&self, engines: &[SimEngine]) -> Server {
        let config = warmgate::config::parse(&self.configuration(engines), "replay").unwrap();
        let server = Server::start(config, None).await.unwrap();
        let admin = server.admin_address();
        eventually("every backend is ready", async || {
            let backends = backends(admin).await;
            backends.len() == BACKENDS && backends.iter().all(|backend| self.is_ready(backend))
        })
        .await;
        server
    }

    fn is_ready(&self, backend: &Value) -> bool {
        let is_followed = backend["kv_events"][0]["state"] == "live";
        backend["state"] == "healthy" && is_followed == (self.locality == Locality::Exact)
    }

    /// The events were believed to the end, if they were to be.
    async fn check_trust(&self, admin: SocketAddr) {
        for backend in backends(admin).await {
            assert_eq!(backend["trust"] == "exact", self.locality == Locality::Exact, "{backend}");
        }
    }

    /// The shadows are off, being much of a debug build's time, and so are probes after the first. Backends have no limits:
    /// the simulation that is compared has none.
    fn configuration(&self, engines: &[SimEngine]) -> String {
        let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: '{}'}}", engine.url())).collect();
        format!(
            "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
             logging: {{access_log: 'off', level: 'off'}}\nserver: {{drain_delay: 0s}}\npools:\n- name: p\n  engine: vllm\n  policy: cost\n  \
             shadow: false\n  max_in_flight: none\n  max_pending_prefill: none\n  block_tokens: {BLOCK_TOKENS}\n  kv_tokens: {}\n  \
             kv_events: {{enabled: {}}}\n  \
             health: {{interval: 5m, timeout: 20s}}\n  backends: [{}]\n",
            self.engine.kv_blocks * BLOCK_TOKENS,
            self.locality == Locality::Exact,
            backends.join(", "),
        )
    }
}

async fn backends(admin: SocketAddr) -> Vec<Value> {
    let report: Value = client::get(admin, "/backends").await.json();
    report["pools"][0]["backends"].as_array().unwrap().clone()
}

// === impl Caller ===

impl Caller {
    /// The turns of a session, one after the other; seconds to the first token of each.
    async fn send(mut self, session: &Session) -> Vec<f64> {
        let mut ttfts = Vec::new();
        for (turn, place) in session.turns.iter().zip(0_u64..) {
            sleep(turn.pause).await;
            ttfts.push(self.ask(turn, self.number << 32 | place).await.as_secs_f64());
        }
        ttfts
    }

    async fn ask(&mut self, turn: &Turn, name: u64) -> Duration {
        let body = body_of(turn, self.block_tokens, name, self.spelling).to_string();
        let proxy = self.proxies[self.rng.usize(..self.proxies.len())];
        let sent = Instant::now();
        let mut client = Client::connect(proxy).await;
        client.send("POST", "/v1/completions", "content-type: application/json\r\n", body.as_bytes()).await;
        let head = client.head().await.unwrap();
        let mut text = client.event().await.unwrap().unwrap_or_default();
        let ttft = sent.elapsed();
        while let Some(event) = client.event().await.unwrap() {
            text.push_str(&event);
        }
        let usage = format!("\"prompt_tokens\":{}", turn.prompt_tokens);
        let is_whole = text.contains(&usage) && text.trim_end().ends_with("[DONE]");
        assert!(head.second_word() == "200" && is_whole, "{}: {text}", head.second_word());
        ttft
    }
}
