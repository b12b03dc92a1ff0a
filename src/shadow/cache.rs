//! What one backend's cache holds: the marks that were used last, as many as the engine has room for.
//!
//! An LRU without a list. Uses are counted in *epochs*, each of a thirty-second of the capacity, and of every epoch it is
//! kept how many of the blocks last used in it were not used since. The newest epochs that fit are held; what is older is not,
//! whether or not it still has its place in the table. So evicting is a subtraction, and a use writes one cache line.
//!
//! Where the oldest epoch that is held fits only in part, such a part of each of its prompts counts as held: in sums that is
//! what evicting block by block comes to. Within a prompt no mark is older than those behind it, so the first marks
//! are held whenever later ones are.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use super::marks::{Chain, MIN_GAP, Tag, count_within};
use super::memory::{Grant, ShadowMemory};
use super::table::{Former, Table};

/// Epochs that are told apart. Twice those that a cache full of new blocks has; if there are more, because few blocks
/// are used again and again, the two oldest become one.
const EPOCHS: usize = 64;

/// Parts of the capacity of which uses make an epoch.
const EPOCHS_OF_CAPACITY: u32 = 32;

/// An epoch has no more uses than one mark for so many buckets. A table that is small against the capacity would
/// otherwise not know which of its marks are older.
const BUCKETS_TO_A_MARK: usize = 4;

/// No engine has room for so many blocks, and sums of a few of them fit 32 bits.
const MAX_CAPACITY_BLOCKS: u32 = 1 << 30;

/// One cache.
#[derive(Debug)]
pub(super) struct Cache {
    table: Table,
    capacity_blocks: u32,
    /// Marks within the capacity: those of one prompt that can be held.
    most_marks: usize,
    /// What is held, by the epoch of its last use, at its remainder.
    by_epoch: [Sum; EPOCHS],
    /// All of it: fewer blocks than the capacity, or more by a part of the oldest epoch.
    total: Sum,
    newest: u32,
    /// The oldest that is told apart. What is from before it, but not before `first`, is in it.
    oldest: u32,
    first: u32,
    /// Uses in the newest epoch.
    used_now: Sum,
}

/// So many marks, and the blocks that they stand for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    marks: u32,
    blocks: u32,
}

/// How many of a prompt's first marks are held.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    marks: usize,
    /// Those of them that are not in the oldest epoch.
    surely: usize,
}

// === impl Cache ===

impl Cache {
    pub(super) fn new(capacity_blocks: u32) -> Self {
        let capacity_blocks = capacity_blocks.clamp(1, MAX_CAPACITY_BLOCKS);
        Self {
            table: Table::default(),
            capacity_blocks,
            most_marks: count_within(capacity_blocks),
            by_epoch: [Sum::default(); EPOCHS],
            total: Sum::default(),
            newest: 1,
            oldest: 1,
            first: 1,
            used_now: Sum::default(),
        }
    }

    /// Another one that holds the same, if there is room for it.
    pub(super) fn copy(&self, memory: &Arc<ShadowMemory>) -> Option<Self> {
        let buckets = self.table.buckets();
        let table = self.table.resized(buckets, memory.take(Table::bytes(buckets))?);
        Some(Self { table, ..*self })
    }

    pub(super) fn set_capacity(&mut self, capacity_blocks: u32) {
        self.capacity_blocks = capacity_blocks.clamp(1, MAX_CAPACITY_BLOCKS);
        self.most_marks = count_within(self.capacity_blocks);
        self.evict();
    }

    /// How many buckets its table should have to take in so many marks, if that is more than it has.
    pub(super) fn wanted_buckets(&self, marks: usize) -> Option<usize> {
        let most = (self.capacity_blocks / MIN_GAP) as usize;
        self.table.wanted_buckets((self.total.marks as usize + marks).min(most))
    }

