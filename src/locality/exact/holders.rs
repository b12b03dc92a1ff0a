//! The holders of a block: who has it and how near.
//!
//! Two holders lie in the block's entry itself, as that is all there are of most blocks; more lie in a list beside the
//! shard's table. Holders are a multiset: an engine may have two names for what is one block to us, and each of them
//! holds it.

use super::budget::Budget;
use super::level::Level;
use super::slot::Slot;
use crate::prefix::BlockHash;

/// A slot and its level. Never of level none, so that those bits say that an entry has a list instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder(u32);

/// A block and its holders, in 16 bytes.
pub(super) struct Entry {
    pub(super) key: BlockHash,
    /// The first holder, or where the list is, shifted by the bits of a level.
    first: u32,
    /// The second holder or 0; the fingerprint if there is a list.
    second: u32,
}

/// Stands for all holders of a block: equal if they are, and hardly ever otherwise. 0 if there are none, and only then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

/// The lists of one shard's entries.
#[derive(Default)]
pub(super) struct Lists {
    lists: Vec<List>,
    /// The first of the free ones.
    free: Option<u32>,
    used: usize,
}

enum List {
    Used(Vec<Holder>),
    /// The next free one.
    Free(Option<u32>),
}

/// Whether there are holders left.
#[derive(PartialEq, Eq)]
pub(super) enum Left {
    Some,
    None,
}

// === impl Holder ===

impl Holder {
    pub(super) fn new(slot: Slot, level: Level) -> Self {
        Self(slot.bits() << 2 | level as u32)
    }

    pub(super) fn slot(self) -> Slot {
        Slot::from_bits(self.0 >> 2)
    }

    pub(super) fn level(self) -> Level {
        Level::from_bits(self.0)
    }

    /// Spread, so that sums of them are not equal by arithmetic.
    fn fingerprint(self) -> u32 {
        let spread = (self.0 ^ self.0 >> 15).wrapping_mul(0x2c1b_3c6d);
        (spread ^ spread >> 12).wrapping_mul(0x297a_2d39) ^ spread >> 7
    }
}

// === impl Fingerprint ===

impl Fingerprint {
    pub(super) const NOBODY: Self = Self(0);

    fn of(sum: u32) -> Self {
        Self(1 << 32 | u64::from(sum))
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn new(key: BlockHash, holder: Holder) -> Self {
        Self { key, first: holder.0, second: 0 }
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        match (self.list(), self.second) {
            (Some(_), sum) => Fingerprint::of(sum),
            (None, 0) => Fingerprint::of(Holder(self.first).fingerprint()),
            (None, second) => {
                Fingerprint::of(Holder(self.first).fingerprint().wrapping_add(Holder(second).fingerprint()))
            }
        }
    }

    /// Adds the holders to a list.
    pub(super) fn copy_to(&self, lists: &Lists, copy: &mut Vec<Holder>) {
        match (self.list(), self.second) {
            (Some(list), _) => copy.extend_from_slice(lists.get(list)),
            (None, 0) => copy.push(Holder(self.first)),
            (None, second) => copy.extend([Holder(self.first), Holder(second)]),
        }
    }

    /// False, and nothing is added, if there are not enough bytes.
    #[must_use]
    pub(super) fn add(&mut self, holder: Holder, lists: &mut Lists, budget: &Budget) -> bool {
        if let Some(list) = self.list() {
            let holders = lists.get_mut(list);
            if !budget.grow(holders) {
                return false;
            }
            holders.push(holder);
            self.second = self.second.wrapping_add(holder.fingerprint());
        } else if self.second == 0 {
            self.second = holder.0;
        } else {
            let Some(list) = lists.add([Holder(self.first), Holder(self.second), holder], budget) else { return false };
            let sum = Fingerprint::sum(lists.get(list));
            (self.first, self.second) = (list << 2, sum);
        }
        true
    }

    /// Puts one holder in the place of another that is there.
    pub(super) fn replace(&mut self, from: Holder, to: Holder, lists: &mut Lists) {
        if let Some(list) = self.list() {
            if let Some(found) = lists.get_mut(list).iter_mut().find(|holder| **holder == from) {
                *found = to;
                self.second = self.second.wrapping_sub(from.fingerprint()).wrapping_add(to.fingerprint());
            }
        } else if self.first == from.0 {
            self.first = to.0;
        } else if self.second == from.0 {
            self.second = to.0;
        }
    }

    pub(super) fn remove(&mut self, holder: Holder, lists: &mut Lists, budget: &Budget) -> Left {
        if let Some(list) = self.list() {
            self.remove_listed(list, holder, lists, budget);
        } else if self.second == holder.0 {
            self.second = 0;
        } else if self.first == holder.0 {
            if self.second == 0 {
                return Left::None;
            }
            (self.first, self.second) = (self.second, 0);
        }
        Left::Some
    }

    fn remove_listed(&mut self, list: u32, holder: Holder, lists: &mut Lists, budget: &Budget) {
        let holders = lists.get_mut(list);
        if let Some(at) = holders.iter().position(|found| *found == holder) {
            holders.swap_remove(at);
            self.second = self.second.wrapping_sub(holder.fingerprint());
        }
        if let [first, second] = holders[..] {
            (self.first, self.second) = (first.0, second.0);
            lists.remove(list, budget);
        }
    }

    fn list(&self) -> Option<u32> {
        (Level::from_bits(self.first) == Level::None).then_some(self.first >> 2)
    }
}

impl Fingerprint {
    fn sum(holders: &[Holder]) -> u32 {
        holders.iter().fold(0, |sum, holder| sum.wrapping_add(holder.fingerprint()))
    }
}

// === impl Lists ===

impl Lists {
    fn get(&self, at: u32) -> &[Holder] {
        match &self.lists[at as usize] {
            List::Used(holders) => holders,
            List::Free(_) => &[],
        }
    }

