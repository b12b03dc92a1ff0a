//! The blocks of a prompt that a shadow keeps: *marks*, close together at the beginning and ever wider apart.
//!
//! A block's hash covers all before it, so a mark that is held stands for everything up to there, and a cached prefix is
//! known to end between the last mark that is held and the next. It is taken to end where the real index knows the prompt
//! to leave others, if that is between these two: prompts part at the same places under all policies. Else it is taken to
//! end in the middle, and is off by at most half of the distance: four blocks up to 128, and a sixteenth of the prefix
//! beyond. Less than [`MIN_GAP`] blocks are known by where prompts part alone. This holds for each request by itself,
//! whatever prompts share.
//!
//! Sampling blocks by their hash as SHARDS does (Waldspurger et al., FAST 2015) would be cheaper still, and right only
//! where hits come from many different blocks. Here they come from few (a system prompt is in every request, and either
//! has a sampled block or none), and one request's work, which the queues go by, would be guessed much too low or too high.

use smallvec::SmallVec;

use crate::prefix::BlockHash;
use crate::routing::Candidate;

/// Blocks between marks, up to 128 blocks; beyond there are eight marks to each doubling.
pub(super) const MIN_GAP: u32 = 8;

/// Marks of the longest prompt. The last one stands at a million blocks, 16 million tokens at 16 a block.
const MARKS: usize = 120;

/// Places that are kept where a prompt leaves others: the beginning that all share, and some turns of a conversation.
const MAX_ENDS: usize = 8;

/// Bits of a tag that hold the mark's number, which is at least 1.
pub(super) const NUMBER_BITS: u32 = 7;

/// Where marks stand: `AT[n]` blocks of the prompt end with its mark `n`. `AT[0]` is its beginning, where none is.
const AT: [u32; MARKS + 1] = positions();

/// Blocks that each mark stands for; see [`Tag::weight`].
const WEIGHT: [u32; MARKS + 1] = weights();

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

/// What stands for a mark: some of its hash, and its number. Never 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u32);

/// The marks of all prompts of a request. No allocation for a request with one prompt.
#[derive(Debug, Default)]
pub(super) struct Marks {
    tags: SmallVec<[Tag; 128]>,
    prompts: SmallVec<[Marked; 1]>,
    /// Where the prompt is known to leave others, in blocks; for several prompts it is not.
    ends: SmallVec<[f64; MAX_ENDS]>,
}

/// The marks of one prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain<'a> {
    /// First to last.
    pub(super) tags: &'a [Tag],
    ends: &'a [f64],
    marked: Marked,
}

#[derive(Debug, Clone, Copy)]
struct Marked {
    tags_end: usize,
    blocks: u32,
    tokens: u64,
    tokens_per_block: f64,
}

const fn positions() -> [u32; MARKS + 1] {
    let mut at = [0; MARKS + 1];
    let mut number = 1;
    while number <= MARKS {
        let before: u32 = at[number - 1];
        let eighth = if before == 0 { 0 } else { (1 << before.ilog2()) / 8 };
        at[number] = before + if eighth > MIN_GAP { eighth } else { MIN_GAP };
        number += 1;
    }
    at
}

const fn weights() -> [u32; MARKS + 1] {
    let mut weights = [0; MARKS + 1];
    let mut number = 1;
    while number <= MARKS {
        let (before, at) = (AT[number - 1], AT[number]);
        let next = if number == MARKS { at } else { AT[number + 1] };
        weights[number] = (at - before) / if number == 1 { 1 } else { 2 } + (next - at) / 2;
        number += 1;
    }
    weights
}

/// Marks within so many blocks.
pub(super) fn count_within(blocks: u32) -> usize {
    AT.partition_point(|&at| at <= blocks) - 1
}

// === impl Tag ===

impl Tag {
    /// Of the mark `number` with this hash. The secret takes from whoever writes prompts the choice of what falls together.
    fn of(hash: BlockHash, number: usize, secret: u64) -> Self {
        let product = u128::from(hash.0 ^ secret) * 0x9e37_79b9_7f4a_7c15;
        let mixed = (product as u64) ^ ((product >> 64) as u64);
        Self((mixed >> 32) as u32 >> NUMBER_BITS << NUMBER_BITS | number as u32)
    }

    /// Blocks that the mark stands for: from the middle before it to the middle behind it, where the next one is not there.
    pub(super) fn weight(self) -> u32 {
        WEIGHT[((self.0 % (1 << NUMBER_BITS)) as usize).min(MARKS)]
    }
}

// === impl Marks ===

impl Marks {
    /// Of these prompts, of which `candidates` really hold something.
    pub(super) fn of(prompts: &[Prompt<'_>], candidates: &[Candidate], secret: u64) -> Self {
        let mut marks = Self::default();
        if let [prompt] = prompts {
            marks.note_ends(candidates, prompt.tokens_per_block);
        }
        for prompt in prompts {
            let blocks = u32::try_from(prompt.blocks.len()).unwrap_or(u32::MAX);
            let tag = |number| Tag::of(prompt.blocks[AT[number] as usize - 1], number, secret);
            marks.tags.extend((1..=count_within(blocks)).map(tag));
            marks.prompts.push(Marked {
                tags_end: marks.tags.len(),
                blocks,
                tokens: prompt.tokens,
                tokens_per_block: prompt.tokens_per_block,
            });
        }
        marks
    }

    fn note_ends(&mut self, candidates: &[Candidate], tokens_per_block: f64) {
        let mut last = 0;
        for tokens in candidates.iter().map(|candidate| candidate.matched_tokens) {
            let end = f64::from(tokens) / tokens_per_block;
            // Most hold the same.
            if tokens != last && self.ends.len() < MAX_ENDS && !self.ends.contains(&end) {
                self.ends.push(end);
            }
            last = tokens;
        }
    }

    /// Of all prompts.
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }

