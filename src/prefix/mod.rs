//! Prefix blocks: the units in which locality is believed, looked up and accounted.
//!
//! A prompt's bytes are cut into blocks, and each block's hash covers all blocks before it ([`BlockHasher`]). How many bytes
//! make a block follows from the engine's block size in tokens and the learned length of a token ([`Scale`]).

mod block;
mod scale;
mod tokens;

pub use block::{BlockHasher, Chain, MAX_BLOCKS, prompt_root, root};
pub use scale::{Sample, Scale, ScaleRecord};
pub use tokens::{token_block, token_chain, token_root};

/// Identifies a prefix block: the block, every block before it, and what separates caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);
