//! Slots: under what name readers find a tenant. A tenant that loses all it held goes on under another slot, so that
//! readers find nothing of it at once, however long the sweeping takes.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// Bits of a slot that say its place; the others count how often the place was used.
const PLACE_BITS: u32 = 16;

/// Bits of a slot in all; a holder keeps its level in the other two of 32.
pub(super) const SLOT_BITS: u32 = 30;

/// A tenant's name among readers, until it loses all it held at once.
///
/// A dense place, and a count of its uses: a lookup made before a place was given to another tenant says nothing of
/// that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(u32);

/// A slot that readers ask for while its tenant's writer may change it. Written under the tenant's lock; what is stored
/// under a slot is stored after readers can know it.
#[derive(Debug)]
pub(super) struct SharedSlot(AtomicU32);

/// Gives out slots.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    used: u32,
    /// Slots to be used next.
    free: Vec<Slot>,
}

// === impl Slot ===

impl Slot {
    /// The slot of tenants for which there was none: nothing is stored under it.
    pub(super) const NOWHERE: Self = Self(u32::MAX >> PLACE_BITS);

    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn place(self) -> usize {
        (self.0 & Self::NOWHERE.0) as usize
    }

    fn next_use(self) -> Self {
        Self((self.0 + (1 << PLACE_BITS)) & (u32::MAX >> (32 - SLOT_BITS)))
    }
}

// === impl SharedSlot ===

impl SharedSlot {
    pub(super) fn new(slot: Slot) -> Self {
        Self(AtomicU32::new(slot.0))
    }

    pub(super) fn get(&self) -> Slot {
        Slot(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, slot: Slot) {
        self.0.store(slot.0, Ordering::Release);
    }
}

// === impl Slots ===

impl Slots {
    /// A slot under which nothing is stored, or [`Slot::NOWHERE`] when 65,535 are in use.
    pub(super) fn take(&self) -> Slot {
        let mut places = self.0.lock();
        if let Some(slot) = places.free.pop() {
            return slot;
        }
        let slot = Slot(places.used);
        places.used = (places.used + 1).min(Slot::NOWHERE.0);
        slot
    }

    /// Takes a slot back of which nothing is stored any more.
    pub(super) fn give_back(&self, slot: Slot) {
        if slot.place() != Slot::NOWHERE.place() {
            self.0.lock().free.push(slot.next_use());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense_and_uses_differ() {
        let slots = Slots::default();
        let (first, second) = (slots.take(), slots.take());
        assert_eq!((first.place(), second.place()), (0, 1));
        slots.give_back(first);
        let again = slots.take();
        assert_eq!(again.place(), 0, "a free place is used first");
        assert_ne!(first, again, "two uses of a place cannot be told apart");
        assert!(again.bits() < 1 << SLOT_BITS);
    }

    #[test]
    fn when_all_places_are_taken_there_is_the_slot_that_is_nowhere() {
        let slots = Slots::default();
        for _ in 0..Slot::NOWHERE.place() {
            assert_ne!(slots.take(), Slot::NOWHERE);
        }
        assert_eq!((slots.take(), slots.take()), (Slot::NOWHERE, Slot::NOWHERE));
        slots.give_back(Slot::NOWHERE);
        assert_eq!(slots.take(), Slot::NOWHERE);
    }
}
