//! What a simulated engine tells about itself: `GET /sim/state`, and the same to the program it runs in.

use std::sync::Arc;

use serde::Serialize;

use super::fault::Order;
use super::process::{Counts, Received};
use super::publisher::KvEventState;
use super::shared::Shared;

/// A simulated engine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineState {
    /// Its name.
    pub name: String,
    /// 1, and one more for each restart; all counts are of this generation.
    pub generation: u64,
    /// Seconds since the epoch.
    pub started_at: f64,
    /// Requests that carried a prompt.
    pub requests: Counts,
    /// The engine's own view of them.
    pub engine: Inside,
    /// What is published of its KV blocks, if anything is.
    pub kv_events: Option<KvEventState>,
    /// Faults in force.
    pub faults: Vec<Order>,
    /// The last requests whose bodies were read.
    pub received: Vec<Received>,
}

/// Inside the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Inside {
    /// Requests in the batch.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests that ran to their end.
    pub finished: u64,
    /// Requests given up.
    pub aborted: u64,
    /// KV blocks in use.
    pub held_blocks: u32,
    /// KV blocks that can be found.
    pub cached_blocks: usize,
    /// KV blocks there are.
    pub kv_blocks: u32,
    /// Prompt tokens of admitted requests.
    pub queried_tokens: u64,
    /// Those found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
}

// === impl EngineState ===

impl EngineState {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        let process = shared.process();
        let report = process.driver.report();
        let (load, totals) = (report.load, report.totals);
        Self {
            name: shared.options.name.clone(),
            generation: process.generation,
            started_at: process.started_at,
            requests: process.counts(),
            engine: Inside {
                running: load.running,
                waiting: load.waiting,
                finished: totals.finished,
                aborted: totals.aborted,
                held_blocks: load.held_blocks,
                cached_blocks: load.cached_blocks,
                kv_blocks: shared.options.parameters.kv_blocks,
                queried_tokens: totals.queried_tokens,
                cached_tokens: totals.cached_tokens,
                generated_tokens: totals.generated_tokens,
            },
            kv_events: shared.publisher().map(|publisher| publisher.state()),
            faults: shared.faults(),
            received: process.received(),
        }
    }
}
