//! The answer of a lookup: how much of a prompt every tenant holds, and how near, in a buffer to be used again.

use super::holders::Holder;
use super::level::{Level, MEDIA};
use super::slot::Slot;

/// Matched blocks by where they are at best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierBlocks {
    /// Leading blocks of the prompt that are all on the GPU.
    pub gpu: u32,
    /// Further ones that are all at least in the host's memory.
    pub cpu: u32,
    /// Further ones that are all at least on disk.
    pub disk: u32,
}

/// Matched blocks per tenant, filled by [`ExactIndex::lookup`](super::ExactIndex::lookup).
///
/// Dense by the places of slots, so that asking costs an index; emptied by the list of places that were filled. Keep one
/// per thread and use it for every request.
#[derive(Debug, Default)]
pub struct ExactMatches {
    by_place: Vec<Option<Match>>,
    filled: Vec<u32>,
    pub(super) copies: Copies,
}

/// Holders that a lookup has seen and not noted yet; here only to keep the memory.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) holders: Vec<Holder>,
    pub(super) beyond: Vec<Holder>,
}

#[derive(Debug, Clone, Copy)]
struct Match {
    slot: Slot,
    /// For each level, disk first, the leading blocks seen at it.
    ends: [u32; MEDIA],
}

// === impl TierBlocks ===

impl TierBlocks {
    /// Matched blocks wherever they are.
    pub fn total(self) -> u32 {
        self.gpu + self.cpu + self.disk
    }
}

// === impl ExactMatches ===

impl ExactMatches {
    /// An empty buffer; it grows to the highest place seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leading blocks of the prompt that the tenant of this slot holds. Ask the tenant for its slot after the lookup: so
    /// what it lost before is not counted.
    pub fn levels(&self, slot: Slot) -> TierBlocks {
        let found = self.by_place.get(slot.place()).copied().flatten().filter(|found| found.slot == slot);
        let [disk, cpu, gpu] = found.map_or([0; MEDIA], |found| found.ends);
        let (within_cpu, within_disk) = (cpu.max(gpu), disk.max(cpu).max(gpu));
        TierBlocks { gpu, cpu: within_cpu - gpu, disk: within_disk - within_cpu }
    }

    pub(super) fn clear(&mut self) {
        for place in self.filled.drain(..) {
            self.by_place[place as usize] = None;
        }
    }

    /// Notes that a holder of a block was seen, which is then the last of so many leading ones.
    pub(super) fn note(&mut self, holder: Holder, blocks: u32) {
        let (slot, level) = (holder.slot(), holder.level());
        let place = slot.place();
        if place >= self.by_place.len() {
            self.by_place.resize(place + 1, None);
        }
        let found = &mut self.by_place[place];
        if found.is_none() {
            self.filled.push(place as u32);
        }
        // A place is given to another tenant when nothing of the last one is left, so that what differs is newer.
        let found = match found {
            Some(found) if found.slot == slot => found,
            other => other.insert(Match { slot, ends: [0; MEDIA] }),
        };
        if level > Level::None {
            let end = &mut found.ends[level as usize - 1];
            *end = blocks.max(*end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::Slots;
    use super::*;

    #[test]
    fn levels_are_counted_from_the_nearest_on() {
        let slot = Slots::default().take();
        let mut matches = ExactMatches::new();
        for (level, blocks) in [(Level::Disk, 9), (Level::Gpu, 4), (Level::Gpu, 2)] {
            matches.note(Holder::new(slot, level), blocks);
        }
        assert_eq!(matches.levels(slot), TierBlocks { gpu: 4, cpu: 0, disk: 5 });
        matches.note(Holder::new(slot, Level::Cpu), 6);
        assert_eq!(matches.levels(slot), TierBlocks { gpu: 4, cpu: 2, disk: 3 });
        assert_eq!(matches.levels(slot).total(), 9);
        matches.clear();
        assert_eq!(matches.levels(slot), TierBlocks::default(), "a match of the last lookup was left");
    }

    #[test]
    fn what_was_seen_of_a_place_is_not_its_next_tenants() {
        let slots = Slots::default();
        let old = slots.take();
        slots.give_back(old);
        let new = slots.take();
        let mut matches = ExactMatches::new();
        matches.note(Holder::new(old, Level::Gpu), 7);
        assert_eq!(matches.levels(new), TierBlocks::default());
        matches.note(Holder::new(new, Level::Cpu), 2);
        assert_eq!(matches.levels(new), TierBlocks { gpu: 0, cpu: 2, disk: 0 });
        assert_eq!(matches.levels(old), TierBlocks::default());
    }
}
