//! Simulated engines that publish KV events, and a proxy that follows them.

use std::net::SocketAddr;

use serde_json::{Value, json};
use warmgate::kv_events::Form;
use warmgate::server::Server;
use warmgate::sim::engine::{Parameters, Timing};
use warmgate::sim::{EngineOptions, KvEventOptions, SimEngine};

use crate::common::{client, eventually};

/// Tokens of a block. Blocks are cut by the engines' own size.
pub(crate) const BLOCK: u32 = 16;

/// The header of a body.
pub(crate) const JSON: &str = "content-type: application/json\r\n";

/// Engines behind one proxy.
pub(crate) struct Fleet {
    pub(crate) engines: Vec<SimEngine>,
    pub(crate) server: Server,
}

/// What came of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) backend: String,
    /// Cached tokens that the proxy reckoned with.
    pub(crate) predicted: u64,
    /// Cached tokens that the engine found.
    pub(crate) cached: u64,
}

/// A fast engine with `kv_blocks` blocks that publishes events in this form, replays included.
pub(crate) fn options(kv_blocks: u32, form: Form) -> EngineOptions {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let parameters = EngineOptions::default().parameters;
    EngineOptions {
        parameters: Parameters {
            timing: Timing::from_rates(400_000.0, 4_000.0),
            block_tokens: BLOCK,
            kv_blocks,
            ..parameters
        },
        kv_events: Some(KvEventOptions { replay: Some(any), form, ..KvEventOptions::at(any) }),
        ..EngineOptions::default()
    }
}

// === impl Fleet ===

impl Fleet {
    /// Engines with these options behind a proxy that asks them where their events are; `keys` are further lines of the
    /// pool. Returns when all are healthy and followed.
    pub(crate) async fn start(options: Vec<EngineOptions>, keys: &str) -> Self {
        let fleet = Self::start_unfollowed(options, keys).await;
        eventually("every engine is followed", async || {
            fleet.backends().await.iter().all(|backend| backend["kv_events"][0]["state"] == "live")
        })
        .await;
        fleet
    }

    /// The same, but returns when all are healthy.
    pub(crate) async fn start_unfollowed(options: Vec<EngineOptions>, keys: &str) -> Self {
        let engines: Vec<SimEngine> = options.into_iter().map(|options| SimEngine::start(options).unwrap()).collect();
        let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: '{}'}}", engine.url())).collect();
        Self::behind(engines, &backends.join(", "), keys).await
    }

    /// These engines, as backends that are spelled out.
    pub(crate) async fn behind(engines: Vec<SimEngine>, backends: &str, keys: &str) -> Self {
        let text = format!(
            "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
             logging: {{access_log: 'off', level: 'off'}}\nserver: {{drain_delay: 0s}}\npools:\n- name: p\n  engine: vllm\n  \
             kv_events: {{enabled: true, silent_after: 8}}\n  metrics: {{interval: 100ms}}\n  \
             backends: [{backends}]\n{keys}"
        );
        let config = warmgate::config::parse(&text, "exact").unwrap_or_else(|problems| panic!("{problems}\n{text}"));
        let server = Server::start(config, None).await.unwrap();
        let fleet = Self { engines, server };
        eventually("every backend is healthy", async || {
            fleet.backends().await.iter().all(|backend| backend["state"] == "healthy")
        })
        .await;
        fleet
    }

    /// What `/backends` says.
    pub(crate) async fn backends(&self) -> Vec<Value> {
        let report: Value = client::get(self.server.admin_address(), "/backends").await.json();
        report["pools"][0]["backends"].as_array().unwrap().clone()
    }

    /// Whether `/metrics` has a line that begins and ends so.
    pub(crate) async fn counts(&self, begin: &str, end: &str) -> bool {
        let metrics = client::get(self.server.admin_address(), "/metrics").await.text();
        metrics.lines().any(|line| line.starts_with(begin) && line.ends_with(end))
    }

    /// The trust in the first backend.
    pub(crate) async fn trust(&self) -> String {
        self.backends().await[0]["trust"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt of token ids.
    pub(crate) async fn complete(&self, ids: &[u32], max_tokens: u32) -> Served {
        let body = json!({"prompt": ids, "max_tokens": max_tokens}).to_string();
        let reply = client::post(self.server.addresses()[0], "/v1/completions", JSON, body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let usage: Value = reply.json();
        let predicted = reply.header("x-warmgate-cached").unwrap().split('/').next().unwrap().parse().unwrap();
        Served {
            backend: reply.header("x-warmgate-backend").unwrap().to_owned(),
            predicted,
            cached: usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        }
    }

    /// What `/explain` says of a prompt of token ids.
    pub(crate) async fn explain(&self, ids: &[u32]) -> Value {
        let body = json!({"prompt": ids}).to_string();
        client::post(self.server.admin_address(), "/explain?path=/v1/completions", "", body.as_bytes()).await.json()
    }

    /// Waits until the proxy has every message that the engines have published, those that were lost included.
    pub(crate) async fn settle(&self) {
        eventually("the proxy has heard everything", async || {
            let backends = self.backends().await;
            self.engines.iter().zip(backends).all(|(engine, backend)| {
                let next_seq = engine.state().kv_events.unwrap().next_seq;
                next_seq == 0 || backend["kv_events"][0]["last_seq"] == json!(next_seq - 1)
            })
        })
        .await;
    }
}
