//! A model of an inference engine: prefix cache, queue, continuous batching with chunked prefill.
//!
//! It is pure: callers say what time it is, and nothing happens between two calls. The same model answers over HTTP in real
//! time and runs inside the simulator in simulated time.
//!
//! Time goes in steps. A step gives every decoding sequence one token, spends what is left of the token budget on
//! prefill, oldest first, and admits from the queue, first come first served, while budget, sequence slots and KV blocks
//! last. Blocks for prompt and answer are reserved at admission, so nothing is ever preempted. Results appear at the end of
//! the step. This is the scheduler of vLLM's V1 engine, without what does not show from outside; [`Batching`] and
//! [`QueueOrder`] make it that of SGLang. [`Model`] names the engines that policies are judged on.
//!
//! Invariant: a request taken in either finishes, is aborted or is lost in a crash, once; when neither queue nor batch has
//! a request, the engine holds no block.

mod batch;
mod cache;
mod log;
mod model;
mod parameters;
mod queue;
mod request;
mod step;
mod timing;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;

pub use cache::{BlockCache, BlockId};
pub use log::Content;
pub use model::Model;
pub use parameters::{Batching, LONGEST_MATCH_QUEUE, Noise, Parameters, QueueOrder};
pub use request::{Event, EventDetail, EventKind, Load, Rejected, Request, RequestId, Totals};
pub use timing::Timing;

use crate::kv_events::{self, EngineHash};
use crate::prefix::BlockHash;
use crate::time::Moment;
use batch::Batch;
use queue::{Queue, Waiting};
use step::Step;

/// The engine.
#[derive(Debug)]
pub struct Engine {
    parameters: Parameters,
    /// Locked for single operations, never for a step. Nobody else has it unless it is shared.
    cache: Arc<Mutex<BlockCache>>,
    is_cache_shared: bool,
    queue: Queue,
    batch: Batch,
    /// `None` when idle.
    step: Option<Step>,
    /// The next step starts no earlier: the end of the last one, or when to look again for blocks.
    free_from: Moment,
    slowdown: f64,
    detail: EventDetail,
    rng: fastrand::Rng,
    next_id: u64,
    totals: Totals,
    /// KV events of steps that have ended, if anyone listens.
    batches: Option<Vec<kv_events::Batch>>,
}

// === impl Engine ===

impl Engine {
    /// An idle engine with an empty cache of its own.
    pub fn new(parameters: Parameters) -> Self {
        let cache = Arc::new(Mutex::new(BlockCache::new(parameters.kv_blocks)));
        Self { is_cache_shared: false, ..Self::with_cache(parameters, cache) }
    }

    /// An idle engine that shares a cache with others, whose size replaces `parameters.kv_blocks`. It sees what they have
    /// done to it so far: to make sense, the engines are advanced in the order of their next events. A full cache makes
    /// its requests wait until any of them frees blocks.
    pub fn with_cache(parameters: Parameters, cache: Arc<Mutex<BlockCache>>) -> Self {
        let kv_blocks = cache.lock().capacity();
        let parameters = Parameters { kv_blocks, ..parameters }.checked();
        Self {
            parameters,
            cache,
            is_cache_shared: true,
            queue: Queue::new(parameters.queue_order),
            batch: Batch::default(),
            step: None,
            free_from: Moment::ORIGIN,
            slowdown: 1.0,
            detail: EventDetail::default(),
            rng: fastrand::Rng::with_seed(parameters.noise.seed),
            next_id: 0,
            totals: Totals::default(),
            batches: None,
        }
    }

    /// Notes from now on how the cache changes, for [`Engine::take_batches`]. Blocks are named by their hashes and `seed`,
    /// which no two processes of an engine should have in common. Not for engines that share a cache.
    pub fn listen(&mut self, seed: u64) {
        self.cache.lock().listen(seed);
        self.batches = Some(Vec::new());
    }

    /// The most tokens, of prompt and answer together, that one request may have.
    pub fn limit_tokens(&self) -> u64 {
        u64::from(self.parameters.kv_blocks) * u64::from(self.parameters.block_tokens)
    }

    /// Queues a request. Its first step starts when the caller advances to `now` or beyond; requests queued at the same
    /// moment start together.
    pub fn submit(&mut self, mut request: Request, now: Moment) -> Result<RequestId, Rejected> {
        request.prompt_tokens = request.prompt_tokens.max(1);
        let limit_tokens = self.limit_tokens();
        let tokens = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        if tokens > limit_tokens {
            return Err(Rejected::TooLong { limit_tokens });
        }
        if self.queue.len() >= self.parameters.max_waiting {
            self.totals.rejected += 1;
            return Err(Rejected::QueueFull);
        }
        let block_tokens = self.parameters.block_tokens;
        // At most `kv_blocks`, as was just checked.
        let total_blocks = tokens.div_ceil(u64::from(block_tokens)) as u32;
        request.chain.truncate(total_blocks as usize);
        // The last prompt token is always computed: its output is the first token.
        let findable = request.chain.len().min(((request.prompt_tokens - 1) / block_tokens) as usize);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.totals.submitted += 1;
        self.queue.push(Waiting { id, request, submitted_at: now, total_blocks, findable, matched: None });
        Ok(id)
    }

