//! The one writer: tenants, their order of use, and the byte budget. Readers never wait for it as a whole, only for
//! the single changes it publishes, each under one shard's write lock.
//!
//! What readers see is true at every moment because of the order of the changes: a tenant gains runs from the first to
//! the last and loses them from the last to the first, so that whoever is in a run holds all before it; and a run is
//! cut by adding its tail before its head is shortened, so that nobody finds a gap.
//!
//! Invariant: the bytes of everything that can grow never exceed the budget. Room is made before it is used: first
//! from retired generations, then from the tenant with the most blocks, its least recently used ones first. Taking
//! from the largest evens out what the tenants keep, and a block among many is worth less than one among few.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Tenant;
use super::holder::{Counts, Holder};
use super::lru::{HoldId, Holds, List};
use super::shards::{Recounted, Shards};
use crate::prefix::BlockHash;

/// Retired holds swept by every change. More than a change adds at most times, so that sweeping gains on restarts.
const SWEPT_PER_CHANGE: usize = 8;

/// Blocks taken in one step from a tenant that must make room; small against what a tenant holds, and large enough
/// that choosing the tenant is not the work.
const EVICTION_STEP_BLOCKS: u32 = 64;

/// What the writer knows; see the module's documentation.
pub(super) struct Writer {
    pub(super) shards: Arc<Shards>,
    pub(super) holds: Holds,
    /// By slot.
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    last_generation: u32,
    /// By generation: what engines held that have restarted or left, until it is swept.
    retired: BTreeMap<u32, Retired>,
    budget_bytes: usize,
    /// Bytes of runs and of the table, without the slab of holds.
    run_bytes: usize,
    pub(super) totals: Totals,
    /// The tenant's holds along the chain being worked on; here only to keep its memory.
    pub(super) path: Vec<Step>,
}

/// A run on the way along a chain, and the tenant's hold of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) hold: HoldId,
    pub(super) run_blocks: u32,
}

/// A place for a tenant.
pub(super) struct Slot {
    /// 0, which no tenant has, while the slot is free.
    generation: u32,
    pub(super) capacity_blocks: u32,
    /// Blocks assumed held, at most the capacity after every change.
    pub(super) blocks: u32,
    /// Blocks of runs with at least one claim of this tenant.
    pub(super) in_flight_blocks: u64,
    pub(super) lists: Lists,
}

/// All holds of a tenant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Lists {
    /// Those with assumed blocks, in the order of use.
    pub(super) used: List,
    /// Those with none, there only for requests in flight. Ordered so that along a chain the first is the newest.
    pub(super) claimed: List,
}

struct Retired {
    slot: u32,
    lists: Lists,
}

/// Sums over everything.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) runs: usize,
    pub(super) blocks: u64,
    pub(super) in_flight_blocks: u64,
    pub(super) evicted_blocks: u64,
}

/// What must stay when room is made: the newest blocks of a tenant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    pub(super) tenant: Tenant,
    pub(super) newest_blocks: u32,
}

/// The outcome of asking for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It is there, and nothing changed.
    Free,
    /// It was made: whatever was read before may no longer be so.
    Made,
    /// There is none, though all was evicted that need not be kept.
    None,
}

// === impl Writer: tenants ===

impl Writer {
    pub(super) fn new(shards: Arc<Shards>, budget_bytes: usize) -> Self {
        Self {
            shards,
            holds: Holds::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            last_generation: 0,
            retired: BTreeMap::new(),
            budget_bytes,
            run_bytes: 0,
            totals: Totals::default(),
            path: Vec::new(),
        }
    }

    pub(super) fn join(&mut self, capacity_blocks: u32) -> Tenant {
        let slot = self.free_slots.pop().unwrap_or(self.slots.len() as u32);
        let generation = self.next_generation();
        let entry = Slot { generation, capacity_blocks, blocks: 0, in_flight_blocks: 0, lists: Lists::EMPTY };
        match self.slots.get_mut(slot as usize) {
            Some(free) => *free = entry,
            None => self.slots.push(entry),
        }
        Tenant { slot, generation }
    }

    /// Gives the slot up. It can be used again at once: the generation tells the next tenant's entries from those
    /// that are still to be swept.
    pub(super) fn leave(&mut self, tenant: Tenant) {
        if let Some(slot) = self.retire(tenant) {
            slot.generation = 0;
            self.free_slots.push(tenant.slot);
        }
    }

    /// Forgets all that the tenant holds and gives it a new generation. A tenant that is stale already stays so.
    pub(super) fn restart(&mut self, tenant: Tenant) -> Tenant {
        let generation = self.next_generation();
        match self.retire(tenant) {
            Some(slot) => {
                slot.generation = generation;
                Tenant { generation, ..tenant }
            }
            None => tenant,
        }
    }

