//! What happens to a cache, noted as KV events for whoever listens.
//!
//! The events of a step are sent together when it has ended, in the order in which they happened: what was removed to
//! make room when it started, then what it filled.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::kv_events::{Batch, EngineHash, Event, Medium};
use crate::prefix::BlockHash;

/// What the blocks of a request are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The token ids of the request's chain, block after block.
    pub tokens: Vec<u32>,
    /// The LoRA adapter that computes them.
    pub adapter: Option<Arc<str>>,
    /// The salt that separates them from other caches.
    pub salt: Option<Arc<str>>,
}

/// The events since the end of the last step.
#[derive(Debug)]
pub(super) struct EventLog {
    /// Gives blocks their names: no two processes of an engine have the same.
    seed: u64,
    batch: Batch,
}

// === impl EventLog ===

impl EventLog {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, batch: Batch::default() }
    }

    /// The engine's name for a block.
    pub(super) fn name(&self, hash: BlockHash) -> EngineHash {
        EngineHash(xxh3_64_with_seed(&hash.0.to_le_bytes(), self.seed))
    }

    /// Notes that these blocks of a request, neighbours in its chain, can now be found.
    pub(super) fn stored(&mut self, chain: &[BlockHash], blocks: Range<usize>, content: &Content, block_tokens: u32) {
        let names: Vec<EngineHash> = chain[blocks.clone()].iter().map(|&hash| self.name(hash)).collect();
        let parent = blocks.start.checked_sub(1).map(|parent| self.name(chain[parent]));
        let places = blocks.start * block_tokens as usize..blocks.end * block_tokens as usize;
        let Some(tokens) = content.tokens.get(places) else { return };
        let block_tokens = NonZeroU32::new(block_tokens).unwrap_or(NonZeroU32::MIN);
        self.batch.push_stored(&names, parent, tokens, block_tokens, Medium::Gpu);
        if let Some(Event::Stored(stored)) = self.batch.events.last_mut() {
            stored.adapter.clone_from(&content.adapter);
            stored.salt.clone_from(&content.salt);
        }
    }

    /// Notes that a block was taken for something else.
    pub(super) fn removed(&mut self, hash: BlockHash) {
        let name = self.name(hash);
        self.batch.push_removed(&[name], Medium::Gpu);
    }

    /// Notes that no block can be found any more.
    pub(super) fn cleared(&mut self) {
        self.batch.events.push(Event::Cleared);
    }

    /// What was noted, if anything was; the log is empty afterwards.
    pub(super) fn take(&mut self) -> Option<Batch> {
        (!self.batch.events.is_empty()).then(|| std::mem::take(&mut self.batch))
    }
}
