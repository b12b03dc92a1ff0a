//! Ids for a prompt's blocks: equal for equal prefixes while one process lives, and of no use for anything else.
//!
//! A block of [`BLOCK_TOKENS`] has the id of the last of the engine's blocks that it reaches into, which stands for all
//! of the prompt up to there. Ids are keyed hashes: SipHash, a pseudorandom function (Aumasson and Bernstein, 2012), as
//! the standard library has it, with a 128-bit key that the system's random source gave. Who has a trace can therefore not
//! try whether a prompt that he guesses was among those of the trace. Ids have 53 bits, since many readers of JSON keep
//! numbers as floats.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use super::BLOCK_TOKENS;
use crate::prefix::{BlockHash, Chain};

/// Longest prompt that a line is made for; a longer one counts as this long. As many tokens as a chain has hashes for.
pub const MAX_INPUT_TOKENS: u32 = 1 << 24;

/// What the upper 53 bits of 64 are moved by.
const EXCESS_BITS: u32 = 64 - 53;

/// The secret of a process.
#[derive(Debug, Default)]
pub struct Salt {
    key: RandomState,
    /// Prompts so far that share nothing. Written by requests, relaxed: each only needs another number.
    unshared: AtomicU64,
}

/// What an id is made of, besides its place.
#[derive(Hash)]
enum Made {
    /// All of the prompt up to this block's end.
    Prefix(BlockHash),
    /// Behind the last whole block of a prompt of so many bytes: equal for the same prompt only, all but for a
    /// coincidence within less than a block.
    Rest(BlockHash, u64),
    /// A prompt that has no whole block, which nobody could find in a cache.
    Unshared(u64),
}

// === impl Salt ===

impl Salt {
    /// Ids for the blocks of a prompt of `input_length` tokens, the partial one included. `chain` has its hashes, in
    /// blocks of `block_tokens`.
    ///
    /// The engine's count and the chain need not agree, as chains are cut by bytes. A prompt shorter than its chain has
    /// the chain's first ids, and a longer one has ids of its own behind the chain's: either way two prompts share ids
    /// from the first as far as they share hashes.
    pub fn ids(&self, chain: &Chain, block_tokens: NonZeroU32, input_length: u32) -> Vec<u64> {
        let rest = match chain.blocks.last() {
            Some(&last) => Made::Rest(last, chain.prompt_bytes),
            None => Made::Unshared(self.unshared.fetch_add(1, Ordering::Relaxed)),
        };
        let id = |place: u32| {
            let end = (u64::from(place) + 1) * u64::from(BLOCK_TOKENS);
            let reached = end.div_ceil(u64::from(block_tokens.get())) as usize;
            match chain.blocks.get(reached - 1) {
                Some(&hash) => self.id(&Made::Prefix(hash), place),
                None => self.id(&rest, place),
            }
        };
        (0..input_length.min(MAX_INPUT_TOKENS).div_ceil(BLOCK_TOKENS)).map(id).collect()
    }

    fn id(&self, made: &Made, place: u32) -> u64 {
        self.key.hash_one((made, place)) >> EXCESS_BITS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prefix::BlockHasher;
    use crate::testing::config;

    fn tokens(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    /// A prompt of one byte a token.
    fn chain(prompt: &[u8], block_tokens: u32) -> Chain {
        let mut hasher = BlockHasher::new(BlockHash(0), tokens(block_tokens));
        hasher.update(prompt);
        hasher.finish()
    }

    fn shared(left: &[u64], right: &[u64]) -> usize {
        left.iter().zip(right).take_while(|(left, right)| left == right).count()
    }

    #[test]
    fn a_prompt_has_an_id_for_each_512_tokens_and_its_next_turn_shares_the_whole_ones() {
        let salt = Salt::default();
        let [first, next] =
            [1300, 2100].map(|length| salt.ids(&chain(&vec![7; length], 16), tokens(16), length as u32));
        assert_eq!((first.len(), next.len(), shared(&first, &next)), (3, 5, 2));
    }

    #[test]
    fn the_same_prompt_has_the_same_ids_and_in_another_process_others() {
        let (salt, prompt) = (Salt::default(), chain(&[7; 1300], 16));
        let ids = salt.ids(&prompt, tokens(16), 1300);
        assert_eq!(ids, salt.ids(&prompt, tokens(16), 1300));
        assert_eq!(shared(&ids, &Salt::default().ids(&prompt, tokens(16), 1300)), 0, "nobody else has the key");
    }

    #[test]
    fn prompts_without_a_whole_block_share_nothing() {
        let (salt, prompt) = (Salt::default(), chain(&[7; 1000], 1024));
        let [left, right] = [(); 2].map(|()| salt.ids(&prompt, tokens(1024), 1000));
        assert_eq!((left.len(), shared(&left, &right)), (2, 0));
    }

    #[test]
    fn an_incredible_length_is_cut() {
        let ids = Salt::default().ids(&chain(&[7; 600], 16), tokens(16), u32::MAX);
        assert_eq!(ids.len(), 32_768);
    }

    proptest! {
        #![proptest_config(config(256))]

        /// Against the definition: an id is equal as far as the tokens up to its block's end are, in whole blocks.
        #[test]
        fn ids_are_equal_exactly_as_far_as_the_prompts_are(
            common in 0..4000_usize, rests in [0..2000_usize, 0..2000_usize], block_tokens in 1..1200_u32,
            reported in 1..8000_u32,
        ) {
            let salt = Salt::default();
            let prompts = [1, 2].map(|name| [vec![0; common], vec![name; rests[usize::from(name) - 1]]].concat());
            let [left, right] = prompts.each_ref().map(|prompt| {
                let ids = salt.ids(&chain(prompt, block_tokens), tokens(block_tokens), reported);
                assert_eq!(ids.len(), reported.div_ceil(BLOCK_TOKENS) as usize);
                assert!(ids.iter().all(|&id| id < 1 << 53));
                ids
            });
            let block_tokens = block_tokens as usize;
            let is_same = prompts[0] == prompts[1] && common >= block_tokens;
            let naive = (1..=left.len()).take_while(|end| (end * 512).div_ceil(block_tokens) * block_tokens <= common);
            // Of one length and one chain, they differ behind the last whole block only.
            let is_coincidence = rests[0] == rests[1] && (common + rests[0]) / block_tokens == common / block_tokens;
            prop_assume!(!is_coincidence || is_same);
            prop_assert_eq!(shared(&left, &right), if is_same { left.len() } else { naive.count() });
        }
    }
}