    /// One for each prompt; without marks for a short one.
    pub(super) fn chains(&self) -> impl Iterator<Item = Chain<'_>> {
        let mut start = 0;
        self.prompts.iter().map(move |marked| {
            let tags = &self.tags[start..marked.tags_end];
            start = marked.tags_end;
            Chain { tags, ends: &self.ends, marked: *marked }
        })
    }
}

// === impl Chain ===

impl Chain<'_> {
    /// Leading blocks that are held if the first `held` marks are and the next one is not, at best guess; a cache of
    /// `capacity_blocks` holds no more than these.
    pub(super) fn blocks(&self, held: usize, capacity_blocks: u32) -> f64 {
        let last = AT[held];
        let next = if held < self.tags.len() { AT[held + 1] - 1 } else { self.marked.blocks };
        let next = next.min(capacity_blocks).max(last);
        let is_between = |end: &f64| *end >= f64::from(last) && *end < f64::from(next + 1);
        // Of several turns of a conversation the last is the likeliest to be where the next one goes on.
        let known = self.ends.iter().copied().filter(is_between).reduce(f64::max);
        // Without a mark there is most often nothing.
        let guess = if held == 0 { 0.0 } else { f64::from(last + next) / 2.0 };
        known.unwrap_or(guess)
    }

    /// Tokens of so many blocks.
    pub(super) fn tokens(&self, blocks: f64) -> u64 {
        ((blocks * self.marked.tokens_per_block + 0.5) as u64).min(self.marked.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shadow::tests::candidate;

    fn marks(lengths: &[usize]) -> Marks {
        let blocks: Vec<_> = (1..=600).map(BlockHash).collect();
        let prompt = |&length: &usize| Prompt {
            blocks: &blocks[..length],
            tokens: length as u64 * 16 + 5,
            tokens_per_block: 16.0,
        };
        Marks::of(&lengths.iter().map(prompt).collect::<Vec<_>>(), &[], 7)
    }

    #[test]
    fn marks_are_eight_blocks_apart_then_an_eighth_of_the_last_power_of_two() {
        assert_eq!(AT[..5], [0, 8, 16, 24, 32]);
        assert_eq!(AT[14..20], [112, 120, 128, 144, 160, 176]);
        assert_eq!(AT[MARKS], 1 << 20);
        const { assert!(MARKS < 1 << NUMBER_BITS) };
        assert_eq!([0, 7, 8, 127, 128, u32::MAX].map(count_within), [0, 0, 1, 15, 16, MARKS]);
    }

    #[test]
    fn a_tag_tells_its_weight_and_hash() {
        let marks = marks(&[600]);
        let weights: u32 = marks.tags.iter().map(|tag| tag.weight()).sum();
        assert_eq!(weights, 576 + 32, "all blocks up to the last mark, and half of those before the next");
        assert!(marks.tags.iter().enumerate().all(|(at, tag)| !marks.tags[..at].contains(tag)));
        assert_ne!(Tag::of(BlockHash(1), 1, 7), Tag::of(BlockHash(1), 1, 8), "the secret decides");
        assert_eq!(Tag::default().weight(), 0);
    }

    #[test]
    fn each_prompt_has_its_own_marks() {
        let marks = marks(&[17, 3, 600]);
        let counts: Vec<_> = marks.chains().map(|chain| chain.tags.len()).collect();
        assert_eq!(counts, [2, 0, 16 + 8 * 2 + 1]);
        let chains: Vec<_> = marks.chains().collect();
        assert_eq!(chains[0].tags, &chains[2].tags[..2], "the same blocks have the same marks");
    }

    #[test]
    fn a_prefix_ends_in_the_middle_of_where_it_can_end() {
        let marks = marks(&[18, 600]);
        let chains: Vec<_> = marks.chains().collect();
        let blocks = |chain: usize, held| chains[chain].blocks(held, 1_000);
        assert_eq!([0, 1, 2].map(|held| blocks(0, held)), [0.0, 11.5, 17.0]);
        assert_eq!((blocks(1, 16), blocks(1, 33)), (135.5, 588.0));
        assert_eq!(chains[1].blocks(16, 130), 129.0, "the cache has room for no more");
        assert_eq!((chains[0].tokens(17.0), chains[0].tokens(30.0)), (272, 293), "never more than the prompt");
    }

    #[test]
    fn a_prefix_ends_where_the_prompt_is_known_to_leave_others() {
        let prompt = Prompt { blocks: &[BlockHash(1); 100], tokens: 1_600, tokens_per_block: 16.0 };
        let blocks = |prompts: &[Prompt<'_>]| {
            let holds = |matched_tokens| Candidate { matched_tokens, ..candidate(0, 1.0) };
            let marks = Marks::of(prompts, &[1_120, 1_120, 160, 0, 1_152, 176, 80].map(holds), 7);
            let chain = marks.chains().next().unwrap();
            [0, 1, 2, 8, 9, 10].map(|held| chain.blocks(held, 1_000))
        };
        assert_eq!(blocks(&[prompt]), [5.0, 11.0, 19.5, 70.0, 72.0, 83.5]);
        assert_eq!(blocks(&[prompt; 2]), [0.0, 11.5, 19.5, 67.5, 75.5, 83.5], "which of them does is not known");
    }
}