    /// Gives a request up. What it holds is free at once if it waits, and at the end of the step in progress if it runs:
    /// a chunk that was started is finished. False if the request has ended in any way before, or is unknown.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if !self.queue.remove(id) {
            let is_live = |sequence: &&mut batch::Sequence| sequence.id == id && !sequence.is_aborted;
            let Some(sequence) = self.batch.sequences.iter_mut().find(is_live) else { return false };
            sequence.is_aborted = true;
        }
        self.totals.aborted += 1;
        true
    }

    /// Loses all requests and the step in progress at once, as a process that dies; returns the requests that had not
    /// ended, which count as aborted. The cache is empty afterwards if it is the engine's own. The engine takes requests
    /// again right away: how long it is down is the caller's business. Counts and settings stay; nobody listens any more.
    pub fn crash(&mut self) -> Vec<RequestId> {
        let lost = std::mem::take(&mut self.batch);
        (self.step, self.batches) = (None, None);
        {
            let mut cache = self.cache.lock();
            if self.is_cache_shared {
                lost.sequences.iter().for_each(|sequence| cache.release(&sequence.blocks));
            } else {
                *cache = BlockCache::new(self.parameters.kv_blocks);
            }
        }
        let live = lost.sequences.iter().filter(|sequence| !sequence.is_aborted).map(|sequence| sequence.id);
        let ids: Vec<RequestId> = live.chain(self.queue.drain()).collect();
        self.totals.aborted += ids.len() as u64;
        ids
    }

    /// When something will happen next: the time to call [`Engine::advance`] with. `None` when there is nothing to do.
    pub fn next_event_at(&self) -> Option<Moment> {
        match self.step {
            Some(step) => Some(step.ends_at),
            None => self.queue.first_at().map(|first| first.max(self.free_from)),
        }
    }

    /// Runs all steps that end at or before `now`, and starts the next one. The events come in order of time.
    pub fn advance(&mut self, now: Moment) -> Vec<Event> {
        let mut events = Vec::new();
        self.advance_into(now, &mut events);
        events
    }

    /// As [`Engine::advance`], with the events put behind those in `events`.
    pub fn advance_into(&mut self, now: Moment, events: &mut Vec<Event>) {
        while let Some(at) = self.next_event_at().filter(|&at| at <= now) {
            if let Some(step) = self.step.take() {
                self.finish_step(step, events);
                if let Some(batches) = &mut self.batches {
                    batches.extend(self.cache.lock().take_batch());
                }
            }
            self.free_from = at;
            self.start_step(at, events);
        }
    }

    /// The KV events since this was last asked: a batch for each step that had any. They have neither time nor rank.
    pub fn take_batches(&mut self) -> Vec<kv_events::Batch> {
        self.batches.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Empties the prefix cache. What runs goes on, and leaves nothing behind that can be found. Who listens is told with
    /// the events of the next step that ends, as by vLLM.
    pub fn clear_cache(&mut self) {
        let mut cache = self.cache.lock();
        cache.forget();
        if let Some(log) = cache.log() {
            log.cleared();
        }
        drop(cache);
        let block_tokens = self.parameters.block_tokens;
        self.batch.sequences.iter_mut().for_each(|sequence| sequence.forget(block_tokens));
    }

    /// The names of all blocks that can be found; none if nobody listens.
    pub fn cached_names(&self) -> Vec<EngineHash> {
        self.cache.lock().names()
    }

    /// Makes every step from the next one on `factor` times as long; 1 is the normal speed.
    pub fn set_slowdown(&mut self, factor: f64) {
        self.slowdown = if factor.is_finite() { factor.max(0.0) } else { 1.0 };
    }

    /// Chooses which events there are from now on.
    pub fn set_detail(&mut self, detail: EventDetail) {
        self.detail = detail;
    }

    /// What has been counted since the engine was made.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What is held now.
    pub fn load(&self) -> Load {
        let cache = self.cache.lock();
        Load {
            running: self.batch.len(),
            waiting: self.queue.len(),
            held_blocks: cache.held(),
            cached_blocks: cache.cached(),
        }
    }

    /// How many leading blocks of `chain` the prefix cache has.
    pub fn matched_blocks(&self, chain: &[BlockHash]) -> usize {
        self.cache.lock().matched(chain)
    }
}