    pub(super) fn set_capacity(&mut self, tenant: Tenant, capacity_blocks: u32) {
        if let Some(slot) = self.live(tenant) {
            slot.capacity_blocks = capacity_blocks;
            self.evict_to(tenant, capacity_blocks);
        }
    }

    /// The tenant's slot, if its generation is the one that lives there.
    pub(super) fn live(&mut self, tenant: Tenant) -> Option<&mut Slot> {
        self.live_lists(tenant).map(|(slot, _)| slot)
    }

    /// The tenant's slot, if it is live, and the slab that its lists run through.
    pub(super) fn live_lists(&mut self, tenant: Tenant) -> Option<(&mut Slot, &mut Holds)> {
        let slot = self.slots.get_mut(tenant.slot as usize)?;
        (slot.generation == tenant.generation && tenant.generation != 0).then_some((slot, &mut self.holds))
    }

    pub(super) fn blocks(&self, tenant: Tenant) -> u32 {
        match self.slots.get(tenant.slot as usize) {
            Some(slot) if slot.generation == tenant.generation => slot.blocks,
            _ => 0,
        }
    }

    fn retire(&mut self, tenant: Tenant) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(tenant.slot as usize)?;
        if slot.generation != tenant.generation || tenant.generation == 0 {
            return None;
        }
        self.totals.blocks -= u64::from(std::mem::take(&mut slot.blocks));
        self.totals.in_flight_blocks -= std::mem::take(&mut slot.in_flight_blocks);
        let lists = std::mem::replace(&mut slot.lists, Lists::EMPTY);
        if lists != Lists::EMPTY {
            self.retired.insert(tenant.generation, Retired { slot: tenant.slot, lists });
        }
        Some(slot)
    }

    fn next_generation(&mut self) -> u32 {
        // Restarting once a second it takes 136 years to get round.
        self.last_generation = self.last_generation.wrapping_add(1).max(1);
        self.last_generation
    }

    /// The lists that a hold of `tenant` is in, retired or not.
    fn lists_of<'a>(
        slots: &'a mut [Slot],
        retired: &'a mut BTreeMap<u32, Retired>,
        tenant: Tenant,
    ) -> Option<&'a mut Lists> {
        match slots.get_mut(tenant.slot as usize) {
            Some(slot) if slot.generation == tenant.generation => Some(&mut slot.lists),
            _ => retired.get_mut(&tenant.generation).map(|retired| &mut retired.lists),
        }
    }
}

// === impl Writer: the budget ===

impl Writer {
    pub(super) fn bytes(&self) -> usize {
        self.run_bytes + self.holds.bytes()
    }

    pub(super) fn left_bytes(&self) -> usize {
        self.budget_bytes.saturating_sub(self.bytes())
    }

    pub(super) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    pub(super) fn charge_run_bytes(&mut self, before: usize, after: usize) {
        self.run_bytes = self.run_bytes + after - before;
    }

    /// Sees to it that `more` bytes fit, evicting what need not be kept.
    pub(super) fn make_room(&mut self, more: usize, keep: Option<Keep>) -> Room {
        let mut room = Room::Free;
        while self.bytes() + more > self.budget_bytes {
            if !self.sweep_one() && !self.evict_from_largest(keep) {
                return Room::None;
            }
            room = Room::Made;
        }
        room
    }

    fn evict_from_largest(&mut self, keep: Option<Keep>) -> bool {
        let spare = |slot: usize, entry: &Slot| match keep {
            Some(keep) if keep.tenant.slot as usize == slot => entry.blocks.saturating_sub(keep.newest_blocks),
            _ => entry.blocks,
        };
        let largest = self.slots.iter().enumerate().map(|(slot, entry)| (spare(slot, entry), slot)).max();
        let Some((spare, slot)) = largest.filter(|(spare, _)| *spare > 0) else { return false };
        let victim = Tenant { slot: slot as u32, generation: self.slots[slot].generation };
        let Some(oldest) = self.slots[slot].lists.used.oldest() else { return false };
        // A quarter of a long hold at a time, because less might give no memory back.
        let step = EVICTION_STEP_BLOCKS.max(self.holds.blocks(oldest) / 4);
        self.evict_oldest(victim, step.min(spare))
    }

    /// Evicts until the tenant is assumed to hold no more than `blocks`.
    pub(super) fn evict_to(&mut self, tenant: Tenant, blocks: u32) {
        while let Some(excess) = self.blocks(tenant).checked_sub(blocks).filter(|excess| *excess > 0) {
            if !self.evict_oldest(tenant, excess) {
                return;
            }
        }
    }

