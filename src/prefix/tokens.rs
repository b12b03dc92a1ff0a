//! Block hashes of token ids: the same chain whether a prompt's ids come from our tokenizer or from an engine's event.
//!
//! The hash is that of [`BlockHasher`](super::BlockHasher) over the ids as four bytes each, least significant first.

use std::num::{NonZeroU32, NonZeroU64};

use xxhash_rust::xxh3::xxh3_64;

use super::block::chained;
use super::{BlockHash, MAX_BLOCKS, root};

/// Ids of a block whose bytes need no allocation. The bytes are filled in at their full length, which is a copy; pushing them
/// one by one takes several times as long as the hash.
const STACK_IDS: usize = 128;

/// The root of the chains of one cache. Engines keep apart what was computed with different adapters, and prompts with
/// different salts; the model needs no part in it, since an engine's cache holds only its own.
pub fn token_root(adapter: Option<&str>, salt: Option<&str>) -> BlockHash {
    let some = |value: Option<&str>| [u8::from(value.is_some())];
    root(&[
        b"token ids",
        &some(adapter),
        adapter.unwrap_or_default().as_bytes(),
        &some(salt),
        salt.unwrap_or_default().as_bytes(),
    ])
}

/// The hash of the block of `ids` that follows `parent`. `extra` stands for what else went into the block, such as a
/// picture; a block with it never equals one without.
pub fn token_block(parent: BlockHash, ids: &[u32], extra: Option<NonZeroU64>) -> BlockHash {
    let parent = extra.map_or(parent, |extra| chained(parent, extra.get()));
    let mut few = [0; STACK_IDS * 4];
    let mut many = Vec::new();
    let bytes = if ids.len() <= STACK_IDS {
        &mut few[..ids.len() * 4]
    } else {
        many.resize(ids.len() * 4, 0);
        &mut many[..]
    };
    bytes.as_chunks_mut().0.iter_mut().zip(ids).for_each(|(bytes, id)| *bytes = id.to_le_bytes());
    chained(parent, xxh3_64(bytes))
}

/// The hashes of all whole blocks of a prompt, at most [`MAX_BLOCKS`].
pub fn token_chain(root: BlockHash, ids: &[u32], block_tokens: NonZeroU32) -> Vec<BlockHash> {
    let blocks = ids.chunks_exact(block_tokens.get() as usize).take(MAX_BLOCKS);
    blocks
        .scan(root, |parent, ids| {
            *parent = token_block(*parent, ids, None);
            Some(*parent)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BlockHasher;
    use super::*;
    use crate::testing;

    proptest! {
        #![proptest_config(testing::config(256))]

        #[test]
        fn ids_hash_as_their_bytes(ids in prop::collection::vec(any::<u32>(), 0..300), block_tokens in 1..200_u32) {
            let block_tokens = NonZeroU32::new(block_tokens).unwrap();
            let root = token_root(Some("a"), None);
            let mut hasher = BlockHasher::new(root, NonZeroU32::new(block_tokens.get() * 4).unwrap());
            ids.iter().for_each(|id| hasher.update(&id.to_le_bytes()));
            prop_assert_eq!(token_chain(root, &ids, block_tokens), hasher.finish().blocks.to_vec());
        }
    }

    #[test]
    fn what_separates_caches_separates_chains() {
        let ids = [1, 2, 3, 4];
        let with = |root| token_block(root, &ids, None);
        let extra = token_block(token_root(None, None), &ids, NonZeroU64::new(1));
        let blocks = [
            with(token_root(None, None)),
            with(token_root(Some(""), None)),
            with(token_root(None, Some(""))),
            with(token_root(Some("a"), None)),
            with(token_root(None, Some("a"))),
            extra,
        ];
        let distinct: std::collections::HashSet<_> = blocks.iter().collect();
        assert_eq!(distinct.len(), blocks.len(), "no two of these may be the same");
    }
}