    /// Gives it a larger table.
    pub(super) fn grow(&mut self, buckets: usize, grant: Grant) {
        self.table = self.table.resized(buckets, grant);
    }

    /// Leading blocks of a prompt that it holds.
    pub(super) fn matched_blocks(&self, prompt: &Chain<'_>) -> f64 {
        let tags = self.clip(prompt);
        let last_use = |at: usize| self.table.last_use(*tags.get(at)?).filter(|&epoch| self.is_live(epoch));
        let is_newer = |at: usize| last_use(at).is_some_and(|epoch| !self.is_oldest(epoch));
        // The table may have lost one between two that are held.
        let marks = leading(tags.len(), |at| last_use(at).is_some() || last_use(at + 1).is_some());
        // Most often none is in the oldest epoch.
        let are_all_newer = marks == 0 || is_newer(marks - 1);
        let surely = if are_all_newer { marks } else { leading(marks, |at| is_newer(at) || is_newer(at + 1)) };
        self.blocks_of(prompt, Held { marks, surely }, self.oldest_share())
    }

    /// Makes a prompt the last one used; returns its leading blocks that were held.
    pub(super) fn touch(&mut self, prompt: &Chain<'_>) -> f64 {
        let (mut held, share) = (Held::default(), self.oldest_share());
        self.table.fetch(self.clip(prompt));
        for (before, &tag) in self.clip(prompt).iter().enumerate() {
            match self.table.touch(tag, self.newest) {
                Former::Held(epoch) if self.is_live(epoch) => {
                    held.note(before, self.is_oldest(epoch));
                    if epoch == self.newest {
                        continue;
                    }
                    self.forget(tag, epoch);
                }
                Former::Held(_) => {}
                Former::Missing(other, epoch) if other != Tag::default() && self.is_live(epoch) => {
                    self.forget(other, epoch);
                }
                Former::Missing(..) => {}
            }
            self.note(tag);
        }
        self.evict();
        self.begin_epoch();
        self.blocks_of(prompt, held, share)
    }

    /// Marks of a prompt that it has room for; none before it has a table.
    fn clip<'a>(&self, prompt: &Chain<'a>) -> &'a [Tag] {
        let most = if self.table.buckets() == 0 { 0 } else { self.most_marks };
        &prompt.tags[..prompt.tags.len().min(most)]
    }

    /// Blocks of a prompt of which so much is held, with this share of the oldest epoch.
    fn blocks_of(&self, prompt: &Chain<'_>, held: Held, share: f64) -> f64 {
        let blocks = |marks| prompt.blocks(marks, self.capacity_blocks);
        if held.surely == held.marks {
            return blocks(held.marks);
        }
        blocks(held.marks) * share + blocks(held.surely) * (1.0 - share)
    }
}

// === impl Cache: epochs ===

impl Cache {
    fn is_live(&self, epoch: u32) -> bool {
        self.newest.wrapping_sub(epoch) <= self.newest.wrapping_sub(self.first)
    }

    fn is_oldest(&self, epoch: u32) -> bool {
        self.newest.wrapping_sub(epoch) >= self.newest.wrapping_sub(self.oldest)
    }

    /// The part of the oldest epoch that fits.
    fn oldest_share(&self) -> f64 {
        let excess = self.total.blocks.saturating_sub(self.capacity_blocks);
        1.0 - f64::from(excess) / f64::from(self.by_epoch[slot(self.oldest)].blocks.max(1))
    }

    fn note(&mut self, tag: Tag) {
        let mark = Sum { marks: 1, blocks: tag.weight() };
        self.by_epoch[slot(self.newest)] += mark;
        self.total += mark;
        self.used_now += mark;
    }

    /// Takes a mark out of the epoch in which it was used last.
    fn forget(&mut self, tag: Tag, epoch: u32) {
        let mark = Sum { marks: 1, blocks: tag.weight() };
        let epoch = if self.is_oldest(epoch) { self.oldest } else { epoch };
        self.by_epoch[slot(epoch)] -= mark;
        self.total -= mark;
    }

