//! Chained block hashes of a prompt, made while its bytes stream by.
//!
//! A block's content is hashed by XXH3-64 (Yann Collet's xxHash), and the chain mixes its parent's hash into that: hashing the
//! content waits for nothing, and the mixing, which cannot but go block by block, is one multiplication. The first
//! block's parent is the root, which stands for all that separates caches. Two chains are therefore equal up
//! to the first block that differs and, chance of 64 bits aside, nowhere behind it. The last, partial block has no hash.
//! A block that lies whole in one piece of input is hashed where it lies.
//!
//! The hash is not keyed against an attacker. Who finds a collision makes the router expect a cached block that is not
//! there; the engine, which compares tokens, serves nobody's cache by it.

use std::num::NonZeroU32;
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::BlockHash;

/// Blocks hashed of one prompt, 8 MiB of hashes: 16 million tokens at 16 a block, beyond any context window. What lies
/// behind them counts by length.
pub const MAX_BLOCKS: usize = 1 << 20;

/// The prefix blocks of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The hash of every whole block, first to last.
    pub blocks: Arc<[BlockHash]>,
    /// Length of the prompt's canonical bytes, the partial block included.
    pub prompt_bytes: u64,
}

/// Hashes a prompt's bytes, given in pieces of any size.
#[derive(Debug)]
pub struct BlockHasher {
    parent: BlockHash,
    block_bytes: usize,
    /// The beginning of a block that is not whole yet; always shorter than a block.
    partial: Vec<u8>,
    blocks: Vec<BlockHash>,
    prompt_bytes: u64,
}

// === impl BlockHasher ===

impl BlockHasher {
    /// Starts a chain at `root` (see [`root`]), with blocks of `block_bytes` bytes.
    pub fn new(root: BlockHash, block_bytes: NonZeroU32) -> Self {
        let block_bytes = usize::try_from(block_bytes.get()).unwrap_or(usize::MAX);
        Self { parent: root, block_bytes, partial: Vec::new(), blocks: Vec::new(), prompt_bytes: 0 }
    }

    /// Makes room for the hashes of `bytes` more bytes at once.
    pub fn reserve(&mut self, bytes: usize) {
        self.partial.reserve(bytes.min(self.block_bytes));
        self.blocks.reserve((bytes / self.block_bytes).min(MAX_BLOCKS.saturating_sub(self.blocks.len())));
    }

    /// Adds the next bytes of the prompt.
    pub fn update(&mut self, bytes: &[u8]) {
        self.prompt_bytes += bytes.len() as u64;
        if self.blocks.len() >= MAX_BLOCKS {
            return;
        }
        let mut rest = bytes;
        if !self.partial.is_empty() {
            let missing = self.block_bytes - self.partial.len();
            let (piece, behind) = rest.split_at(missing.min(rest.len()));
            self.partial.extend_from_slice(piece);
            if self.partial.len() < self.block_bytes {
                return;
            }
            self.parent = hash_block(self.parent, &self.partial);
            self.blocks.push(self.parent);
            self.partial.clear();
            rest = behind;
        }
        let blocks = rest.chunks_exact(self.block_bytes);
        self.partial.extend_from_slice(blocks.remainder());
        let room = MAX_BLOCKS - self.blocks.len();
        self.blocks.reserve(blocks.len().min(room));
        for block in blocks.take(room) {
            self.parent = hash_block(self.parent, block);
            self.blocks.push(self.parent);
        }
    }

    /// The chain of all bytes given.
    pub fn finish(self) -> Chain {
        Chain { blocks: self.blocks.into(), prompt_bytes: self.prompt_bytes }
    }
}

#[inline(always)]
fn hash_block(parent: BlockHash, block: &[u8]) -> BlockHash {
    chained(parent, xxh3_64(block))
}

/// The hash of the block behind `parent` whose content has the hash `content`.
///
/// Both are spread over all their bits already, and only have to be kept apart from each other's place: multiplicative hashing
/// (Knuth, The Art of Computer Programming 3, 6.4) by the golden ratio, whose high bits then go over the low ones.
pub(super) fn chained(parent: BlockHash, content: u64) -> BlockHash {
    const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    let product = (parent.0 ^ content).wrapping_mul(GOLDEN_RATIO);
    BlockHash(product ^ product >> 32)
}

/// The root of the chains of one cache: a hash of everything that separates it from others. Each part's length is
/// hashed with it, so that no two lists of parts run together.
pub fn root(parts: &[&[u8]]) -> BlockHash {
    let mut hasher = Xxh3::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    BlockHash(hasher.digest())
}

