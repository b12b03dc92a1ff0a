//! Engines to judge a policy on: three that differ in speed and in scheduling, so that it is not fitted to one, and the
//! small one of a published comparison.

use super::parameters::{Batching, Noise, Parameters, QueueOrder};
use super::timing::Timing;

/// A named engine. Its cache is sized by who uses it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Model {
    /// A 70B-class model on eight accelerators, scheduled as vLLM does: [`Timing::REFERENCE`], chunks of 2,048 tokens,
    /// first come, first served.
    #[default]
    Reference,
    /// The same on hardware 2.6 times as fast, scheduled as SGLang does: prefill first, in chunks of 8,192 tokens, longest
    /// match first; steps of the same work differ by 20 %.
    PrefillFirst,
    /// 8,000 prompt tokens a second whatever their number, and decoding that is nearly free: 1 ms a step.
    Linear,
    /// A small model: about 30 ms to the first token for 150 uncached tokens and 61 ms for 2,400, a step a prompt.
    Small,
}

// === impl Model ===

impl Model {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Reference, Self::PrefillFirst, Self::Linear, Self::Small];

    /// Its name on a command line and in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::PrefillFirst => "prefill_first",
            Self::Linear => "linear",
            Self::Small => "small",
        }
    }

    /// The model with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }

    /// Its parameters with a cache of `kv_blocks` blocks of `block_tokens` tokens. Nothing bounds its queue but the caller.
    /// Engines of a fleet should get different seeds in `noise`.
    pub fn parameters(self, block_tokens: u32, kv_blocks: u32) -> Parameters {
        let base = Parameters {
            timing: Timing::REFERENCE,
            block_tokens,
            kv_blocks,
            max_num_seqs: 256,
            step_tokens: 2048,
            max_waiting: usize::MAX,
            batching: Batching::Mixed,
            queue_order: QueueOrder::FirstCome,
            noise: Noise::default(),
        };
        match self {
            Self::Reference => base,
            Self::PrefillFirst => Parameters {
                timing: Timing::REFERENCE.faster(2.6),
                step_tokens: 8192,
                batching: Batching::PrefillFirst,
                queue_order: QueueOrder::LongestMatch,
                noise: Noise { share: 0.2, seed: 0 },
                ..base
            },
            Self::Linear => Parameters { timing: Timing::from_rates(8000.0, 1000.0), ..base },
            Self::Small => Parameters { timing: Timing::SMALL, step_tokens: 8192, ..base },
        }
    }
}
