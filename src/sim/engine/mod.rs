//! A model of an inference engine: prefix cache, queue, continuous batching with chunked prefill.
//!
//! It is pure: callers say what time it is, and nothing happens between two calls. The same model answers over HTTP in real
//! time and runs inside the simulator in simulated time.
//!
//! Time goes in steps. A step gives every decoding sequence one token, spends what is left of the token budget on
//! prefill, oldest first, and admits from the queue, first come first served, while budget, sequence slots and KV blocks
//! last. Blocks for prompt and answer are reserved at admission, so nothing is ever preempted. Results appear at the end of
//! the step. This is the scheduler of vLLM's V1 engine, without what does not show from outside.
//!
//! Invariant: a request taken in either finishes or is aborted, once; when neither queue nor batch has a request, no
//! block is held.

mod cache;
mod request;
mod timing;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use cache::{BlockCache, BlockId};
pub use request::{Event, EventKind, Load, Rejected, Request, RequestId, Totals};
pub use timing::Timing;

use crate::time::Moment;

/// The size and speed of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// How long steps take.
    pub timing: Timing,
    /// Tokens a block; at least 1.
    pub block_tokens: u32,
    /// Blocks in the KV cache; at least 1.
    pub kv_blocks: u32,
    /// Most sequences in the batch; at least 1.
    pub max_num_seqs: usize,
    /// Most tokens a step computes: decoding sequences take one each, prefill gets the rest; at least 1.
    pub step_tokens: u32,
    /// Most requests in the queue.
    pub max_waiting: usize,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    parameters: Parameters,
    cache: BlockCache,
    waiting: VecDeque<Waiting>,
    /// In the order of admission, which is the order of submission.
    running: Vec<Running>,
    /// When the step in progress ends; `None` when idle.
    step_ends_at: Option<Moment>,
    /// The end of the last step: the next one starts no earlier.
    free_from: Moment,
    slowdown: f64,
    next_id: u64,
    totals: Totals,
}

#[derive(Debug)]
struct Waiting {
    id: RequestId,
    request: Request,
    submitted_at: Moment,
}

#[derive(Debug)]
struct Running {
    id: RequestId,
    request: Request,
    blocks: Vec<BlockId>,
    /// Tokens whose KV entries exist.
    computed: u32,
    /// Leading blocks that can be found by their hash, or could have been.
    published: usize,
    /// Tokens that came out.
    generated: u32,
    /// Tokens that the step in progress adds to `computed`.
    scheduled: u32,
    is_aborted: bool,
}

// === impl Engine ===

