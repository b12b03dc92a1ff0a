//! A tenant of the index: one source of events, which is a backend's engine process or one data-parallel rank of it.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::held::Held;
use super::slot::{SharedSlot, Slot};
use super::{Applied, ExactIndex};
use crate::kv_events::Batch;

/// A place in the index for what one event source reports. Dropping it leaves the index.
pub struct ExactTenant {
    index: Arc<ExactIndex>,
    held: Mutex<Held>,
    facts: Facts,
}

/// What is asked of a tenant without its lock. Written under it.
pub(super) struct Facts {
    pub(super) slot: SharedSlot,
    /// 0 if none was seen.
    block_tokens: AtomicU32,
    blocks: AtomicU64,
    aside_blocks: AtomicU64,
}

// === impl ExactTenant ===

impl ExactTenant {
    pub(super) fn new(index: Arc<ExactIndex>) -> Self {
        let slot = index.slots.take();
        index.counters.tenants.fetch_add(1, Relaxed);
        let facts = Facts {
            slot: SharedSlot::new(slot),
            block_tokens: AtomicU32::new(0),
            blocks: AtomicU64::new(0),
            aside_blocks: AtomicU64::new(0),
        };
        Self { held: Mutex::new(Held::new(index.seed, slot)), index, facts }
    }

    /// Applies the events of one message, and sweeps a little.
    pub fn apply(&self, batch: &Batch) -> Applied {
        self.index.sweep_beside(batch.hashes.len());
        let mut held = self.held.lock();
        let applied = held.apply(batch, &self.index, &self.facts);
        self.count(&held);
        drop(held);
        self.index.counters.refused_blocks.fetch_add(applied.refused, Relaxed);
        applied
    }

    /// Ends all that is known of the tenant, since events were missed or its engine is another process: readers find
    /// nothing of it from now on, and its block size and group of layers are learned again.
    pub fn clear(&self) {
        let mut held = self.held.lock();
        held.clear(&self.index, &self.facts);
        held.group = None;
        self.facts.block_tokens.store(0, Relaxed);
        self.count(&held);
    }

    /// What [`ExactMatches::levels`](super::ExactMatches::levels) finds the tenant by, until it loses all it holds at
    /// once. Takes no lock.
    pub fn slot(&self) -> Slot {
        self.facts.slot.get()
    }

    /// Tokens in a block, if events have told. Where blocks differ it is the longest: engines also report the beginning
    /// of a block.
    pub fn block_tokens(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.facts.block_tokens.load(Relaxed))
    }

    /// Blocks that the engine has in any medium, each counted once.
    pub fn blocks(&self) -> u64 {
        self.facts.blocks.load(Relaxed)
    }

    /// Brings the sums up to date.
    fn count(&self, held: &Held) {
        let counters = &self.index.counters;
        for (now, mine, all) in [
            (held.blocks, &self.facts.blocks, &counters.blocks),
            (held.aside.len() as u64, &self.facts.aside_blocks, &counters.aside_blocks),
        ] {
            let before = mine.swap(now, Relaxed);
            // Adding a negative difference wraps to what is wanted.
            all.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn look<R>(&self, look: impl FnOnce(&Held) -> R) -> R {
        look(&self.held.lock())
    }
}

impl Drop for ExactTenant {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        held.retire(&self.index);
        self.index.adapters.forget(&mut held.adapters, &self.index.budget);
        self.count(&held);
        self.index.counters.tenants.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for ExactTenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactTenant").field("slot", &self.slot()).field("blocks", &self.blocks()).finish()
    }
}

// === impl Facts ===

impl Facts {
    pub(super) fn see_block_tokens(&self, tokens: NonZeroU32) {
        if tokens.get() > self.block_tokens.load(Relaxed) {
            self.block_tokens.store(tokens.get(), Relaxed);
        }
    }
}
