//! Blocks whose parent is not known (yet), by its name. Nothing is guessed of them: they wait for the parent, and the
//! oldest are dropped where there are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use super::super::bytes::heap_bytes;
use super::budget::Budget;
use crate::kv_events::{EngineHash, Medium};

/// Blocks set aside of one tenant at most: a long prompt's.
const MAX_BLOCKS: usize = 8192;

/// Bytes of them at most.
const MAX_BYTES: usize = 2 << 20;

/// What a block costs besides its ids: its share of three B-trees whose nodes are half full.
const BLOCK_BYTES: usize = 256;

/// A stored block that waits for its parent.
#[derive(Debug)]
pub(super) struct AsideBlock {
    pub(super) name: EngineHash,
    pub(super) parent: EngineHash,
    pub(super) ids: Box<[u32]>,
    pub(super) extra: Option<NonZeroU64>,
    pub(super) medium: Medium,
}

/// The blocks that wait, of one tenant.
#[derive(Default)]
pub(super) struct Aside {
    /// By age, the oldest first.
    blocks: BTreeMap<u64, AsideBlock>,
    by_parent: BTreeSet<(u64, u64)>,
    by_name: BTreeSet<(u64, u64)>,
    last_age: u64,
    bytes: usize,
}

/// What came of setting a block aside.
pub(super) enum SetAside {
    /// It waits, and so many others were dropped for it.
    Done { dropped: usize },
    /// There are not enough bytes.
    Refused,
}

// === impl Aside ===

impl Aside {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn add(&mut self, block: AsideBlock, budget: &Budget) -> SetAside {
        let bytes = block.bytes();
        if bytes > MAX_BYTES || !budget.take(bytes) {
            return SetAside::Refused;
        }
        let mut dropped = 0;
        while (self.blocks.len() >= MAX_BLOCKS || self.bytes + bytes > MAX_BYTES)
            && let Some((&age, _)) = self.blocks.first_key_value()
        {
            self.take(age, budget);
            dropped += 1;
        }
        self.last_age += 1;
        self.bytes += bytes;
        self.by_parent.insert((block.parent.0, self.last_age));
        self.by_name.insert((block.name.0, self.last_age));
        self.blocks.insert(self.last_age, block);
        SetAside::Done { dropped }
    }

    /// Takes the oldest of the blocks that wait for `parent`.
    pub(super) fn take_child(&mut self, parent: EngineHash, budget: &Budget) -> Option<AsideBlock> {
        let age = self.by_parent.range((parent.0, 0)..=(parent.0, u64::MAX)).next()?.1;
        self.take(age, budget)
    }

    /// Takes a block that was stored in `medium`, which the engine removed meanwhile.
    pub(super) fn remove(&mut self, name: EngineHash, medium: Medium, budget: &Budget) -> Option<AsideBlock> {
        let mut ages = self.by_name.range((name.0, 0)..=(name.0, u64::MAX)).map(|(_, age)| *age);
        let age = ages.find(|age| self.blocks.get(age).is_some_and(|block| block.medium == medium))?;
        self.take(age, budget)
    }

    pub(super) fn clear(&mut self, budget: &Budget) {
        budget.give_back(self.bytes);
        *self = Self::default();
    }

    fn take(&mut self, age: u64, budget: &Budget) -> Option<AsideBlock> {
        let block = self.blocks.remove(&age)?;
        self.by_parent.remove(&(block.parent.0, age));
        self.by_name.remove(&(block.name.0, age));
        self.bytes -= block.bytes();
        budget.give_back(block.bytes());
        Some(block)
    }
}

// === impl AsideBlock ===

impl AsideBlock {
    fn bytes(&self) -> usize {
        BLOCK_BYTES + heap_bytes(self.ids.len() * size_of::<u32>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: u64, parent: u64, medium: Medium) -> AsideBlock {
        AsideBlock { name: EngineHash(name), parent: EngineHash(parent), ids: Box::new([7; 16]), extra: None, medium }
    }

    #[test]
    fn blocks_are_found_by_their_parent_and_by_name_and_medium() {
        let (mut aside, budget) = (Aside::default(), Budget::new(1 << 20));
        for (name, parent, medium) in [(1, 9, Medium::Gpu), (2, 9, Medium::Cpu), (3, 8, Medium::Gpu)] {
            aside.add(block(name, parent, medium), &budget);
        }
        assert!(aside.remove(EngineHash(2), Medium::Gpu, &budget).is_none(), "it is in another medium");
        assert!(aside.remove(EngineHash(2), Medium::Cpu, &budget).is_some());
        let taken = aside.take_child(EngineHash(9), &budget).map(|block| block.name);
        assert_eq!(taken, Some(EngineHash(1)));
        assert!(aside.take_child(EngineHash(9), &budget).is_none());
        aside.clear(&budget);
        assert_eq!((aside.len(), budget.used_bytes()), (0, 0));
    }

    #[test]
    fn the_oldest_make_room_for_the_newest() {
        let (mut aside, budget) = (Aside::default(), Budget::new(64 << 20));
        let mut dropped = 0;
        for name in 0..MAX_BLOCKS as u64 + 100 {
            if let SetAside::Done { dropped: more } = aside.add(block(name, name + 1, Medium::Gpu), &budget) {
                dropped += more;
            }
        }
        assert!(budget.used_bytes() <= MAX_BYTES && aside.len() <= MAX_BLOCKS);
        assert_eq!(aside.len() + dropped, MAX_BLOCKS + 100);
        assert!(aside.take_child(EngineHash(1), &budget).is_none(), "the oldest is still there");
        assert!(aside.take_child(EngineHash(MAX_BLOCKS as u64 + 100), &budget).is_some());
    }

    #[test]
    fn without_bytes_nothing_waits() {
        let (mut aside, budget) = (Aside::default(), Budget::new(100));
        assert!(matches!(aside.add(block(1, 2, Medium::Gpu), &budget), SetAside::Refused));
        assert_eq!((aside.len(), budget.used_bytes()), (0, 0));
    }
}
