//! The sequences that an engine computes together.
//!
//! Invariant: `decoding` and `kv_tokens` are what a walk over the sequences would count; they are kept so that a step
//! which only decodes need not walk before it starts.

use std::ops::Range;

use super::cache::{BlockCache, BlockId};
use super::request::{Request, RequestId};

/// In the order of admission.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) sequences: Vec<Sequence>,
    /// Sequences whose first token is out.
    pub(super) decoding: usize,
    /// Tokens whose KV entries exist.
    pub(super) kv_tokens: u64,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) blocks: Vec<BlockId>,
    /// Tokens whose KV entries exist.
    pub(super) computed: u32,
    /// Leading blocks that can be found by their hash, or could have been.
    pub(super) published: usize,
    /// The value of `computed` that fills the next block which has a hash.
    pub(super) full_at: u32,
    /// Tokens that came out.
    pub(super) generated: u32,
    /// Prompt tokens that the step in progress computes.
    pub(super) scheduled: u32,
    pub(super) is_aborted: bool,
}

// === impl Batch ===

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn prefilling(&self) -> usize {
        self.sequences.len() - self.decoding
    }

    pub(super) fn push(&mut self, sequence: Sequence) {
        self.kv_tokens += u64::from(sequence.computed);
        self.sequences.push(sequence);
    }

    /// Forgets what a sequence that leaves was counted for.
    pub(super) fn discount(&mut self, sequence: &Sequence) {
        self.kv_tokens -= u64::from(sequence.computed);
        self.decoding -= usize::from(sequence.is_decoding());
    }
}

// === impl Sequence ===

impl Sequence {
    /// One that was just admitted, with its first `matched` blocks computed.
    pub(super) fn new(
        id: RequestId,
        request: Request,
        blocks: Vec<BlockId>,
        matched: usize,
        block_tokens: u32,
    ) -> Self {
        let mut sequence = Self {
            id,
            request,
            blocks,
            computed: matched as u32 * block_tokens,
            published: matched,
            full_at: 0,
            generated: 0,
            scheduled: 0,
            is_aborted: false,
        };
        sequence.aim(block_tokens);
        sequence
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.generated > 0
    }

    pub(super) fn is_prefilled(&self) -> bool {
        self.computed >= self.request.prompt_tokens
    }

    /// Makes the blocks that are full findable.
    pub(super) fn publish(&mut self, cache: &mut BlockCache, block_tokens: u32) {
        let full = (self.computed / block_tokens) as usize;
        let end = full.min(self.request.chain.len());
        let mut new = self.published;
        for place in self.published..end {
            if !cache.publish(self.blocks[place], self.request.chain[place]) {
                self.note(cache, new..place, block_tokens);
                new = place + 1;
            }
        }
        self.note(cache, new..end, block_tokens);
        self.published = self.published.max(full);
        self.aim(block_tokens);
    }

    /// None of its blocks can be found any more, nor will be: what they hang on is gone.
    pub(super) fn forget(&mut self, block_tokens: u32) {
        self.request.chain.clear();
        self.aim(block_tokens);
    }

    fn note(&self, cache: &mut BlockCache, blocks: Range<usize>, block_tokens: u32) {
        if let Some(content) = self.request.content.as_deref().filter(|_| !blocks.is_empty())
            && let Some(log) = cache.log()
        {
            log.stored(&self.request.chain, blocks, content, block_tokens);
        }
    }

    fn aim(&mut self, block_tokens: u32) {
        let has_next = self.published < self.request.chain.len();
        let next = (self.published as u32).saturating_add(1).saturating_mul(block_tokens);
        self.full_at = if has_next { next } else { u32::MAX };
    }
}
