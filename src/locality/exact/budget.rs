//! The byte budget that all tenants share, and the containers that ask it before they grow.
//!
//! What is counted is what an allocator spends ([`heap_bytes`]). A container that grows by moving needs its old place
//! beside the new one for a moment, which is not counted; those here are small parts of a whole, so that it is little.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::HashTable;

use super::super::bytes::heap_bytes;

/// A table with fewer buckets is not made smaller.
const MIN_SHRUNK_BUCKETS: usize = 64;

/// Bytes that may be allocated, and those that are. Written by every writer, read by all; `Relaxed`, since the number is
/// all there is to it.
#[derive(Debug)]
pub(super) struct Budget {
    max_bytes: usize,
    used_bytes: AtomicUsize,
}

/// A hash table of values that hold, or name, their own keys.
pub(super) struct Table<T>(HashTable<T>);

// === impl Budget ===

impl Budget {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, used_bytes: AtomicUsize::new(0) }
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    /// Takes `bytes` if there are as many left.
    #[must_use]
    pub(super) fn take(&self, bytes: usize) -> bool {
        let taken = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.max_bytes);
        bytes == 0 || self.used_bytes.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }

    pub(super) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.used_bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Makes room for one more item, by half of what there is. False if there are not enough bytes.
    #[must_use]
    pub(super) fn grow<T>(&self, items: &mut Vec<T>) -> bool {
        if items.len() < items.capacity() {
            return true;
        }
        let more = (items.capacity() / 2).max(4);
        if !self.take(vec_bytes::<T>(items.capacity() + more) - vec_bytes::<T>(items.capacity())) {
            return false;
        }
        items.reserve_exact(more);
        true
    }

    /// Frees a list that [`grow`](Self::grow) made.
    pub(super) fn free<T>(&self, items: &mut Vec<T>) {
        self.give_back(vec_bytes::<T>(items.capacity()));
        *items = Vec::new();
    }
}

fn vec_bytes<T>(capacity: usize) -> usize {
    heap_bytes(capacity * size_of::<T>())
}

// === impl Table ===

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self(HashTable::new())
    }

    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.0.find(hash, is_it)
    }

    pub(super) fn find_mut(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.0.find_mut(hash, is_it)
    }

    /// Adds a value that is not in the table. False, and nothing is added, if there are not enough bytes.
    #[must_use]
    pub(super) fn insert(&mut self, hash: u64, value: T, hash_of: impl Fn(&T) -> u64, budget: &Budget) -> bool {
        if self.0.len() == self.0.capacity() {
            let before = self.bytes();
            // Growing doubles the buckets, or cleans them out where half of them held what was removed. A few bytes
            // more for the smallest tables, whose sizes are the hash table's own affair.
            let most = heap_bytes(self.0.allocation_size() * 2 + 16 * (size_of::<T>() + 1));
            if !budget.take(most - before) {
                return false;
            }
            self.0.reserve(1, &hash_of);
            budget.give_back(most.saturating_sub(self.bytes()));
        }
        self.0.insert_unique(hash, value, hash_of);
        true
    }

    /// Takes a value out, and gives memory back that has become too much.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
        budget: &Budget,
    ) -> Option<T> {
        let (value, _) = self.0.find_entry(hash, is_it).ok()?.remove();
        let buckets = self.0.num_buckets();
        if self.0.is_empty() {
            self.free(budget);
        } else if buckets > MIN_SHRUNK_BUCKETS && self.0.len() < buckets / 8 {
            let before = self.bytes();
            self.0.shrink_to(self.0.len() * 2, hash_of);
            budget.give_back(before.saturating_sub(self.bytes()));
        }
        Some(value)
    }

    /// Empties it.
    pub(super) fn free(&mut self, budget: &Budget) {
        budget.give_back(self.bytes());
        self.0 = HashTable::new();
    }

    fn bytes(&self) -> usize {
        heap_bytes(self.0.allocation_size())
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    /// Spread over all bits, which the table takes from both ends.
    fn hash(value: &u32) -> u64 {
        u64::from(*value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    proptest! {
        #![proptest_config(testing::config(128))]

        #[test]
        fn a_table_agrees_with_a_set_and_keeps_to_its_bytes(
            max_bytes in prop_oneof![Just(usize::MAX), 0usize..3000],
            changes in prop::collection::vec((0u32..300, 0u8..8), 0..900),
        ) {
            let (budget, mut table, mut model) = (Budget::new(max_bytes), Table::new(), HashSet::new());
            // First mostly insertions, then mostly removals.
            let half = changes.len() / 2;
            for (nth, (value, kind)) in changes.into_iter().enumerate() {
                let is_insertion = (kind < 6) == (nth < half);
                if is_insertion && !model.contains(&value) {
                    let is_added = table.insert(hash(&value), value, hash, &budget);
                    prop_assert!(is_added || max_bytes < usize::MAX, "refused without need");
                    if is_added {
                        model.insert(value);
                    }
                } else if !is_insertion {
                    let removed = table.remove(hash(&value), |found| *found == value, hash, &budget);
                    prop_assert_eq!(removed.is_some(), model.remove(&value));
                }
                prop_assert_eq!(table.iter().count(), model.len());
                prop_assert!(model.iter().all(|value| table.find(hash(value), |found| found == value).is_some()));
                prop_assert_eq!(budget.used_bytes(), table.bytes(), "other bytes are counted than are allocated");
                prop_assert!(budget.used_bytes() <= max_bytes);
            }
            table.free(&budget);
            prop_assert_eq!(budget.used_bytes(), 0);
        }
    }

    #[test]
    fn an_emptied_table_gives_its_memory_back() {
        let (budget, mut table) = (Budget::new(usize::MAX), Table::new());
        for value in 0..10_000 {
            assert!(table.insert(hash(&value), value, hash, &budget));
        }
        let full = budget.used_bytes();
        for value in 0..9_500 {
            table.remove(hash(&value), |found| *found == value, hash, &budget);
        }
        assert!(budget.used_bytes() <= full / 4, "a nearly empty table keeps {} of {full}", budget.used_bytes());
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let budget = Budget::new(100);
        assert!(budget.take(60) && !budget.take(41) && budget.take(40));
        assert!(!budget.take(usize::MAX), "a sum that does not fit in a number is too large");
        budget.give_back(100);
        assert_eq!(budget.used_bytes(), 0);
    }
}
