//! The token ids of a prompt, and the hashes of its blocks, in the pieces that are cached: a conversation's next turn
//! shares all but the last of them, and neither copies their ids nor hashes them again.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::cache::{Ids, Key, TextCache};
use crate::prefix::{BlockHash, MAX_BLOCKS, token_chain};

/// The token ids of one prompt.
#[derive(Clone, Default)]
pub struct TokenIds {
    pieces: Vec<Piece>,
    len: usize,
}

/// Ids that follow those of the piece before.
#[derive(Clone)]
struct Piece {
    ids: Ids,
    /// Names these ids and all before them; none for what is not cached.
    key: Option<Key>,
}

// === impl TokenIds ===

impl TokenIds {
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ids, first to last.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.pieces.iter().flat_map(|piece| piece.ids.iter().copied())
    }

    /// Adds ids; `key` names them and all before.
    pub(super) fn push(&mut self, ids: Ids, key: Option<Key>) {
        self.len += ids.len();
        self.pieces.push(Piece { ids, key });
    }

    /// As [`token_chain`] gives it for these ids; only what `cache` has no hashes of is hashed.
    pub(super) fn chain(&self, root: BlockHash, block_tokens: NonZeroU32, cache: &TextCache) -> Arc<[BlockHash]> {
        let size = block_tokens.get() as usize;
        let mut hashes = Vec::with_capacity((self.len / size).min(MAX_BLOCKS));
        let mut end = 0;
        for (at, piece) in self.pieces.iter().enumerate() {
            end += piece.ids.len();
            let blocks = (end / size).min(MAX_BLOCKS) - hashes.len();
            let key = piece.key.filter(|_| blocks > 0).map(|key| cache.key_of_blocks(key, root, block_tokens));
            if let Some(known) = key.and_then(|key| cache.blocks(key)) {
                hashes.extend_from_slice(&known);
                continue;
            }
            let parent = hashes.last().copied().unwrap_or(root);
            let ids = self.last_ids(at, end - hashes.len() * size);
            let new: Arc<[BlockHash]> = token_chain(parent, &ids[..blocks * size], block_tokens).into();
            hashes.extend_from_slice(&new);
            if let Some(key) = key {
                cache.put_blocks(key, new);
            }
        }
        hashes.into()
    }

    /// The last `count` ids up to the end of the piece at `at`.
    fn last_ids(&self, at: usize, count: usize) -> Vec<u32> {
        let (mut first, mut there) = (at, self.pieces[at].ids.len());
        while there < count {
            first -= 1;
            there += self.pieces[first].ids.len();
        }
        let ids = self.pieces[first..=at].iter().flat_map(|piece| &piece.ids[..]).copied();
        ids.skip(there - count).collect()
    }
}

impl From<Vec<u32>> for TokenIds {
    fn from(ids: Vec<u32>) -> Self {
        let mut all = Self::default();
        all.push(ids.into(), None);
        all
    }
}

impl PartialEq for TokenIds {
    /// Whatever the pieces.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for TokenIds {}

#[cfg(test)]
impl PartialEq<Vec<u32>> for TokenIds {
    fn eq(&self, other: &Vec<u32>) -> bool {
        self.iter().eq(other.iter().copied())
    }
}

impl std::fmt::Debug for TokenIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Ids are the prompt, spelled otherwise.
        f.debug_struct("TokenIds").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prefix::token_root;
    use crate::testing::config;

    /// Pieces whose keys name what they say, as an encoder gives them.
    fn ids_of(pieces: &[Vec<u32>], cache: &TextCache) -> TokenIds {
        let mut ids = TokenIds::default();
        let mut key = cache.key(b"");
        for (at, piece) in pieces.iter().enumerate() {
            key = cache.key_behind(key, cache.key(format!("{piece:?}").as_bytes()));
            // Every third is one that is not cached.
            ids.push(piece.clone().into(), (at % 3 != 2).then_some(key));
        }
        ids
    }

    fn conversation() -> impl Strategy<Value = Vec<Vec<u32>>> {
        prop::collection::vec(prop::collection::vec(0..4_u32, 0..40), 0..8)
    }

    #[test]
    fn the_chain_is_that_of_the_ids_in_a_row_whatever_was_seen_before() {
        let cache = TextCache::new(1 << 14);
        let given = (conversation(), 1..8_usize, 1..20_u32, any::<bool>());
        let mut runner = proptest::test_runner::TestRunner::new(config(512));
        let result = runner.run(&given, |(pieces, turns, block_tokens, is_salted)| {
            let root = token_root(None, is_salted.then_some("salt"));
            let block_tokens = NonZeroU32::new(block_tokens).unwrap();
            for turn in 0..=turns.min(pieces.len()) {
                let ids = ids_of(&pieces[..turn], &cache);
                let flat = pieces[..turn].concat();
                prop_assert_eq!((ids.len(), ids.is_empty()), (flat.len(), flat.is_empty()));
                prop_assert_eq!(ids.iter().collect::<Vec<_>>(), &flat[..]);
                prop_assert_eq!(&ids.chain(root, block_tokens, &cache)[..], token_chain(root, &flat, block_tokens));
            }
            Ok(())
        });
        result.unwrap();
    }

    #[test]
    fn hashes_of_what_was_seen_are_not_made_again() {
        let cache = TextCache::new(1 << 16);
        let (root, block_tokens) = (token_root(None, None), NonZeroU32::new(4).unwrap());
        let ids = ids_of(&[vec![1; 10], vec![2; 10]], &cache);
        let chain = ids.chain(root, block_tokens, &cache);
        assert_eq!(chain.len(), 5);
        // The same names with other ids: if the chain is the same, these were not looked at.
        let mut other = ids.clone();
        other.pieces.iter_mut().for_each(|piece| piece.ids = vec![9; 10].into());
        assert_eq!(other.chain(root, block_tokens, &cache), chain);
        assert_ne!(other.chain(token_root(None, Some("salt")), block_tokens, &cache), chain, "another cache's");
    }

    #[test]
    fn a_debug_print_tells_no_ids() {
        assert_eq!(format!("{:?}", TokenIds::from(vec![123, 456])), "TokenIds { len: 2, .. }");
    }
}