    fn get_mut(&mut self, at: u32) -> &mut Vec<Holder> {
        match &mut self.lists[at as usize] {
            List::Used(holders) => holders,
            List::Free(_) => unreachable!("an entry's list is in use"),
        }
    }

    fn add(&mut self, holders: [Holder; 3], budget: &Budget) -> Option<u32> {
        let mut list = Vec::new();
        if !budget.grow(&mut list) {
            return None;
        }
        if self.free.is_none() {
            if !budget.grow(&mut self.lists) {
                budget.free(&mut list);
                return None;
            }
            self.free = Some(self.lists.len() as u32);
            self.lists.push(List::Free(None));
        }
        list.extend(holders);
        let at = self.free?;
        let place = &mut self.lists[at as usize];
        if let List::Free(next) = place {
            self.free = *next;
        }
        *place = List::Used(list);
        self.used += 1;
        Some(at)
    }

    fn remove(&mut self, at: u32, budget: &Budget) {
        budget.free(self.get_mut(at));
        self.lists[at as usize] = List::Free(self.free);
        self.free = Some(at);
        self.used -= 1;
        if self.used == 0 {
            budget.free(&mut self.lists);
            self.free = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::testing;

    fn holder() -> impl Strategy<Value = Holder> + Clone {
        (0u32..5, 1u32..4).prop_map(|(slot, level)| Holder::new(Slot::from_bits(slot), Level::from_bits(level)))
    }

    #[derive(Debug, Clone)]
    enum Change {
        Add(Holder),
        Replace(Index, Holder),
        Remove(Index),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            4 => holder().prop_map(Change::Add),
            2 => (any::<Index>(), holder()).prop_map(|(at, holder)| Change::Replace(at, holder)),
            3 => any::<Index>().prop_map(Change::Remove),
        ];
        prop::collection::vec(change, 0..80)
    }

    fn sorted(holders: &[Holder]) -> Vec<u32> {
        let mut holders: Vec<u32> = holders.iter().map(|holder| holder.0).collect();
        holders.sort_unstable();
        holders
    }

    proptest! {
        #![proptest_config(testing::config(256))]

        #[test]
        fn an_entry_holds_what_a_vector_holds(first in holder(), changes in changes()) {
            let (budget, mut lists, mut model) = (Budget::new(1 << 20), Lists::default(), vec![first]);
            let mut entry = Entry::new(BlockHash(1), first);
            // Whoever comes first, the last list takes its place when it goes.
            let mut neighbour = Entry::new(BlockHash(2), first);
            for _ in 0..3 {
                prop_assert!(neighbour.add(first, &mut lists, &budget));
            }
            for change in changes {
                match change {
                    Change::Add(holder) => {
                        prop_assert!(entry.add(holder, &mut lists, &budget));
                        model.push(holder);
                    }
                    Change::Replace(at, holder) => {
                        let from = std::mem::replace(at.get_mut(&mut model), holder);
                        entry.replace(from, holder, &mut lists);
                    }
                    Change::Remove(at) => {
                        let removed = model.swap_remove(at.index(model.len()));
                        let left = entry.remove(removed, &mut lists, &budget);
                        prop_assert_eq!(left == Left::None, model.is_empty());
                        if model.is_empty() {
                            entry = Entry::new(BlockHash(1), first);
                            model.push(first);
                        }
                    }
                }
                let mut seen = Vec::new();
                entry.copy_to(&lists, &mut seen);
                prop_assert_eq!(sorted(&seen), sorted(&model));
                prop_assert_eq!(entry.fingerprint(), Fingerprint::of(Fingerprint::sum(&model)));
            }
            for holder in model {
                entry.remove(holder, &mut lists, &budget);
            }
            for _ in 0..4 {
                neighbour.remove(first, &mut lists, &budget);
            }
            prop_assert_eq!(budget.used_bytes(), 0, "the lists keep bytes");
        }
    }

    #[test]
    fn holders_that_add_up_alike_have_fingerprints_of_their_own() {
        let of = |slots: [u32; 2]| {
            let [a, b] = slots.map(|slot| Holder::new(Slot::from_bits(slot), Level::Gpu));
            Fingerprint::sum(&[a, b])
        };
        let sums: std::collections::HashSet<u32> = (0..200).map(|slot| of([slot, 400 - slot])).collect();
        assert_eq!(sums.len(), 200);
    }

    #[test]
    fn without_bytes_a_third_holder_is_refused_and_two_stay() {
        let holders = [1, 2, 3].map(|slot| Holder::new(Slot::from_bits(slot), Level::Gpu));
        let (budget, mut lists) = (Budget::new(100), Lists::default());
        let mut entry = Entry::new(BlockHash(1), holders[0]);
        assert!(entry.add(holders[1], &mut lists, &budget));
        let before = entry.fingerprint();
        assert!(!entry.add(holders[2], &mut lists, &budget));
        assert_eq!((entry.fingerprint(), budget.used_bytes()), (before, 0));
    }
}
