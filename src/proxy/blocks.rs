//! Cuts prompts into the blocks that the two indexes know them by.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::pool::PoolSnapshot;
use crate::prefix::{BlockHash, BlockHasher, Chain, prompt_root, token_chain, token_root};
use crate::request::{Prompt, PromptRequest};

/// One prompt's blocks.
#[derive(Debug)]
pub struct PromptBlocks {
    /// Its hashes, as the index of assumed blocks knows them.
    pub chain: Chain,
    /// Its tokens, estimated or counted.
    pub tokens: u64,
    /// The engine's block size, which the chain's blocks are meant to have.
    pub block_tokens: NonZeroU32,
    /// Tokens that a block of the chain stands for.
    pub tokens_per_block: f64,
    /// Its hashes by the engines' own token ids, for each size of block in the pool's events; empty where ids are not
    /// known.
    pub by_ids: SmallVec<[IdBlocks; 1]>,
}

/// The blocks of a prompt's token ids.
#[derive(Debug)]
pub struct IdBlocks {
    /// Tokens of a block.
    pub block_tokens: NonZeroU32,
    /// Hashes, as the index of events knows them.
    pub hashes: Arc<[BlockHash]>,
}

/// Cuts the prompts of one request.
pub(super) struct Cutter<'a> {
    pool: &'a PoolSnapshot,
    model: &'a str,
    adapter: Option<&'a str>,
    cache_salt: Option<&'a str>,
    /// The root of chains of token ids.
    id_root: BlockHash,
    /// Sizes of block in the pool's events.
    event_blocks: SmallVec<[NonZeroU32; 2]>,
}

// === impl Cutter ===

impl<'a> Cutter<'a> {
    pub(super) fn new(pool: &'a PoolSnapshot, request: &'a PromptRequest<'_>) -> Self {
        let model = request.model.as_deref().unwrap_or_default();
        let (adapter, cache_salt) = (request.adapter.as_deref(), request.cache_salt.as_deref());
        let event_blocks = pool.event_blocks();
        // An adapter can also be asked for as if it were a model.
        let named = adapter.or_else(|| Some(model).filter(|model| !event_blocks.is_empty() && pool.is_adapter(model)));
        Self { pool, model, adapter, cache_salt, id_root: token_root(named, cache_salt), event_blocks }
    }

    /// Cuts a prompt; `ids` are those of a tokenizer.
    pub(super) fn cut(&self, prompt: &Prompt<'_>, ids: Option<&[u32]>) -> PromptBlocks {
        match ids.or_else(|| prompt.token_ids()) {
            Some(ids) => self.cut_ids(ids, prompt.token_count().unwrap_or(ids.len() as u64)),
            None => self.cut_bytes(prompt),
        }
    }

    fn cut_ids(&self, ids: &[u32], tokens: u64) -> PromptBlocks {
        let scale = self.pool.pool.scale();
        let mut hasher = self.hasher(true, scale.token_block_bytes());
        hasher.update(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>());
        let by_ids = self.event_blocks.iter().map(|&block_tokens| IdBlocks {
            block_tokens,
            hashes: token_chain(self.id_root, ids, block_tokens).into(),
        });
        PromptBlocks {
            chain: hasher.finish(),
            tokens,
            block_tokens: scale.block_tokens(),
            tokens_per_block: f64::from(scale.token_block_bytes().get()) / 4.0,
            by_ids: by_ids.collect(),
        }
    }

    fn cut_bytes(&self, prompt: &Prompt<'_>) -> PromptBlocks {
        let scale = self.pool.pool.scale();
        let block_bytes = scale.block_bytes();
        let mut hasher = self.hasher(false, block_bytes);
        prompt.canonical(&mut |bytes| hasher.update(bytes));
        let chain = hasher.finish();
        PromptBlocks {
            tokens: scale.tokens(chain.prompt_bytes + prompt.more_bytes()),
            block_tokens: scale.block_tokens(),
            tokens_per_block: f64::from(block_bytes.get()) / scale.bytes_per_token(),
            chain,
            by_ids: SmallVec::new(),
        }
    }

    fn hasher(&self, is_tokens: bool, block_bytes: NonZeroU32) -> BlockHasher {
        BlockHasher::new(prompt_root(self.model, self.adapter, self.cache_salt, is_tokens), block_bytes)
    }
}

// === impl PromptBlocks ===

impl PromptBlocks {
    /// The tokens of its leading `blocks` in the chain.
    pub(super) fn tokens_in(&self, blocks: u32) -> u64 {
        ((f64::from(blocks) * self.tokens_per_block).round() as u64).min(self.tokens)
    }
}
