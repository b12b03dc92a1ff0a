//! What readers see: for every block its holders, spread over shards by the block's hash.
//!
//! A tenant's published blocks are closed under prefixes at every level, at every moment: whoever holds a block at a
//! level holds all before it at that level or a better one (`publish.rs` keeps it so). The holders along a chain can
//! therefore only become fewer and farther, and a lookup need not ask for each block: where two blocks have the same
//! holders, so have all between them. It halves until it knows every place where the holders change.
//!
//! Beside changes, each holder is noted where it was seen, and at that moment held all before. So a lookup returns for
//! each tenant no more than it held at some moment meanwhile. Nor does it return less than what the tenant held all the
//! time: holders are copied in the look that tells them apart, so none can leave between being found and being noted.

use parking_lot::RwLock;
use smallvec::{SmallVec, smallvec};

use super::super::table::mix;
use super::budget::{Budget, Table};
use super::holders::{Entry, Fingerprint, Holder, Left, Lists};
use super::level::Level;
use super::matches::{Copies, ExactMatches};
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

/// A stretch of a chain whose holders are known to be the same, on the right of where a lookup is.
struct Seen {
    first: usize,
    last: usize,
    fingerprint: Fingerprint,
    /// Where the copy of the holders begins; it ends where that of the next stretch on the left begins.
    copy: usize,
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
        let Copies { mut holders, mut beyond } = std::mem::take(&mut matches.copies);
        let (mut left, mut fingerprint) = (0, self.look(first, [Fingerprint::NOBODY; 2], &mut holders));
        let end = Seen { first: chain.len(), last: chain.len(), fingerprint: Fingerprint::NOBODY, copy: 0 };
        let mut seen: SmallVec<[Seen; 24]> = smallvec![end];
        let mut probes = 1;
        // The holders at `left` and at the nearest place seen always differ.
        while let Some(next) = seen.last_mut()
            && fingerprint != Fingerprint::NOBODY
        {
            if next.first - left > 1 && probes < MAX_PROBES {
                let (middle, copy) = (left + (next.first - left) / 2, beyond.len());
                let found = self.look(chain[middle], [fingerprint, next.fingerprint], &mut beyond);
                probes += 1;
                if found == fingerprint {
                    left = middle;
                } else if found == next.fingerprint {
                    next.first = middle;
                } else {
                    seen.push(Seen { first: middle, last: middle, fingerprint: found, copy });
                }
            } else {
                holders.drain(..).for_each(|holder| matches.note(holder, left as u32 + 1));
                holders.extend(beyond.drain(next.copy..));
                (left, fingerprint) = (next.last, next.fingerprint);
                seen.pop();
            }
        }
        holders.clear();
        beyond.clear();
        matches.copies = Copies { holders, beyond };
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

    /// The fingerprint of a block's holders; unless it is one of those `known`, they are added to `copy`.
    fn look(&self, key: BlockHash, known: [Fingerprint; 2], copy: &mut Vec<Holder>) -> Fingerprint {
        let hash = mix(key, self.seed);
        let state = self.shard(hash).read();
        let Some(entry) = state.entries.find(hash, |entry| entry.key == key) else { return Fingerprint::NOBODY };
        let found = entry.fingerprint();
        if !known.contains(&found) {
            entry.copy_to(&state.lists, copy);
        }
        found
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
            entry.copy_to(&state.lists, &mut holders);
        }
        holders.into_iter().map(|holder| (holder.slot(), holder.level())).collect()
    }

    /// Every holding of every block.
    #[cfg(test)]
    pub(super) fn for_each(&self, mut look: impl FnMut(BlockHash, Slot, Level)) {
        for shard in &self.shards {
            let state = shard.0.read();
            for entry in state.entries.iter() {
                let mut holders = Vec::new();
                entry.copy_to(&state.lists, &mut holders);
                holders.into_iter().for_each(|holder| look(entry.key, holder.slot(), holder.level()));
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
