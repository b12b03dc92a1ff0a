//! The locality index: which backends are believed to hold which prefix blocks.
//!
//! A prompt's blocks are kept as *runs* (`run.rs`), the edges of a compressed trie in a sharded hash table
//! (`table.rs`, `shards.rs`). A lookup takes one step per run, not per block: a prompt of thousands of blocks goes
//! through a run for each earlier prompt that left it or ended on it, and each step notes all tenants at once. It
//! takes no lock but a shard's read lock, for the moment of copying out of one run.
//!
//! All changes go through one writer (`writer.rs`): assumed entries (`assumed.rs`) in an LRU per tenant sized to the
//! engine's capacity (`lru.rs`), an overlay for requests in flight (`overlay.rs`), and a byte budget over everything
//! that is enforced before memory is taken (`bytes.rs` says how it is counted).
//!
//! A tenant is a backend's engine process. A restart gives it a new [generation](Tenant) and so ends everything the
//! old one held, at once; the entries are swept later, a few with every change.
//!
//! Exact entries, which engines report by KV events, are an index of their own ([`ExactIndex`], in `exact`).
//!
//! In the style of SGLang's radix cache (Zheng et al., 2023), without its tree: chained hashes make pointers needless.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use self::shards::Shards;
use self::writer::Writer;
use crate::prefix::BlockHash;

mod assumed;
mod bytes;
mod copy;
mod exact;
mod holder;
mod lru;
mod matches;
mod overlay;
mod run;
mod shards;
mod table;
mod tenant;
mod writer;

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

pub use self::copy::RunCopy;
pub use self::exact::{Applied, ExactIndex, ExactMatches, ExactStats, ExactTenant, Slot, TierBlocks};
pub use self::matches::{Held, Matches};
pub use self::overlay::InFlightBlocks;
pub use self::tenant::Tenant;

/// Which tenants are believed to hold which blocks. Shared by all threads.
pub struct LocalityIndex {
    shards: Arc<Shards>,
    writer: Mutex<Writer>,
    counters: Counters,
}

/// Sizes of the index at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Bytes allocated for entries.
    pub bytes: u64,
    /// The most that `bytes` can be.
    pub budget_bytes: u64,
    /// Runs: sequences of blocks kept as one.
    pub runs: u64,
    /// Pairs of a run and a tenant, those of retired generations included until they are swept.
    pub holds: u64,
    /// Blocks assumed held, summed over tenants.
    pub blocks: u64,
    /// Blocks claimed by requests in flight, summed over tenants; some of them are among `blocks` too.
    pub overlay_blocks: u64,
    /// Blocks evicted so far, for capacity or for bytes.
    pub evicted_blocks_total: u64,
}

/// The writer's sums for whoever asks. Written under the writer's lock, read without; all `Relaxed`, since each number
/// is of use alone.
#[derive(Default)]
struct Counters {
    budget_bytes: u64,
    bytes: AtomicU64,
    runs: AtomicU64,
    holds: AtomicU64,
    blocks: AtomicU64,
    overlay_blocks: AtomicU64,
    evicted_blocks: AtomicU64,
}

// === impl LocalityIndex ===

impl LocalityIndex {
    /// An empty index that never allocates more than `budget_bytes` for its entries (256 KiB of empty shards and some
    /// 60 bytes a tenant come on top). `seed` is a secret that keeps outsiders from choosing where entries are put.
    pub fn new(budget_bytes: usize, seed: u64) -> Self {
        let shards = Arc::new(Shards::new(seed));
        let writer = Mutex::new(Writer::new(Arc::clone(&shards), budget_bytes));
        Self { shards, writer, counters: Counters { budget_bytes: budget_bytes as u64, ..Counters::default() } }
    }

    /// Finds how many leading blocks of `chain`, the block hashes of a prompt in order, every tenant holds. `matches`
    /// is emptied first.
    pub fn lookup(&self, chain: &[BlockHash], matches: &mut Matches) {
        self.shards.lookup(chain, matches);
    }

    /// A new tenant that holds nothing, whose engine has room for `capacity_blocks`.
    pub fn join(&self, capacity_blocks: u32) -> Tenant {
        self.change(|writer| writer.join(capacity_blocks))
    }

    /// Ends a tenant and all that it holds, in constant time. A stale tenant is ignored, here and below.
    pub fn leave(&self, tenant: Tenant) {
        self.change(|writer| writer.leave(tenant));
    }

    /// The tenant's engine lost its cache: ends all that it holds, in constant time, and returns the tenant to use
    /// from now on. A stale tenant is returned as it is.
    pub fn restart(&self, tenant: Tenant) -> Tenant {
        self.change(|writer| writer.restart(tenant))
    }

    /// Sets the blocks that the tenant's engine has room for; evicts at once what is above it.
    pub fn set_capacity(&self, tenant: Tenant, capacity_blocks: u32) {
        self.change(|writer| writer.set_capacity(tenant, capacity_blocks));
    }

    /// Notes that the tenant's engine has computed `chain`. As much of it as fits becomes the tenant's most recently
    /// used blocks, at the cost of the least recently used ones.
    pub fn insert(&self, tenant: Tenant, chain: &[BlockHash]) {
        self.change(|writer| writer.insert(tenant, chain, 0));
    }

    /// Removes up to `max` entries of tenants that have restarted or left; returns how many there were. Changes do
    /// this by themselves, a few each; this is for when there are none.
    pub fn sweep(&self, max: usize) -> usize {
        self.change(|writer| writer.sweep(max))
    }

    /// Blocks assumed held by the tenant, those claimed only by requests in flight not included.
    pub fn tenant_blocks(&self, tenant: Tenant) -> u32 {
        self.writer.lock().blocks(tenant)
    }

    /// Sizes; takes no lock.
    pub fn stats(&self) -> IndexStats {
        let counters = &self.counters;
        IndexStats {
            bytes: counters.bytes.load(Relaxed),
            budget_bytes: counters.budget_bytes,
            runs: counters.runs.load(Relaxed),
            holds: counters.holds.load(Relaxed),
            blocks: counters.blocks.load(Relaxed),
            overlay_blocks: counters.overlay_blocks.load(Relaxed),
            evicted_blocks_total: counters.evicted_blocks.load(Relaxed),
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Writer) -> R) -> R {
        let mut writer = self.writer.lock();
        let result = change(&mut writer);
        self.counters.publish(&writer);
        result
    }
}

impl fmt::Debug for LocalityIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalityIndex").field(&self.stats()).finish()
    }
}

// === impl Counters ===

impl Counters {
    fn publish(&self, writer: &Writer) {
        let totals = &writer.totals;
        self.bytes.store(writer.bytes() as u64, Relaxed);
        self.runs.store(totals.runs as u64, Relaxed);
        self.holds.store(writer.holds.len() as u64, Relaxed);
        self.blocks.store(totals.blocks, Relaxed);
        self.overlay_blocks.store(totals.in_flight_blocks, Relaxed);
        self.evicted_blocks.store(totals.evicted_blocks, Relaxed);
    }
}
