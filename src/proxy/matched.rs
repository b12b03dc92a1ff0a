//! What each backend is believed to hold of a request's prompts, and how far that is trusted.

use smallvec::SmallVec;

use super::plan::{Plan, PromptBlocks};
use crate::locality::{LocalityIndex, Matches};
use crate::pool::{BackendSnapshot, PoolSnapshot, Prediction, Trust};
use crate::routing::INLINE;

/// One element for each backend of a pool, by its index there.
#[derive(Debug)]
pub struct Matched {
    /// Cached tokens that decisions reckon with.
    pub tokens: SmallVec<[u32; INLINE]>,
    /// What each belief says by itself, trusted or not.
    pub predictions: SmallVec<[Prediction; INLINE]>,
}

/// What is believed of one backend, summed over prompts.
#[derive(Debug, Clone, Copy, Default)]
struct Believed {
    /// By our own decisions, requests in flight included.
    expected: u64,
    /// The same without these.
    assumed: u64,
}

// === impl Plan ===

impl Plan {
    /// Cached tokens of the prompts at each backend of `pool`.
    pub fn matched(&self, index: &LocalityIndex, pool: &PoolSnapshot) -> Matched {
        let mut believed: SmallVec<[Believed; INLINE]> = SmallVec::from_elem(Believed::default(), pool.backends.len());
        let mut matches = Matches::new();
        for prompt in self.prompts() {
            index.lookup(&prompt.chain.blocks, &mut matches);
            for (believed, backend) in believed.iter_mut().zip(&pool.backends) {
                believed.add(prompt, &matches, backend);
            }
        }
        let tokens = believed.iter().zip(&pool.backends).map(|(believed, backend)| believed.trusted(backend));
        Matched { tokens: tokens.collect(), predictions: believed.iter().map(Believed::prediction).collect() }
    }
}

// === impl Believed ===

impl Believed {
    fn add(&mut self, prompt: &PromptBlocks, matches: &Matches, backend: &BackendSnapshot) {
        let held = matches.held(backend.tenant);
        self.expected += prompt.tokens_in(held.blocks);
        self.assumed += prompt.tokens_in(held.assumed);
    }

    fn trusted(&self, backend: &BackendSnapshot) -> u32 {
        match backend.trust() {
            Trust::Assumed | Trust::Exact => clamped(self.expected),
            Trust::LoadOnly => 0,
        }
    }

    fn prediction(&self) -> Prediction {
        Prediction { assumed: clamped(self.assumed), exact: None }
    }
}

fn clamped(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
