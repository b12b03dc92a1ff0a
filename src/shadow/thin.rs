//! Prompts with every so many blocks left out.

use smallvec::SmallVec;

use crate::prefix::BlockHash;

/// One block in so many is kept: the last of each group, whose hash covers the whole group. Cached prefixes come out up
/// to one block less than this too short, for all policies alike, which is nothing against prompts that are worth
/// routing by; and everything costs so many times less.
pub const THINNING: usize = 8;

/// Hashes that the buffer keeps room for: a prompt of 8 million tokens at 16 a block.
const KEPT_HASHES: usize = 64 * 1024;

/// One prompt of a request.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Its whole blocks, in order.
    pub blocks: &'a [BlockHash],
    /// Its tokens, those of the partial block included.
    pub tokens: u64,
    /// Tokens of a block.
    pub tokens_per_block: f64,
}

/// The thinned chains of a request's prompts.
#[derive(Debug, Default)]
pub(super) struct Thinned {
    hashes: Vec<BlockHash>,
    /// Where each chain ends.
    ends: SmallVec<[usize; 1]>,
}

// === impl Prompt ===

impl Prompt<'_> {
    /// Tokens that so many leading blocks of the thinned chain stand for.
    pub(super) fn tokens_in(&self, thinned_blocks: u32) -> u64 {
        let blocks = f64::from(thinned_blocks) * THINNING as f64;
        ((blocks * self.tokens_per_block).round() as u64).min(self.tokens)
    }
}

// === impl Thinned ===

impl Thinned {
    /// Replaces what is held by these prompts' chains.
    pub(super) fn set(&mut self, prompts: &[Prompt<'_>]) {
        self.hashes.clear();
        self.ends.clear();
        for prompt in prompts {
            self.hashes.extend(prompt.blocks.iter().skip(THINNING - 1).step_by(THINNING));
            self.ends.push(self.hashes.len());
        }
    }

    /// One for each prompt; empty for a short one.
    pub(super) fn chains(&self) -> impl Iterator<Item = &[BlockHash]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.hashes[start..end])
    }

    /// Gives memory back that only huge requests need.
    pub(super) fn trim(&mut self) {
        self.hashes.clear();
        self.ends.clear();
        self.hashes.shrink_to(KEPT_HASHES);
        self.ends.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(blocks: &[BlockHash]) -> Prompt<'_> {
        Prompt { blocks, tokens: blocks.len() as u64 * 16 + 5, tokens_per_block: 16.0 }
    }

    #[test]
    fn the_last_block_of_each_whole_group_is_kept_prompt_by_prompt() {
        let blocks: Vec<_> = (1..=40).map(BlockHash).collect();
        let mut thinned = Thinned::default();
        let chains = |thinned: &Thinned| -> Vec<Vec<u64>> {
            thinned.chains().map(|chain| chain.iter().map(|hash| hash.0).collect()).collect()
        };
        thinned.set(&[prompt(&blocks[..17]), prompt(&blocks[..7]), prompt(&blocks[20..36])]);
        assert_eq!(chains(&thinned), [vec![8, 16], vec![], vec![28, 36]]);
        thinned.set(&[prompt(&blocks)]);
        assert_eq!(chains(&thinned), [[8, 16, 24, 32, 40]], "nothing is left of the prompts before");
    }

    #[test]
    fn a_kept_block_stands_for_its_group_and_never_for_more_than_the_prompt() {
        let blocks: Vec<_> = (1..=17).map(BlockHash).collect();
        let prompt = prompt(&blocks);
        assert_eq!([0, 1, 2, 3].map(|kept| prompt.tokens_in(kept)), [0, 128, 256, 277]);
    }
}