    /// Takes up to `blocks` from the end of the tenant's oldest hold.
    fn evict_oldest(&mut self, tenant: Tenant, blocks: u32) -> bool {
        let Some(hold) = self.live(tenant).and_then(|slot| slot.lists.used.oldest()) else { return false };
        let held = self.holds.blocks(hold);
        let left = held.saturating_sub(blocks);
        let (_, after) = self.recount(self.holds.run(hold), tenant, |counts| Counts { blocks: left, ..counts });
        self.holds.set_blocks(hold, left);
        let slot = &mut self.slots[tenant.slot as usize];
        slot.blocks -= held - left;
        self.totals.blocks -= u64::from(held - left);
        self.totals.evicted_blocks += u64::from(held - left);
        if left == 0 {
            slot.lists.used.unlink(&mut self.holds, hold);
            if after == Counts::NONE {
                self.holds.remove(hold);
            } else {
                slot.lists.claimed.push_newest(&mut self.holds, hold);
            }
        }
        true
    }

    /// Changes the counts of a holder; removes it, and its run, when nothing is left. Returns the counts before and
    /// after.
    pub(super) fn recount(
        &mut self,
        run: BlockHash,
        tenant: Tenant,
        change: impl FnOnce(Counts) -> Counts,
    ) -> (Counts, Counts) {
        let Some(Recounted { before, after, bytes, is_run_gone }) = self.shards.recount(run, tenant, change) else {
            return (Counts::NONE, Counts::NONE);
        };
        self.charge_run_bytes(bytes.0, bytes.1);
        self.totals.runs -= usize::from(is_run_gone);
        (before, after)
    }
}

// === impl Writer: sweeping ===

impl Writer {
    /// Removes what is left of retired generations, at most `max` holds; returns how many it was.
    pub(super) fn sweep(&mut self, max: usize) -> usize {
        (0..max).take_while(|_| self.sweep_one()).count()
    }

    /// The share of the sweeping that every change does.
    pub(super) fn sweep_some(&mut self) {
        self.sweep(SWEPT_PER_CHANGE);
    }

    fn sweep_one(&mut self) -> bool {
        let Some(mut entry) = self.retired.first_entry() else { return false };
        let tenant = Tenant { slot: entry.get().slot, generation: *entry.key() };
        // Claimed ones first: they lie deeper than used ones, and a chain must go from its end.
        let lists = &mut entry.get_mut().lists;
        let list = if lists.claimed.oldest().is_some() { &mut lists.claimed } else { &mut lists.used };
        let Some(hold) = list.oldest() else { return false };
        list.unlink(&mut self.holds, hold);
        if *lists == Lists::EMPTY {
            entry.remove();
        }
        self.recount(self.holds.run(hold), tenant, |_| Counts::NONE);
        self.holds.remove(hold);
        true
    }
}

// === impl Writer: cutting ===

impl Writer {
    /// Cuts a run in two before its block `at`, for which there must be room.
    pub(super) fn cut(&mut self, key: BlockHash, at: usize) {
        let Self { shards, holds, slots, retired, .. } = self;
        let Some((tail, head)) = shards.read(key, |run| {
            let tail_key = run.hashes()[at];
            let tail = run.tail(at, |holder, blocks| {
                let hold = holds.add(tail_key, blocks);
                if let Some(lists) = Self::lists_of(slots, retired, holder.tenant) {
                    lists.insert_tail(holds, holder, hold);
                }
                hold
            });
            (tail, run.hashes()[..at].to_vec())
        }) else {
            return;
        };
        let tail_key = tail.hashes()[0];
        let tail_bytes = tail.bytes();
        let table_growth = self.shards.insert(tail_key, Box::new(tail));
        let head_bytes = self.shards.write(key, |run| {
            let before = run.bytes();
            let former = run.shorten(head);
            for holder in run.holders() {
                self.holds.set_blocks(holder.hold, holder.counts().blocks);
            }
            (before, run.bytes(), former)
        });
        if let Some((before, after, _former)) = head_bytes {
            self.charge_run_bytes(before, after);
        }
        self.charge_run_bytes(0, tail_bytes + table_growth);
        self.totals.runs += 1;
    }
}

// === impl Lists ===

impl Lists {
    const EMPTY: Self = Self { used: List::EMPTY, claimed: List::EMPTY };

    /// Puts the tail's part of a hold that was cut just behind the head's, which comes before it in the chain.
    fn insert_tail(&mut self, holds: &mut Holds, head: &Holder, tail: HoldId) {
        if holds.blocks(tail) > 0 {
            self.used.insert_behind(holds, Some(head.hold), tail);
        } else if head.counts().blocks == 0 {
            self.claimed.insert_behind(holds, Some(head.hold), tail);
        } else {
            self.claimed.push_newest(holds, tail);
        }
    }
}

#[cfg(test)]
impl Writer {
    /// Every tenant with entries: those that live, with their slots, and those that are retired.
    pub(super) fn for_each_tenant(&self, mut look: impl FnMut(Tenant, &Lists, Option<&Slot>)) {
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.generation != 0) {
            look(Tenant { slot: at as u32, generation: slot.generation }, &slot.lists, Some(slot));
        }
        for (generation, retired) in &self.retired {
            look(Tenant { slot: retired.slot, generation: *generation }, &retired.lists, None);
        }
    }
}
