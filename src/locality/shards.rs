//! The runs, spread over shards by the hash of their first block: what readers see.
//!
//! There is one writer at a time (`writer.rs` holds the only lock of that kind); it takes a shard's write lock for the
//! moment of one change. Readers take a shard's read lock for the moment of copying out of one run.

use parking_lot::RwLock;

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

/// A shard on a cache line of its own, so that locks next to each other do not slow each other down.
#[repr(align(64))]
struct Shard(RwLock<Table>);

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
            shards: (0..SHARDS).map(|_| Shard(RwLock::new(Table::new(seed)))).collect(),
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
        self.shard(key).read().get(key).map(look)
    }

    /// Changes a run under its shard's write lock.
    pub(super) fn write<R>(&self, key: BlockHash, change: impl FnOnce(&mut Run) -> R) -> Option<R> {
        let result = self.shard(key).write().get_mut(key).map(change);
        self.observe();
        result
    }

    pub(super) fn contains(&self, key: BlockHash) -> bool {
        self.shard(key).read().get(key).is_some()
    }

    /// Adds a run under a key that is not there; returns the bytes by which the table grew.
    pub(super) fn insert(&self, key: BlockHash, run: Box<Run>) -> usize {
        let mut table = self.shard(key).write();
        let growth = table.growth_bytes();
        table.insert(key, run);
        drop(table);
        self.observe();
        growth
    }

    /// Takes a run out; also returns the bytes by which the table shrank.
    pub(super) fn remove(&self, key: BlockHash) -> Option<(Box<Run>, usize)> {
        let mut table = self.shard(key).write();
        let before = table.bytes();
        let run = table.remove(key)?;
        let shrunk = before - table.bytes();
        drop(table);
        self.observe();
        Some((run, shrunk))
    }

    /// Bytes by which inserting under `key` would make the table larger.
    pub(super) fn growth_bytes(&self, key: BlockHash) -> usize {
        self.shard(key).read().growth_bytes()
    }

    #[cfg(test)]
    pub(super) fn for_each(&self, mut look: impl FnMut(BlockHash, &Run)) -> usize {
        let mut table_bytes = 0;
        for shard in &self.shards {
            let table = shard.0.read();
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

    fn shard(&self, key: BlockHash) -> &RwLock<Table> {
        // The high bits: the low ones place the run inside its shard.
        &self.shards[(mix(key, self.seed) >> 56) as usize % SHARDS].0
    }
}