    /// Gives up the oldest epochs as long as the others are as much as fits.
    fn evict(&mut self) {
        while self.oldest != self.newest {
            let oldest = &mut self.by_epoch[slot(self.oldest)];
            if self.total.blocks - oldest.blocks < self.capacity_blocks {
                return;
            }
            self.total -= std::mem::take(oldest);
            self.oldest = self.oldest.wrapping_add(1);
            self.first = self.oldest;
        }
    }

    /// Begins the next epoch if the newest has its uses.
    fn begin_epoch(&mut self) {
        let (blocks, buckets) = (self.capacity_blocks / EPOCHS_OF_CAPACITY, self.table.buckets() / BUCKETS_TO_A_MARK);
        let is_over = self.used_now.blocks >= blocks.max(1) || self.used_now.marks as usize >= buckets;
        if !is_over || self.used_now == Sum::default() {
            return;
        }
        self.used_now = Sum::default();
        self.newest = self.newest.wrapping_add(1);
        if self.newest.wrapping_sub(self.oldest) as usize == EPOCHS {
            let oldest = std::mem::take(&mut self.by_epoch[slot(self.oldest)]);
            self.oldest = self.oldest.wrapping_add(1);
            self.by_epoch[slot(self.oldest)] += oldest;
        }
    }
}

