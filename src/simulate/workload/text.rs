//! Prompts without words: a text is named pieces of so many tokens, and its blocks hash the names.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::prefix::{BlockHash, BlockHasher};

/// A text that grows at its end, hashed in prefix blocks. Two texts have equal blocks as far as their pieces are equal.
///
/// Each token is hashed as its piece's name and its place in it, through the same chained hash that the proxy uses.
#[derive(Debug)]
pub struct Text {
    hasher: BlockHasher,
    tokens: u32,
}

/// Bytes that stand for one token.
const TOKEN_BYTES: u32 = 12;

// === impl Text ===

impl Text {
    /// An empty text with blocks of `block_tokens`.
    pub fn new(block_tokens: NonZeroU32) -> Self {
        let block_bytes = block_tokens.saturating_mul(NonZeroU32::MIN.saturating_add(TOKEN_BYTES - 1));
        Self { hasher: BlockHasher::new(BlockHash(0), block_bytes), tokens: 0 }
    }

    /// Adds `tokens` of the piece called `name`, from its beginning.
    pub fn push(&mut self, name: u64, tokens: u32) {
        let mut token = [0; TOKEN_BYTES as usize];
        token[..8].copy_from_slice(&name.to_le_bytes());
        for place in 0..tokens {
            token[8..].copy_from_slice(&place.to_le_bytes());
            self.hasher.update(&token);
        }
        self.tokens += tokens;
    }

    /// Its length so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The hashes of its whole blocks.
    pub fn finish(self) -> Arc<[BlockHash]> {
        self.hasher.finish().blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(pieces: &[(u64, u32)]) -> Arc<[BlockHash]> {
        let mut text = Text::new(NonZeroU32::new(16).unwrap());
        pieces.iter().for_each(|&(name, tokens)| text.push(name, tokens));
        text.finish()
    }

    #[test]
    fn texts_share_the_blocks_that_their_equal_pieces_fill() {
        let (left, right) = (blocks(&[(1, 40), (2, 40)]), blocks(&[(1, 40), (3, 40)]));
        let shared = left.iter().zip(right.iter()).take_while(|(left, right)| left == right).count();
        assert_eq!((left.len(), right.len(), shared), (5, 5, 2));
        assert_eq!(blocks(&[(1, 40)])[..], left[..2], "a longer text begins with the blocks of a shorter one");
    }
}
