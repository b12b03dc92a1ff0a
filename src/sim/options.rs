//! Everything that can be set about a simulated engine.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::engine::{Batching, Noise, Parameters, QueueOrder, Timing};
use super::fault::Order;
use super::publisher::KvEventOptions;

/// Settings of a simulated engine; the default is small enough to watch.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Sent as `x-sim-engine` with every answer.
    pub name: String,
    /// The model names that are served. A request for another one gets 404; a request without one is served.
    pub models: Vec<String>,
    /// Size and speed.
    pub parameters: Parameters,
    /// Seed of the generated text. Engines with one seed give one prompt one answer.
    pub seed: u64,
    /// Tokens generated for a request that does not say how many.
    pub output_tokens: u32,
    /// How long an idle connection stays open.
    pub idle_timeout: Duration,
    /// Most connections at a time; more wait to be accepted.
    pub max_connections: usize,
    /// Most bytes in one request body; more get 413.
    pub max_body_bytes: usize,
    /// Most bytes of bodies held at a time; a request beyond it gets 503.
    pub max_buffered_bytes: usize,
    /// The model's `tokenizer.json`, or the folder that it and its chat template are in. Without it four bytes of text are
    /// a token.
    pub tokenizer: Option<PathBuf>,
    /// How KV events are published, if they are.
    pub kv_events: Option<KvEventOptions>,
    /// The key that `/v1/...` and the discovery of KV events demand, if any.
    pub api_key: Option<ApiKey>,
    /// Faults from the start.
    pub faults: Vec<Order>,
}

/// A key that clients must send as `Authorization: Bearer KEY`. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

// === impl ApiKey ===

impl ApiKey {
    /// This key.
    pub fn new(key: String) -> Self {
        Self(key)
    }

    /// Whether the value of an `Authorization` header has it.
    pub(super) fn is_in(&self, authorization: &[u8]) -> bool {
        authorization.strip_prefix(b"Bearer ") == Some(self.0.as_bytes())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey")
    }
}

// === impl EngineOptions ===

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            name: String::from("sim"),
            models: vec![String::from("sim-model")],
            parameters: Parameters {
                timing: Timing::from_rates(8000.0, 100.0),
                block_tokens: 16,
                kv_blocks: 8192,
                max_num_seqs: 64,
                step_tokens: 2048,
                max_waiting: 4096,
                batching: Batching::Mixed,
                queue_order: QueueOrder::FirstCome,
                noise: Noise::default(),
            },
            seed: 0,
            output_tokens: 64,
            // vLLM's own default. A proxy that reuses connections has to live with it.
            idle_timeout: Duration::from_secs(5),
            max_connections: 1024,
            max_body_bytes: 256 << 20,
            max_buffered_bytes: 1 << 30,
            tokenizer: None,
            kv_events: None,
            api_key: None,
            faults: Vec::new(),
        }
    }
}