/// How many of the first numbers below `end` have it, by bisection: those that have come before those that do not.
fn leading(end: usize, has_it: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low.midpoint(high);
        if has_it(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

fn slot(epoch: u32) -> usize {
    epoch as usize % EPOCHS
}

// === impl Sum ===

impl AddAssign for Sum {
    fn add_assign(&mut self, more: Self) {
        self.marks += more.marks;
        self.blocks += more.blocks;
    }
}

impl SubAssign for Sum {
    fn sub_assign(&mut self, less: Self) {
        self.marks -= less.marks;
        self.blocks -= less.blocks;
    }
}

// === impl Held ===

impl Held {
    /// Another mark is held, behind so many; those in the oldest epoch are the last. One that is missing between two that are
    /// held is one that the table has lost.
    fn note(&mut self, before: usize, is_oldest: bool) {
        if before > self.marks + 1 {
            return;
        }
        self.marks = before + 1;
        if !is_oldest {
            self.surely = self.marks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks::{Marks, Prompt};
    use super::*;
    use crate::prefix::BlockHash;
    use crate::shadow::tests::chain;

    /// A cache that gets a larger table whenever it wants one.
    struct Fixture {
        cache: Cache,
        memory: Arc<ShadowMemory>,
    }

    impl Fixture {
        fn new(capacity_blocks: u32) -> Self {
            Self { cache: Cache::new(capacity_blocks), memory: Arc::new(ShadowMemory::new(1 << 24, 1)) }
        }

        fn touch(&mut self, prompt: &[BlockHash]) -> f64 {
            if let Some(buckets) = self.cache.wanted_buckets(count_within(prompt.len() as u32)) {
                self.cache.grow(buckets, self.memory.take(Table::bytes(buckets)).unwrap());
            }
            self.with(prompt, |cache, chain| {
                let expected = cache.matched_blocks(chain);
                let held = cache.touch(chain);
                assert_eq!(held, expected, "looking tells what using finds");
                held
            })
        }

        fn matched(&mut self, prompt: &[BlockHash]) -> f64 {
            self.with(prompt, |cache, chain| cache.matched_blocks(chain))
        }

        fn with(&mut self, prompt: &[BlockHash], act: impl Fn(&mut Cache, &Chain<'_>) -> f64) -> f64 {
            let marks = Marks::of(&[Prompt { blocks: prompt, tokens: 1 << 40, tokens_per_block: 16.0 }], &[], 1);
            let held = marks.chains().map(|chain| act(&mut self.cache, &chain)).sum();
            let (cache, mut sum) = (&self.cache, Sum::default());
            cache.by_epoch.iter().for_each(|&epoch| sum += epoch);
            assert_eq!(sum, cache.total);
            let others = cache.total.blocks - cache.by_epoch[slot(cache.oldest)].blocks;
            assert!(others < cache.capacity_blocks, "the oldest epoch is not needed");
            held
        }
    }

    fn prompt(number: u64, blocks: usize) -> Vec<BlockHash> {
        chain(number, blocks, 0, 0)
    }

    #[test]
    fn what_was_used_the_longest_ago_goes_first_and_in_part() {
        let mut fixture = Fixture::new(110);
        // Each counts for 44: it could have ended anywhere before its next mark.
        let prompts: Vec<_> = (0..4).map(|number| prompt(number, 40)).collect();
        for prompt in &prompts[..2] {
            fixture.touch(prompt);
        }
        assert_eq!(fixture.touch(&prompts[0]), 40.0);
        fixture.touch(&prompts[2]);
        assert_eq!([0, 1, 2].map(|number| fixture.matched(&prompts[number])), [40.0, 20.0, 40.0]);
        fixture.touch(&prompts[3]);
        assert_eq!([0, 1, 2, 3].map(|number| fixture.matched(&prompts[number])), [20.0, 0.0, 40.0, 40.0]);
    }

    #[test]
    fn a_few_blocks_that_are_used_for_ever_take_the_place_of_no_others() {
        let mut fixture = Fixture::new(680);
        let (cold, hot) = (prompt(1, 64), [prompt(2, 64), prompt(3, 64)]);
        fixture.touch(&cold);
        for turn in 0..10_000 {
            fixture.touch(&hot[turn % 2]);
        }
        assert_eq!(fixture.matched(&cold), 64.0);
        for number in 4..13 {
            fixture.touch(&prompt(number, 64));
        }
        assert_eq!([&cold, &hot[0], &hot[1]].map(|prompt| fixture.matched(prompt)), [0.0, 0.0, 64.0]);
    }

    #[test]
    fn a_prompt_longer_than_the_cache_is_held_in_part() {
        let mut fixture = Fixture::new(52);
        let (long, short) = (prompt(1, 1_000), prompt(2, 24));
        fixture.touch(&long);
        assert_eq!(fixture.touch(&long), 50.0, "48 of its blocks have marks");
        fixture.touch(&short);
        assert!((fixture.touch(&long) - 24.0 / 52.0 * 50.0).abs() < 1e-9);
        fixture.cache.set_capacity(0);
        assert_eq!(fixture.matched(&long), 0.0);
    }

    #[test]
    fn epochs_may_wrap() {
        let mut fixture = Fixture::new(108);
        let cache = &mut fixture.cache;
        (cache.newest, cache.oldest, cache.first) = (u32::MAX - 5, u32::MAX - 5, u32::MAX - 5);
        for number in 0..50 {
            assert_eq!(fixture.touch(&prompt(number, 32)), 0.0);
            assert_eq!(fixture.matched(&prompt(number, 32)), 32.0);
            assert_eq!(fixture.matched(&prompt(number.wrapping_sub(2), 32)), if number < 2 { 0.0 } else { 32.0 });
            assert_eq!(fixture.matched(&prompt(number.wrapping_sub(3), 32)), 0.0);
        }
    }

    #[test]
    fn a_copy_holds_the_same_and_goes_its_own_way() {
        let mut fixture = Fixture::new(108);
        fixture.touch(&prompt(1, 32));
        let mut copy = Fixture { cache: fixture.cache.copy(&fixture.memory).unwrap(), ..Fixture::new(108) };
        for number in 2..5 {
            copy.touch(&prompt(number, 32));
        }
        assert_eq!((copy.matched(&prompt(1, 32)), fixture.matched(&prompt(1, 32))), (0.0, 32.0));
    }
}
