//! Cuts prompts into the blocks that the two indexes know them by.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::pool::PoolSnapshot;
use crate::prefix::{BlockHash, BlockHasher, Chain, prompt_root, token_chain, token_root};
use crate::request::{Prompt, PromptRequest};
use crate::tokens::TokenIds;

/// A token id in the bytes of a prompt.
const TOKEN_BYTES: u64 = 4;

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

    /// Cuts a prompt; `made` are the ids that the pool's tokenizer made of it.
    pub(super) fn cut(&self, prompt: &Prompt<'_>, made: Option<&TokenIds>) -> PromptBlocks {
        let count = |ids: usize| prompt.token_count().unwrap_or(ids as u64);
        if let Some((ids, tokenizer)) = made.zip(self.pool.tokenizer.as_ref()) {
            return self.cut_ids(count(ids.len()), |root, block_tokens| tokenizer.chain(ids, root, block_tokens));
        }
        match prompt.token_ids() {
            Some(ids) => self.cut_ids(count(ids.len()), |root, size| token_chain(root, ids, size).into()),
            None => self.cut_bytes(prompt),
        }
    }

    /// `chain` gives the hashes from a root on, in blocks of so many tokens.
    fn cut_ids(&self, tokens: u64, chain: impl Fn(BlockHash, NonZeroU32) -> Arc<[BlockHash]>) -> PromptBlocks {
        let block_tokens = self.pool.pool.scale().block_tokens();
        let by_ids = self
            .event_blocks
            .iter()
            .map(|&block_tokens| IdBlocks { block_tokens, hashes: chain(self.id_root, block_tokens) });
        PromptBlocks {
            chain: Chain { blocks: chain(self.root(true), block_tokens), prompt_bytes: tokens * TOKEN_BYTES },
            tokens,
            block_tokens,
            tokens_per_block: f64::from(block_tokens.get()),
            by_ids: by_ids.collect(),
        }
    }

    fn cut_bytes(&self, prompt: &Prompt<'_>) -> PromptBlocks {
        let scale = self.pool.pool.scale();
        let block_bytes = scale.block_bytes();
        let mut hasher = BlockHasher::new(self.root(false), block_bytes);
        hasher.reserve(prompt.expected_bytes());
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

    fn root(&self, is_tokens: bool) -> BlockHash {
        prompt_root(self.model, self.adapter, self.cache_salt, is_tokens)
    }
}

// === impl PromptBlocks ===

impl PromptBlocks {
    /// The tokens of its leading `blocks` in the chain.
    pub(super) fn tokens_in(&self, blocks: u32) -> u64 {
        ((f64::from(blocks) * self.tokens_per_block).round() as u64).min(self.tokens)
    }
}
