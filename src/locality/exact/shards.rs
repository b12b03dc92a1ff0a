//! What readers see: for every block its holders, spread over shards by the block's hash.
//!
//! A tenant's published blocks are closed under prefixes at every level, at every moment: whoever holds a block at a
//! level holds all before it at that level or a better one (`publish.rs` keeps it so). The holders along a chain can
//! therefore only become fewer and farther, and a lookup need not ask for each block: where two blocks have the same
//! holders, so have all between them. It halves until it knows every place where the holders change.
//!
//! Beside changes, each holder is noted where it was seen, and at that moment held all before. So a lookup returns for
//! each tenant no more than it held at some moment meanwhile. It may return less, where a tenant's blocks change while
//! it looks; what does not change is found.

use parking_lot::RwLock;
use smallvec::{SmallVec, smallvec};

use super::super::table::mix;
use super::budget::{Budget, Table};
use super::holders::{Entry, Fingerprint, Holder, Left, Lists};
use super::level::Level;
use super::matches::ExactMatches;
use super::slot::Slot;
use crate::prefix::BlockHash;

/// Enough that a growing shard of ten million blocks keeps its readers waiting for a tenth of a millisecond.
const SHARDS: usize = 1024;

/// Blocks looked at in one lookup; with more changes of holders along a chain than that, later ones are not told apart.
const MAX_PROBES: usize = 8192;

/// A shard on cache lines of its own, so that locks next to each other do not slow each other down.
#[repr(align(64))]
struct Shard(RwLock<State>);

struct State {
    entries: Table<Entry>,
    lists: Lists,
}

#[cfg(test)]
pub(super) type Observer = Box<dyn FnMut(&Shards) + Send>;

/// All published blocks.
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
        let state = || State { entries: Table::new(), lists: Lists::default() };
        Self {
            seed,
            shards: (0..SHARDS).map(|_| Shard(RwLock::new(state()))).collect(),
            #[cfg(test)]
            observer: parking_lot::Mutex::default(),
        }
    }

    /// See [`ExactIndex::lookup`](super::ExactIndex::lookup).
    pub(super) fn lookup(&self, chain: &[BlockHash], matches: &mut ExactMatches) {
        matches.clear();
        let Some(&first) = chain.first() else { return };
        let (mut left, mut holders) = (0, self.fingerprint(first));
        // What was seen on the right of `left`, the nearest last.
        let mut seen: SmallVec<[(usize, Fingerprint); 24]> = smallvec![(chain.len(), Fingerprint::NOBODY)];
        let mut probes = 1;
        while let Some(&(right, beyond)) = seen.last()
            && holders != Fingerprint::NOBODY
        {
            if holders == beyond {
                left = right;
                seen.pop();
            } else if right - left == 1 || probes >= MAX_PROBES {
                self.note(chain[left], left as u32 + 1, matches);
                (left, holders) = (right, beyond);
                seen.pop();
            } else {
                let middle = left + (right - left) / 2;
                seen.push((middle, self.fingerprint(chain[middle])));
                probes += 1;
            }
        }
    }

    /// Changes the level of one holding of a block from one to another that differs. False, and nothing changes, if there
    /// are not enough bytes for a new holder.
    #[must_use]
    pub(super) fn change(&self, key: BlockHash, slot: Slot, from: Level, to: Level, budget: &Budget) -> bool {
        let hash = mix(key, self.seed);
        let mut state = self.shard(hash).write();
        let (old, new) = (Holder::new(slot, from), Holder::new(slot, to));
        let is_done = match (from, to) {
            (Level::None, _) => state.add(hash, key, new, self.seed, budget),
            (_, Level::None) => {
                state.remove(hash, key, old, self.seed, budget);
                true
            }
            _ => {
                state.replace(hash, key, old, new);
                true
            }
        };
        drop(state);
        self.observe();
        is_done
    }

    fn fingerprint(&self, key: BlockHash) -> Fingerprint {
        let hash = mix(key, self.seed);
        let state = self.shard(hash).read();
        state.entries.find(hash, |entry| entry.key == key).map_or(Fingerprint::NOBODY, Entry::fingerprint)
    }

    fn note(&self, key: BlockHash, blocks: u32, matches: &mut ExactMatches) {
        let hash = mix(key, self.seed);
        let state = self.shard(hash).read();
        if let Some(entry) = state.entries.find(hash, |entry| entry.key == key) {
            entry.for_each(&state.lists, |holder| matches.note(holder, blocks));
        }
    }

    fn shard(&self, hash: u64) -> &RwLock<State> {
        // Bits that place nothing inside the table, which takes the lowest and the highest.
        &self.shards[(hash >> 40) as usize % SHARDS].0
    }

    /// The holders of a block, in no order.
    #[cfg(test)]
    pub(super) fn holders(&self, key: BlockHash) -> Vec<(Slot, Level)> {
        let hash = mix(key, self.seed);
        let state = self.shard(hash).read();
        let mut holders = Vec::new();
        if let Some(entry) = state.entries.find(hash, |entry| entry.key == key) {
            entry.for_each(&state.lists, |holder| holders.push((holder.slot(), holder.level())));
        }
        holders
    }

    /// Every holding of every block.
    #[cfg(test)]
    pub(super) fn for_each(&self, mut look: impl FnMut(BlockHash, Slot, Level)) {
        for shard in &self.shards {
            let state = shard.0.read();
            for entry in state.entries.iter() {
                entry.for_each(&state.lists, |holder| look(entry.key, holder.slot(), holder.level()));
            }
        }
    }

    #[cfg(test)]
    fn observe(&self) {
        if let Some(observer) = self.observer.lock().as_mut() {
            observer(self);
        }
    }

    #[cfg(not(test))]
    fn observe(&self) {}
}

// === impl State ===

impl State {
    fn add(&mut self, hash: u64, key: BlockHash, holder: Holder, seed: u64, budget: &Budget) -> bool {
        match self.entries.find_mut(hash, |entry| entry.key == key) {
            Some(entry) => entry.add(holder, &mut self.lists, budget),
            None => self.entries.insert(hash, Entry::new(key, holder), |entry| mix(entry.key, seed), budget),
        }
    }

    fn replace(&mut self, hash: u64, key: BlockHash, from: Holder, to: Holder) {
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == key) {
            entry.replace(from, to, &mut self.lists);
        }
    }

    fn remove(&mut self, hash: u64, key: BlockHash, holder: Holder, seed: u64, budget: &Budget) {
        let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == key) else { return };
        if entry.remove(holder, &mut self.lists, budget) == Left::None {
            self.entries.remove(hash, |entry| entry.key == key, |entry| mix(entry.key, seed), budget);
        }
    }
}
