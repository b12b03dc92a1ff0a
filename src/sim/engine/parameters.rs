//! The size, speed and manners of an engine.

use super::timing::Timing;

/// The size and speed of an engine, and how it orders its work.
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
    /// Most tokens a step computes; at least 1. See [`Batching`] for who shares them.
    pub step_tokens: u32,
    /// Most requests in the queue.
    pub max_waiting: usize,
    /// Who takes part in a step.
    pub batching: Batching,
    /// Who leaves the queue first.
    pub queue_order: QueueOrder,
    /// How much steps of the same work differ.
    pub noise: Noise,
}

/// Who takes part in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Batching {
    /// Every decoding sequence takes a token of the step's budget, prefill gets the rest. So does vLLM's V1 engine.
    #[default]
    Mixed,
    /// While there is prefill to do, a step does nothing else, with the whole budget; decoding sequences wait. So does
    /// SGLang's scheduler.
    PrefillFirst,
}

/// Who leaves the queue first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    FirstCome,
    /// The request with the longest match in the prefix cache, by what the cache has when the step starts; of equals the
    /// one that came first. While more than [`LONGEST_MATCH_QUEUE`] wait it is first come, first served. So does SGLang's
    /// `lpm` policy, without what it does for requests that share a prefix among themselves only.
    LongestMatch,
}

/// A queue longer than this is not searched for matches. SGLang's number: looking all of them up costs more than it saves.
pub const LONGEST_MATCH_QUEUE: usize = 128;

/// Each step's length is multiplied by a factor drawn uniformly around 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Noise {
    /// Standard deviation of the factor: 0 (none) to 0.5, so that it stays well above zero.
    pub share: f64,
    /// Engines with one seed draw the same factors.
    pub seed: u64,
}

// === impl Parameters ===

impl Parameters {
    /// The nearest parameters that make sense.
    pub(super) fn checked(self) -> Self {
        let share = if self.noise.share.is_finite() { self.noise.share.clamp(0.0, 0.5) } else { 0.0 };
        Self {
            block_tokens: self.block_tokens.max(1),
            max_num_seqs: self.max_num_seqs.max(1),
            step_tokens: self.step_tokens.max(1),
            noise: Noise { share, ..self.noise },
            ..self
        }
    }
}

// === impl Noise ===

impl Noise {
    /// The factor of one step.
    pub(super) fn draw(&self, rng: &mut fastrand::Rng) -> f64 {
        // A uniform variable on -1..1 has a standard deviation of the root of a third.
        1.0 + self.share * 3f64.sqrt() * (2.0 * rng.f64() - 1.0)
    }
}