/// The root of a prompt's chain: what engines keep apart in their prefix caches. `model` is the pool's name or whatever
/// stands for the weights; an absent adapter or salt differs from an empty one. Token ids and text never share a chain.
pub fn prompt_root(model: &str, adapter: Option<&str>, cache_salt: Option<&str>, is_tokens: bool) -> BlockHash {
    let some = |value: Option<&str>| [u8::from(value.is_some())];
    root(&[
        model.as_bytes(),
        &some(adapter),
        adapter.unwrap_or_default().as_bytes(),
        &some(cache_salt),
        cache_salt.unwrap_or_default().as_bytes(),
        if is_tokens { b"tokens" } else { b"text" },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chain(root: BlockHash, block_bytes: u32, pieces: &[&[u8]]) -> Chain {
        let mut hasher = BlockHasher::new(root, NonZeroU32::new(block_bytes).unwrap());
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    /// The definition, written without regard to speed.
    fn naive(root: BlockHash, block_bytes: usize, bytes: &[u8]) -> Vec<BlockHash> {
        let mut parent = root.0;
        let mut blocks = Vec::new();
        for start in (0..bytes.len()).step_by(block_bytes) {
            if start + block_bytes <= bytes.len() {
                let content = xxh3_64(&bytes[start..start + block_bytes]);
                parent = chained(BlockHash(parent), content).0;
                blocks.push(BlockHash(parent));
            }
        }
        blocks
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn pieces_hash_as_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            block_bytes in 1..80_u32,
            seed in any::<u64>(),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let root = BlockHash(seed);
            let pieced = chain(root, block_bytes, &pieces);
            prop_assert_eq!(&pieced, &chain(root, block_bytes, &[&bytes]));
            prop_assert_eq!(pieced.blocks.to_vec(), naive(root, block_bytes as usize, &bytes));
            prop_assert_eq!(pieced.prompt_bytes, bytes.len() as u64);
        }

        #[test]
        fn a_changed_byte_changes_its_block_and_all_behind_it(
            bytes in prop::collection::vec(any::<u8>(), 1..600),
            at in any::<prop::sample::Index>(),
            block_bytes in 1..80_u32,
        ) {
            let mut other = bytes.clone();
            let at = at.index(bytes.len());
            other[at] ^= 1;
            let [left, right] = [bytes, other].map(|bytes| chain(BlockHash(7), block_bytes, &[&bytes]));
            for (index, (left, right)) in left.blocks.iter().zip(right.blocks.iter()).enumerate() {
                prop_assert_eq!(left == right, index < at / block_bytes as usize, "block {}", index);
            }
        }

        #[test]
        fn roots_differ_unless_all_parts_are_equal(
            left in prop::collection::vec("[ab]{0,3}", 0..4),
            right in prop::collection::vec("[ab]{0,3}", 0..4),
        ) {
            let hash = |parts: &[String]| root(&parts.iter().map(String::as_bytes).collect::<Vec<_>>());
            prop_assert_eq!(hash(&left) == hash(&right), left == right);
        }
    }

    #[test]
    fn a_partial_block_has_no_hash() {
        assert_eq!(chain(BlockHash(1), 16, &[&[7; 15]]).blocks.len(), 0);
        assert_eq!(chain(BlockHash(1), 16, &[&[7; 16]]).blocks.len(), 1);
        assert_eq!(chain(BlockHash(1), 16, &[&[7; 47]]).blocks.len(), 2);
    }

    #[test]
    fn equal_blocks_at_different_places_have_different_hashes() {
        let blocks = chain(BlockHash(1), 16, &[&[7; 16 * 100]]).blocks;
        let distinct: std::collections::HashSet<_> = blocks.iter().collect();
        assert_eq!(distinct.len(), 100, "a block's hash covers the blocks before it");
    }

    #[test]
    fn what_separates_caches_separates_chains() {
        let roots = [
            prompt_root("m", None, None, false),
            prompt_root("m", None, None, true),
            prompt_root("n", None, None, false),
            prompt_root("m", Some("a"), None, false),
            prompt_root("m", None, Some("a"), false),
            prompt_root("m", Some(""), None, false),
            prompt_root("m", None, Some(""), false),
            prompt_root("ma", None, None, false),
            prompt_root("m", Some("a"), Some("a"), false),
        ];
        let blocks: Vec<_> = roots.iter().flat_map(|root| chain(*root, 8, &[&[1; 80]]).blocks.to_vec()).collect();
        let distinct: std::collections::HashSet<_> = blocks.iter().collect();
        assert_eq!(distinct.len(), blocks.len(), "no two of these may share any block");
    }

    #[test]
    fn blocks_are_bounded_but_bytes_are_all_counted() {
        let bytes = vec![0; MAX_BLOCKS + 10];
        let chain = chain(BlockHash(1), 1, &[&bytes, &bytes, b"x"]);
        assert_eq!(chain.blocks.len(), MAX_BLOCKS);
        assert_eq!(chain.prompt_bytes, 2 * (MAX_BLOCKS as u64 + 10) + 1);
    }
}
