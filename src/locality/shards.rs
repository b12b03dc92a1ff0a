//! The runs, spread over shards by the hash of their first block: what readers see.
//!
//! There is one writer at a time (`writer.rs` holds the only lock of that kind); it takes a shard's write lock for the
//! moment of one change. Readers take a shard's read lock for the moment of copying out of one run. Both counts of a
//! holder lie in one atomic word, so that most changes are made beside readers (`recount`).
//!
//! All prompts behind one system prompt look into the same shard. Were its lock a single word, two cores that look all
//! the time would do little but pass that word to and fro (1.1 times the lookups of one core; 1.9 as it is). So a lock
//! is eight words, each on cache lines of its own: a reader takes that of its thread, the writer all eight.

use std::sync::PoisonError;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use super::Tenant;
use super::holder::Counts;
use super::matches::Matches;
use super::run::Run;
use super::table::{Table, mix};
use crate::prefix::BlockHash;

/// Enough that a growing shard of a table with a million runs keeps its readers waiting for some 20 us, not for
/// milliseconds.
const SHARDS: usize = 256;

/// Runs along one chain at most, in changes and in lookups; what comes after is not known. A prompt is cut where others
/// end or leave it, so ordinary ones have some dozens; but whoever sends every beginning of a prompt, the longest
/// first, makes a run of every block, and must not be able to make each step take milliseconds.
pub(super) const MAX_RUNS: usize = 512;

/// A shard on a cache line of its own, so that changes do not slow down who reads in the next one.
#[repr(align(64))]
struct Shard(ShardedLock<Table>);

/// What a change of counts was.
pub(super) struct Recounted {
    pub(super) before: Counts,
    pub(super) after: Counts,
    /// Bytes of what was changed, before and after.
    pub(super) bytes: (usize, usize),
    /// The holder was the run's last one, and the run was removed.
    pub(super) is_run_gone: bool,
}

#[cfg(test)]
type Observer = Box<dyn FnMut(&Shards) + Send>;

/// All runs by the hash of their first block.
pub(super) struct Shards {
    seed: u64,
    shards: Box<[Shard]>,
    /// Called after every single change, to see what a reader would.
    #[cfg(test)]
    pub(super) observer: parking_lot::Mutex<Option<Observer>>,
}

// === impl Shards ===

impl Shards {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            shards: (0..SHARDS).map(|_| Shard(ShardedLock::new(Table::new(seed)))).collect(),
            #[cfg(test)]
            observer: parking_lot::Mutex::default(),
        }
    }

    /// See [`LocalityIndex::lookup`](super::LocalityIndex::lookup).
    pub(super) fn lookup(&self, chain: &[BlockHash], matches: &mut Matches) {
        matches.clear();
        let mut base = 0;
        for _ in 0..MAX_RUNS {
            let Some(&key) = chain.get(base) else { return };
            match self.read(key, |run| run.note_matches(&chain[base..], base, matches)) {
                Some(overlap) if overlap.is_whole() => base += overlap.run,
                _ => return,
            }
        }
    }

    /// Looks at a run under its shard's read lock.
    pub(super) fn read<R>(&self, key: BlockHash, look: impl FnOnce(&Run) -> R) -> Option<R> {
        self.table(key).get(key).map(look)
    }

    /// Changes a run under its shard's write lock.
    pub(super) fn write<R>(&self, key: BlockHash, change: impl FnOnce(&mut Run) -> R) -> Option<R> {
        let result = self.table_alone(key).get_mut(key).map(change);
        self.observe();
        result
    }

    pub(super) fn contains(&self, key: BlockHash) -> bool {
        self.table(key).get(key).is_some()
    }

    /// Adds a run under a key that is not there; returns the bytes by which the table grew.
    pub(super) fn insert(&self, key: BlockHash, run: Box<Run>) -> usize {
        let mut table = self.table_alone(key);
        let growth = table.growth_bytes();
        table.insert(key, run);
        drop(table);
        self.observe();
        growth
    }

    /// Changes the counts of a run's holder, beside readers where that can be; the holder, and the run, are removed
    /// when nothing is left. Nothing if there is no such holder.
    pub(super) fn recount(
        &self,
        key: BlockHash,
        tenant: Tenant,
        change: impl FnOnce(Counts) -> Counts,
    ) -> Option<Recounted> {
        let (before, after, is_done) = self.read(key, |run| {
            let holder = run.holder(tenant)?;
            let before = holder.counts();
            let after = change(before);
            Some((before, after, run.try_recount(holder, after)))
        })??;
        let mut recounted = Recounted { before, after, bytes: (0, 0), is_run_gone: false };
        if !is_done {
            (recounted.bytes, recounted.is_run_gone) = self.recount_alone(key, tenant, after)?;
        }
        self.observe();
        Some(recounted)
    }

    /// Returns the bytes before and after, the table's among them, and whether the run was removed.
    fn recount_alone(&self, key: BlockHash, tenant: Tenant, counts: Counts) -> Option<((usize, usize), bool)> {
        let mut table = self.table_alone(key);
        let table_before = table.bytes();
        let run = table.get_mut(key)?;
        let before = table_before + run.bytes();
        if !run.recount(tenant, counts) {
            let after = table_before + run.bytes();
            return Some(((before, after), false));
        }
        // Freed after the lock.
        let _removed = table.remove(key);
        let after = table.bytes();
        drop(table);
        Some(((before, after), true))
    }

    /// Bytes by which inserting under `key` would make the table larger.
    pub(super) fn growth_bytes(&self, key: BlockHash) -> usize {
        self.table(key).growth_bytes()
    }

    #[cfg(test)]
    pub(super) fn for_each(&self, mut look: impl FnMut(BlockHash, &Run)) -> usize {
        let mut table_bytes = 0;
        for shard in &self.shards {
            let table = shard.0.read().unwrap_or_else(PoisonError::into_inner);
            table.iter().for_each(|(key, run)| look(key, run));
            table_bytes += table.bytes();
        }
        table_bytes
    }

    #[cfg(test)]
    fn observe(&self) {
        if let Some(observer) = self.observer.lock().as_mut() {
            observer(self);
        }
    }

    #[cfg(not(test))]
    fn observe(&self) {}

    // A table that a panic came over is whole: no lock is held over anything else than single changes of it.
    fn table(&self, key: BlockHash) -> ShardedLockReadGuard<'_, Table> {
        self.shard(key).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_alone(&self, key: BlockHash) -> ShardedLockWriteGuard<'_, Table> {
        self.shard(key).write().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, key: BlockHash) -> &ShardedLock<Table> {
        // The high bits: the low ones place the run inside its shard.
        &self.shards[(mix(key, self.seed) >> 56) as usize % SHARDS].0
    }
}
