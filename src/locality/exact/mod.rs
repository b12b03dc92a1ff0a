//! The exact index: which blocks engines say that they hold, by their KV events.
//!
//! A structure of its own beside the runs of the assumed index. Those have an order of use and are cut by eviction;
//! here the engine says of each block when it comes and goes, so blocks are kept singly.
//!
//! A block is looked up by our own hash of the token ids in its event, chained by that of its parent
//! ([`token_block`](crate::prefix::token_block)). The engine's hashes are no more than names to find it by again, and
//! each tenant has its own. On the writers' side (`held.rs`, `store.rs`), one for each tenant behind its own lock, there
//! is the tree of its blocks (`tree.rs`, `slab.rs`); on the readers' side (`shards.rs`) the holders of each block
//! (`holders.rs`). A lookup takes no writer's lock, only a shard's read lock for the moment of one look.
//!
//! It never claims a block that the engine did not report or has taken back: `publish.rs` says how that holds in the
//! middle of changes, `aside.rs` what is done with blocks whose parent is unknown. Where bytes are short (`budget.rs`)
//! blocks are refused and counted. What a tenant loses at once is gone for readers at once and swept later (`slot.rs`,
//! `retired.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use self::adapters::Adapters;
use self::budget::Budget;
use self::retired::{Retired, Swept};
use self::shards::Shards;
use self::slot::Slots;
use crate::prefix::BlockHash;

mod adapters;
mod aside;
mod budget;
mod held;
mod holders;
mod level;
mod matches;
mod publish;
mod refused;
mod retired;
mod shards;
mod slab;
mod slot;
mod store;
mod tenant;
mod tree;

#[cfg(test)]
mod check;
#[cfg(test)]
mod concurrency_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use self::matches::{ExactMatches, TierBlocks};
pub use self::slot::Slot;
pub use self::tenant::ExactTenant;

/// Places swept with every message besides one for each name in it: more than it can store, so that sweeping gains on
/// clears and what has left does not keep out what comes.
const SWEPT_PER_CHANGE: usize = 16;

/// Which blocks engines hold, by their events. Shared by all threads.
pub struct ExactIndex {
    shards: Shards,
    budget: Budget,
    slots: Slots,
    retired: Mutex<VecDeque<Retired>>,
    adapters: Adapters,
    counters: Counters,
    seed: u64,
}

/// What came of the events of a message, in blocks where nothing else is said. Events of groups of layers that are not
/// indexed count nowhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Stored, those that had waited for their parent included.
    pub stored: u64,
    /// Removed.
    pub removed: u64,
    /// Set aside, because their parent is not known.
    pub set_aside: u64,
    /// Dropped of those set aside before, the oldest, to make room.
    pub dropped_aside: u64,
    /// Removals of what is not known.
    pub unknown_removals: u64,
    /// Stores without token ids of blocks that are not known.
    pub unknown_names: u64,
    /// Stores under a name that another block has; from then on neither is claimed.
    pub ambiguous: u64,
    /// Not stored, or not told to readers: for want of bytes, behind a block of which that is so, or because a block was
    /// stored more often than can be counted.
    pub refused: u64,
    /// Events whose parts do not fit together.
    pub unusable_events: u64,
}

/// Sizes of the index at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExactStats {
    /// Bytes allocated for what tenants hold.
    pub bytes: u64,
    /// The most that `bytes` can be.
    pub budget_bytes: u64,
    /// Blocks that engines hold, summed over tenants.
    pub blocks: u64,
    /// Blocks that wait for their parent, summed over tenants.
    pub aside_blocks: u64,
    /// Blocks refused so far.
    pub refused_blocks_total: u64,
    /// Tenants.
    pub tenants: u64,
}

/// Sums for whoever asks. Written by tenants' writers, read without a lock; `Relaxed`, since each is of use alone.
#[derive(Default)]
struct Counters {
    blocks: AtomicU64,
    aside_blocks: AtomicU64,
    refused_blocks: AtomicU64,
    tenants: AtomicU64,
}

// === impl ExactIndex ===

impl ExactIndex {
    /// An empty index that allocates no more than `max_bytes` for what tenants hold (128 KiB of empty shards and some
    /// 2 KiB a tenant come on top). `seed` is a secret that keeps outsiders from choosing where entries are put.
    pub fn new(max_bytes: usize, seed: u64) -> Self {
        Self {
            shards: Shards::new(seed),
            budget: Budget::new(max_bytes),
            slots: Slots::default(),
            retired: Mutex::default(),
            adapters: Adapters::default(),
            counters: Counters::default(),
            seed,
        }
    }

    /// A new tenant that holds nothing.
    pub fn join(self: &Arc<Self>) -> ExactTenant {
        ExactTenant::new(Arc::clone(self))
    }

    /// Finds how many leading blocks of `chain`, the hashes of a prompt's token blocks in order, every tenant holds.
    /// `matches` is emptied first.
    ///
    /// Of what changes meanwhile, a tenant is found to hold no more than at some moment of the lookup, and no less than at
    /// all of them.
    pub fn lookup(&self, chain: &[BlockHash], matches: &mut ExactMatches) {
        self.shards.lookup(chain, matches);
    }

    /// Whether an event has named this LoRA adapter, among the first 256 of its tenant.
    pub fn knows_adapter(&self, name: &str) -> bool {
        self.adapters.contains(name)
    }

    /// Sweeps up to `max` places of what tenants have lost at once; returns how many there were. Changes do this by
    /// themselves, some each; this is for when there are none.
    pub fn sweep(&self, max: usize) -> usize {
        self.sweep_from(&mut self.retired.lock(), max)
    }

    /// Sizes; takes no lock.
    pub fn stats(&self) -> ExactStats {
        let counters = &self.counters;
        ExactStats {
            bytes: self.budget.used_bytes() as u64,
            budget_bytes: self.budget.max_bytes() as u64,
            blocks: counters.blocks.load(Relaxed),
            aside_blocks: counters.aside_blocks.load(Relaxed),
            refused_blocks_total: counters.refused_blocks.load(Relaxed),
            tenants: counters.tenants.load(Relaxed),
        }
    }

    fn retire(&self, mut retired: Retired) {
        // Of one that held nothing, nothing must be left to wait for a sweep.
        match retired.sweep(1, &self.shards, &self.budget) {
            Swept::All(_) => self.slots.give_back(retired.slot),
            Swept::Some(_) => self.retired.lock().push_back(retired),
        }
    }

    /// What a message with so many names sweeps, unless somebody else does.
    fn sweep_beside(&self, names: usize) {
        let Some(mut retired) = self.retired.try_lock() else { return };
        self.sweep_from(&mut retired, names + SWEPT_PER_CHANGE);
    }

    fn sweep_from(&self, retired: &mut VecDeque<Retired>, max: usize) -> usize {
        let mut swept = 0;
        while let Some(oldest) = retired.front_mut()
            && swept < max
        {
            match oldest.sweep(max - swept, &self.shards, &self.budget) {
                Swept::Some(places) => swept += places,
                Swept::All(places) => {
                    swept += places;
                    self.slots.give_back(oldest.slot);
                    retired.pop_front();
                }
            }
        }
        swept
    }
}

impl fmt::Debug for ExactIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExactIndex").field(&self.stats()).finish()
    }
}
