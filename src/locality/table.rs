//! The hash table of one shard: open addressing with linear probing, deletion by shifting back.
//!
//! Written here rather than taken from the standard library because the byte budget needs to know, before an
//! insertion, what it will allocate, and needs the memory back after removals; a table with tombstones tells neither.

use std::mem::size_of;

use super::bytes::heap_bytes;
use super::run::Run;
use crate::prefix::BlockHash;

type Entry = Option<(BlockHash, Box<Run>)>;

/// Entries of the smallest table that is not empty.
const MIN_ENTRIES: usize = 8;

/// Runs by the hash of their first block.
pub(super) struct Table {
    /// Keys the placement, so that prompts cannot be made to pile up in one place.
    seed: u64,
    /// Empty, or a power of two of entries of which at most three quarters are used.
    entries: Box<[Entry]>,
    len: usize,
}

// === impl Table ===

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, entries: Box::default(), len: 0 }
    }

    pub(super) fn get(&self, key: BlockHash) -> Option<&Run> {
        let at = self.position(key)?;
        self.entries[at].as_ref().map(|(_, run)| &**run)
    }

    pub(super) fn get_mut(&mut self, key: BlockHash) -> Option<&mut Run> {
        let at = self.position(key)?;
        self.entries[at].as_mut().map(|(_, run)| &mut **run)
    }

    /// Adds a run under a key that is not in the table.
    pub(super) fn insert(&mut self, key: BlockHash, run: Box<Run>) {
        if self.is_full() {
            self.resize(self.next_size());
        }
        self.place(key, run);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: BlockHash) -> Option<Box<Run>> {
        let at = self.position(key)?;
        let (_, run) = self.entries[at].take()?;
        self.shift_back(at);
        self.len -= 1;
        if self.len == 0 {
            self.entries = Box::default();
        } else if self.len * 8 < self.entries.len() && self.entries.len() > MIN_ENTRIES {
            self.resize(self.entries.len() / 2);
        }
        Some(run)
    }

    /// Bytes of the table itself, without the runs.
    pub(super) fn bytes(&self) -> usize {
        table_bytes(self.entries.len())
    }

    /// Bytes by which the next insertion makes the table larger.
    pub(super) fn growth_bytes(&self) -> usize {
        if self.is_full() { table_bytes(self.next_size()) - self.bytes() } else { 0 }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockHash, &Run)> {
        self.entries.iter().flatten().map(|(key, run)| (*key, &**run))
    }

    fn is_full(&self) -> bool {
        (self.len + 1) * 4 > self.entries.len() * 3
    }

    fn next_size(&self) -> usize {
        (self.entries.len() * 2).max(MIN_ENTRIES)
    }

    fn home(&self, key: BlockHash) -> usize {
        // The low bits; the high ones chose the shard. The mask cannot go below zero: no caller has an empty table.
        mix(key, self.seed) as usize & (self.entries.len() - 1)
    }

    fn position(&self, key: BlockHash) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let mask = self.entries.len() - 1;
        let mut at = self.home(key);
        loop {
            match &self.entries[at] {
                None => return None,
                Some((found, _)) if *found == key => return Some(at),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn place(&mut self, key: BlockHash, run: Box<Run>) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(key);
        while self.entries[at].is_some() {
            at = (at + 1) & mask;
        }
        self.entries[at] = Some((key, run));
    }

    /// Closes the gap at `hole`: an entry behind it moves in unless that would put it before its home.
    fn shift_back(&mut self, mut hole: usize) {
        let mask = self.entries.len() - 1;
        let mut next = (hole + 1) & mask;
        while let Some((key, _)) = &self.entries[next] {
            let from_home = next.wrapping_sub(self.home(*key)) & mask;
            if from_home >= next.wrapping_sub(hole) & mask {
                self.entries.swap(hole, next);
                hole = next;
            }
            next = (next + 1) & mask;
        }
    }

    fn resize(&mut self, size: usize) {
        let grown: Box<[Entry]> = (0..size).map(|_| None).collect();
        let old = std::mem::replace(&mut self.entries, grown);
        for (key, run) in old.into_iter().flatten() {
            self.place(key, run);
        }
    }
}

/// Spreads a key. Block hashes are spread already, but by a function that whoever writes prompts can compute too: a
/// multiplication folded with a secret costs a nanosecond and takes away the choice of the place.
pub(super) fn mix(key: BlockHash, seed: u64) -> u64 {
    let product = u128::from(key.0 ^ seed) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ ((product >> 64) as u64)
}

fn table_bytes(entries: usize) -> usize {
    heap_bytes(entries * size_of::<Entry>())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_agrees_with_a_map_and_foretells_its_growth(
            seed: u64,
            changes in prop::collection::vec((0u64..200, any::<bool>()), 0..600),
        ) {
            let mut table = Table::new(seed);
            let mut model = HashMap::new();
            for (key, is_insertion) in changes {
                let key = BlockHash(key);
                if is_insertion && !model.contains_key(&key) {
                    let foretold = table.bytes() + table.growth_bytes();
                    table.insert(key, Box::new(Run::new(&[key])));
                    model.insert(key, ());
                    prop_assert_eq!(table.bytes(), foretold, "the growth was not as foretold");
                } else if !is_insertion {
                    prop_assert_eq!(table.remove(key).is_some(), model.remove(&key).is_some());
                }
                prop_assert_eq!(table.iter().count(), model.len());
                for key in (0..200).map(BlockHash) {
                    let found = table.get(key).map(|run| run.blocks());
                    prop_assert_eq!(found, model.get(&key).map(|()| 1), "key {:?} is in one and not the other", key);
                }
            }
        }
    }

    #[test]
    fn an_emptied_table_gives_its_memory_back() {
        let mut table = Table::new(7);
        for key in (0..1000).map(BlockHash) {
            table.insert(key, Box::new(Run::new(&[key])));
        }
        let full = table.bytes();
        for key in (0..950).map(BlockHash) {
            table.remove(key);
        }
        assert!(table.bytes() <= full / 4, "a nearly empty table keeps {} of {full} bytes", table.bytes());
        for key in (950..1000).map(BlockHash) {
            table.remove(key);
        }
        assert_eq!(table.bytes(), 0);
    }
}
