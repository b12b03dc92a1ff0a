//! A simulated engine in this process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::fault::{Fault, Order};
use super::http::{self, Port};
use super::options::EngineOptions;
use super::publisher::{Serving, Sockets};
use super::shared::Shared;
use super::state::EngineState;
use super::tokens::Tokens;
use crate::kv_events::EngineHash;

/// A running engine. It serves on the runtime that started it until it is dropped or stopped.
#[derive(Debug)]
pub struct SimEngine {
    shared: Arc<Shared>,
    address: SocketAddr,
    task: JoinHandle<()>,
    kv_events: Option<Serving>,
}

// === impl SimEngine ===

impl SimEngine {
    /// Listens and serves. Must be called inside a Tokio runtime with time and network enabled.
    ///
    /// # Errors
    /// When a port cannot be had, the tokenizer cannot be read, or a fault is refused.
    pub fn start(options: EngineOptions) -> io::Result<Self> {
        let tokens = Tokens::load(options.tokenizer.as_deref(), options.max_body_bytes).map_err(io::Error::other)?;
        let port = Port::open(options.listen)?;
        let faults = options.faults.clone();
        let sockets = options.kv_events.as_ref().map(Sockets::open).transpose()?;
        let (address, shared) =
            (port.address(), Shared::new(options, tokens, sockets.as_ref().map(Sockets::publisher)));
        for order in faults {
            shared.inject(order).map_err(io::Error::other)?;
        }
        let kv_events = sockets.map(|sockets| sockets.serve(shared.gate()));
        let task = tokio::spawn(http::serve(port, Arc::clone(&shared)));
        Ok(Self { shared, address, task, kv_events })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// Counters, gauges, faults and the last requests.
    pub fn state(&self) -> EngineState {
        EngineState::of(&self.shared)
    }

    /// The blocks that a request could find now, by the names that KV events use; none without KV events.
    pub fn cached_names(&self) -> Vec<EngineHash> {
        self.shared.process().driver.cached_names()
    }

    /// Brings a fault about: for `count` requests, or until it is cleared. Refusing ends with [`SimEngine::clear_faults`].
    ///
    /// # Errors
    /// When more faults than it remembers wait for their turn; the text is for people.
    pub fn inject(&self, fault: Fault, count: Option<u32>) -> Result<(), String> {
        self.shared.inject(Order { fault, count })
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.shared.clear();
    }

    /// Stops, and returns when its ports and its connections are closed.
    pub async fn stop(mut self) {
        self.task.abort();
        // Cancelled is what it is meant to be.
        let _ = (&mut self.task).await;
        if let Some(serving) = self.kv_events.take() {
            serving.stop().await;
        }
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}