impl Engine {
    /// An idle engine with an empty cache.
    pub fn new(parameters: Parameters) -> Self {
        let parameters = Parameters {
            block_tokens: parameters.block_tokens.max(1),
            kv_blocks: parameters.kv_blocks.clamp(1, BlockId::MAX - 1),
            max_num_seqs: parameters.max_num_seqs.max(1),
            step_tokens: parameters.step_tokens.max(1),
            ..parameters
        };
        Self {
            parameters,
            cache: BlockCache::new(parameters.kv_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            step_ends_at: None,
            free_from: Moment::ORIGIN,
            slowdown: 1.0,
            next_id: 0,
            totals: Totals::default(),
        }
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
        if u64::from(request.prompt_tokens) + u64::from(request.output_tokens) > limit_tokens {
            return Err(Rejected::TooLong { limit_tokens });
        }
        if self.waiting.len() >= self.parameters.max_waiting {
            self.totals.rejected += 1;
            return Err(Rejected::QueueFull);
        }
        request.chain.truncate(self.total_blocks(&request) as usize);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.totals.submitted += 1;
        // The queue is ordered by time whatever the caller's clock does.
        let submitted_at = self.waiting.back().map_or(now, |last| now.max(last.submitted_at));
        self.waiting.push_back(Waiting { id, request, submitted_at });
        Ok(id)
    }

    /// Gives a request up. What it holds is free at once if it waits, and at the end of the step in progress if it runs:
    /// a chunk that was started is finished. False if the request has finished, was aborted before, or is unknown.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if let Some(place) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.waiting.remove(place);
        } else if let Some(running) = self.running.iter_mut().find(|running| running.id == id && !running.is_aborted) {
            running.is_aborted = true;
        } else {
            return false;
        }
        self.totals.aborted += 1;
        true
    }

    /// When something will happen next: the time to call [`Engine::advance`] with. `None` when there is nothing to do.
    pub fn next_event_at(&self) -> Option<Moment> {
        self.step_ends_at.or_else(|| self.waiting.front().map(|first| first.submitted_at.max(self.free_from)))
    }

    /// Runs all steps that end at or before `now`, and starts the next one. The events come in order of time.
    pub fn advance(&mut self, now: Moment) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(at) = self.next_event_at().filter(|&at| at <= now) {
            if self.step_ends_at.take().is_some() {
                self.finish_step(at, &mut events);
            }
            self.free_from = at;
            self.start_step(at, &mut events);
        }
        events
    }

    /// Makes every step from the next one on `factor` times as long; 1 is the normal speed.
    pub fn set_slowdown(&mut self, factor: f64) {
        self.slowdown = if factor.is_finite() { factor.max(0.0) } else { 1.0 };
    }

    /// What has been counted since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What is held now.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            held_blocks: self.cache.held(),
            cached_blocks: self.cache.cached(),
        }
    }

    /// How many leading blocks of `chain` the prefix cache has.
    pub fn matched_blocks(&self, chain: &[crate::prefix::BlockHash]) -> usize {
        self.cache.matched(chain)
    }

    fn total_blocks(&self, request: &Request) -> u32 {
        // At most `kv_blocks`: `submit` has checked it.
        let tokens = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        tokens.div_ceil(u64::from(self.parameters.block_tokens)) as u32
    }

    /// Chooses what the step that starts `at` computes. Leaves the engine idle if there is nothing.
    fn start_step(&mut self, at: Moment, events: &mut Vec<Event>) {
        let decoding = self.running.iter().filter(|running| running.is_decoding()).count() as u32;
        let mut budget = self.parameters.step_tokens.saturating_sub(decoding);
        let mut prefill_seconds = 0.0;
        let timing = self.parameters.timing;
        for running in &mut self.running {
            prefill_seconds += running.schedule(&mut budget, &timing);
        }
        while budget > 0 && self.running.len() < self.parameters.max_num_seqs {
            let Some(mut admitted) = self.admit(at, events) else { break };
            prefill_seconds += admitted.schedule(&mut budget, &timing);
            self.running.push(admitted);
        }
        if self.running.is_empty() {
            return;
        }
        let kv_tokens = self.running.iter().map(|running| u64::from(running.computed)).sum();
        let length = timing.step(prefill_seconds, self.running.len(), kv_tokens);
        self.step_ends_at = Some(at + length.mul_f64(self.slowdown).max(MIN_STEP));
    }

    /// Takes the first of the queue if it was there by `at` and its blocks can be had.
    fn admit(&mut self, at: Moment, events: &mut Vec<Event>) -> Option<Running> {
        let first = self.waiting.front().filter(|first| first.submitted_at <= at)?;
        // The last prompt token is always computed: its output is the first token.
        let findable = ((first.request.prompt_tokens - 1) / self.parameters.block_tokens) as usize;
        let chain = &first.request.chain[..findable.min(first.request.chain.len())];
        let matched = self.cache.matched(chain);
        let blocks = self.cache.take(&chain[..matched], self.total_blocks(&first.request))?;
        let Waiting { id, request, .. } = self.waiting.pop_front()?;
        let cached_tokens = matched as u32 * self.parameters.block_tokens;
        self.totals.queried_tokens += u64::from(request.prompt_tokens);
        self.totals.cached_tokens += u64::from(cached_tokens);
        events.push(Event { id, at, kind: EventKind::Admitted { cached_tokens } });
        Some(Running {
            id,
            request,
            blocks,
            computed: cached_tokens,
            published: matched,
            generated: 0,
            scheduled: 0,
            is_aborted: false,
        })
    }

    fn finish_step(&mut self, at: Moment, events: &mut Vec<Event>) {
        let mut running = std::mem::take(&mut self.running);
        running.retain_mut(|running| {
            let stays = !running.is_aborted && !self.finish_sequence(running, at, events);
            if !stays {
                self.cache.release(&running.blocks);
            }
            stays
        });
        self.running = running;
    }

    /// Applies a step to one sequence; true if it has finished.
    fn finish_sequence(&mut self, running: &mut Running, at: Moment, events: &mut Vec<Event>) -> bool {
        let was_decoding = running.is_decoding();
        running.computed += running.scheduled;
        self.publish(running);
        if running.scheduled == 0 || running.computed < running.request.prompt_tokens {
            return false;
        }
        if !was_decoding {
            self.totals.prompt_tokens += u64::from(running.request.prompt_tokens);
        }
        if running.generated < running.request.output_tokens {
            events.push(Event { id: running.id, at, kind: EventKind::Token { index: running.generated } });
            running.generated += 1;
            self.totals.generated_tokens += 1;
        }
        let is_finished = running.generated >= running.request.output_tokens;
        if is_finished {
            events.push(Event { id: running.id, at, kind: EventKind::Finished });
            self.totals.finished += 1;
        }
        is_finished
    }

    fn publish(&mut self, running: &mut Running) {
        let full = (running.computed / self.parameters.block_tokens) as usize;
        for place in running.published..full.min(running.request.chain.len()) {
            self.cache.publish(running.blocks[place], running.request.chain[place]);
        }
        running.published = running.published.max(full);
    }
}

const MIN_STEP: std::time::Duration = std::time::Duration::from_micros(1);

// === impl Running ===

impl Running {
    fn is_decoding(&self) -> bool {
        self.generated > 0
    }

    /// Gives the sequence its share of a step; returns the prefill seconds that it costs.
    fn schedule(&mut self, budget: &mut u32, timing: &Timing) -> f64 {
        if self.is_decoding() {
            self.scheduled = 1;
            return 0.0;
        }
        self.scheduled = (self.request.prompt_tokens - self.computed).min(*budget);
        *budget -= self.scheduled;
        timing.prefill_seconds(self.computed, self.computed + self.scheduled)
    }
}
