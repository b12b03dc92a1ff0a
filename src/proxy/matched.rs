//! What each backend is believed to hold of a request's prompts, and how far that is trusted.

use std::cell::RefCell;

use smallvec::SmallVec;

use super::blocks::{IdBlocks, PromptBlocks};
use super::plan::Plan;
use crate::locality::{ExactIndex, ExactMatches, LocalityIndex, Matches, TierBlocks};
use crate::pool::{BackendSnapshot, ExactPrediction, PoolSnapshot, Prediction, TierCredits, Trust};
use crate::routing::INLINE;

thread_local! {
    /// A buffer for lookups.
    static MATCHES: RefCell<Matches> = RefCell::new(Matches::new());
}

/// One element for each backend of a pool, by its index there.
#[derive(Debug)]
pub struct Matched {
    /// Cached tokens that decisions reckon with.
    pub tokens: SmallVec<[u32; INLINE]>,
    /// What each belief says by itself, trusted or not.
    pub predictions: SmallVec<[Prediction; INLINE]>,
}

/// What is believed of one backend: tokens, summed over prompts.
#[derive(Debug, Clone, Copy, Default)]
struct Believed {
    /// By our own decisions, requests in flight included.
    expected: u64,
    /// By our own decisions alone.
    assumed: u64,
    /// By requests in flight alone.
    in_flight: u64,
    /// By KV events, where they can tell.
    exact: Option<Exact>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Exact {
    /// All that is somewhere.
    held: u64,
    /// What that is worth of tokens on the GPU.
    worth: u64,
}

// === impl Plan ===

impl Plan {
    /// Cached tokens of the prompts at each backend of `pool`.
    pub fn matched(&self, index: &LocalityIndex, events: &ExactIndex, pool: &PoolSnapshot) -> Matched {
        let mut believed: SmallVec<[Believed; INLINE]> = SmallVec::from_elem(Believed::default(), pool.backends.len());
        let mut held = ExactMatches::new();
        for prompt in self.prompts() {
            MATCHES.with_borrow_mut(|matches| {
                index.lookup(&prompt.chain.blocks, matches);
                for (believed, backend) in believed.iter_mut().zip(&pool.backends) {
                    believed.assume(prompt, matches, backend);
                }
            });
            for blocks in &prompt.by_ids {
                events.lookup(&blocks.hashes, &mut held);
                for (believed, backend) in believed.iter_mut().zip(&pool.backends) {
                    believed.hear(prompt, blocks, &held, backend, pool.credits);
                }
            }
        }
        let tokens = believed.iter().zip(&pool.backends).map(|(believed, backend)| believed.trusted(backend));
        Matched { tokens: tokens.collect(), predictions: believed.iter().map(Believed::prediction).collect() }
    }
}

// === impl Believed ===

impl Believed {
    fn assume(&mut self, prompt: &PromptBlocks, matches: &Matches, backend: &BackendSnapshot) {
        let held = matches.held(backend.tenant);
        self.expected += prompt.tokens_in(held.blocks);
        self.assumed += prompt.tokens_in(held.assumed);
        self.in_flight += prompt.tokens_in(held.in_flight);
    }

    /// Adds what the backend's events say of a prompt whose `blocks` have the size of its own.
    fn hear(
        &mut self,
        prompt: &PromptBlocks,
        blocks: &IdBlocks,
        matches: &ExactMatches,
        backend: &BackendSnapshot,
        credits: TierCredits,
    ) {
        let tenants = backend.event_tenants().filter(|tenant| tenant.block_tokens() == Some(blocks.block_tokens));
        // An engine's ranks have caches of their own; it is not known which of them a request will meet.
        let best = tenants.map(|tenant| matches.levels(tenant.slot())).max_by_key(|levels| levels.total());
        let Some(levels) = best else { return };
        let exact = self.exact.get_or_insert_default();
        let levels = computed_anew(levels, prompt.tokens, blocks.block_tokens.get());
        let block_tokens = f64::from(blocks.block_tokens.get());
        exact.held += (f64::from(levels.total()) * block_tokens) as u64;
        exact.worth += (credits.worth(levels) * block_tokens) as u64;
    }

    fn trusted(&self, backend: &BackendSnapshot) -> u32 {
        clamped(match (backend.trust(), self.exact) {
            (Trust::Exact, Some(exact)) => exact.worth.max(self.in_flight),
            (Trust::Assumed, exact) if backend.is_renewed() => exact.map_or(0, |exact| exact.worth).max(self.in_flight),
            // Events say nothing of a prompt whose ids are not known.
            (Trust::Exact | Trust::Assumed, _) => self.expected,
            (Trust::LoadOnly, _) => 0,
        })
    }

    fn prediction(&self) -> Prediction {
        let exact = self.exact.map(|exact| ExactPrediction {
            at_least: clamped(exact.held),
            at_most: clamped(exact.held.max(self.in_flight)),
        });
        Prediction { assumed: clamped(self.assumed), exact }
    }
}

/// Engines compute a prompt's last token in any case, and with it the block that it ends.
fn computed_anew(levels: TierBlocks, prompt_tokens: u64, block_tokens: u32) -> TierBlocks {
    let most = u32::try_from(prompt_tokens.saturating_sub(1) / u64::from(block_tokens)).unwrap_or(u32::MAX);
    let gpu = levels.gpu.min(most);
    let cpu = levels.cpu.min(most - gpu);
    TierBlocks { gpu, cpu, disk: levels.disk.min(most - gpu - cpu) }
}

fn clamped(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
