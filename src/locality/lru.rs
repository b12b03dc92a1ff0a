//! Every tenant's order of use: doubly linked lists through one slab of holds.
//!
//! A hold is a tenant's assumed blocks of one run. Within a hold the first block is the most recently used one, so the
//! list of holds, read block by block, is the order of an LRU over single blocks in which a prompt's last block is
//! touched first. The list itself never needs more than one step per run.
//!
//! The slab comes in small chunks, filled from the lowest on, so that chunks whose holds are all gone are freed.

use std::collections::BTreeSet;
use std::mem::size_of;

use super::bytes::heap_bytes;
use crate::prefix::BlockHash;

/// Holds in a chunk.
const CHUNK: usize = 128;

/// Bytes of a chunk, with its share of the lists of chunks.
const CHUNK_BYTES: usize = heap_bytes(size_of::<Chunk>()) + 64;

const NONE: u32 = u32::MAX;

/// A hold's place in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HoldId(u32);

/// A tenant's assumed blocks of one run.
#[derive(Debug, Clone, Copy)]
struct Hold {
    run: BlockHash,
    /// The neighbour on the newer side; in a free hold, nothing.
    newer: u32,
    /// The neighbour on the older side; in a free hold, the chunk's next free one.
    older: u32,
    /// The same number as the holder's, which readers see.
    blocks: u32,
}

struct Chunk {
    holds: [Hold; CHUNK],
    first_free: u32,
    used: u32,
}

/// The slab.
#[derive(Default)]
pub(super) struct Holds {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Chunks with a free hold. The lowest is filled first, so that the highest run empty.
    open: BTreeSet<u32>,
    /// Places in `chunks` without one.
    vacant: BTreeSet<u32>,
    used: usize,
}

/// A list of holds from the newest to the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    newest: u32,
    oldest: u32,
}

// === impl Holds ===

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn bytes(&self) -> usize {
        (self.chunks.len() - self.vacant.len()) * CHUNK_BYTES
    }

    /// Bytes by which `more` holds make the slab larger.
    pub(super) fn growth_bytes(&self, more: usize) -> usize {
        let free = (self.chunks.len() - self.vacant.len()) * CHUNK - self.used;
        more.saturating_sub(free).div_ceil(CHUNK) * CHUNK_BYTES
    }

    /// A hold in no list yet.
    pub(super) fn add(&mut self, run: BlockHash, blocks: u32) -> HoldId {
        let at = self.open.first().copied().unwrap_or_else(|| self.add_chunk());
        let base = at * CHUNK as u32;
        let chunk = self.chunks[at as usize].as_mut().expect("an open chunk is there");
        let id = chunk.first_free;
        let hold = &mut chunk.holds[(id - base) as usize];
        chunk.first_free = hold.older;
        *hold = Hold { run, newer: NONE, older: NONE, blocks };
        chunk.used += 1;
        if chunk.first_free == NONE {
            self.open.remove(&at);
        }
        self.used += 1;
        HoldId(id)
    }

    /// Frees a hold that is in no list.
    pub(super) fn remove(&mut self, id: HoldId) {
        let at = id.0 / CHUNK as u32;
        let chunk = self.chunks[at as usize].as_mut().expect("a chunk with a used hold is there");
        chunk.holds[id.0 as usize % CHUNK].older = chunk.first_free;
        chunk.first_free = id.0;
        chunk.used -= 1;
        let is_empty = chunk.used == 0;
        self.used -= 1;
        if is_empty {
            self.chunks[at as usize] = None;
            self.open.remove(&at);
            self.vacant.insert(at);
        } else {
            self.open.insert(at);
        }
        if self.used == 0 {
            *self = Self::default();
        }
    }

    pub(super) fn run(&self, id: HoldId) -> BlockHash {
        self.at(id.0).run
    }

    pub(super) fn blocks(&self, id: HoldId) -> u32 {
        self.at(id.0).blocks
    }

    pub(super) fn set_blocks(&mut self, id: HoldId, blocks: u32) {
        self.at_mut(id.0).blocks = blocks;
    }

    fn add_chunk(&mut self) -> u32 {
        let at = self.vacant.pop_first().unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() as u32 - 1
        });
        let base = at * CHUNK as u32;
        let free = Hold { run: BlockHash(0), newer: NONE, older: NONE, blocks: 0 };
        let mut chunk = Box::new(Chunk { holds: [free; CHUNK], first_free: base, used: 0 });
        for (next, hold) in (base + 1..).zip(&mut chunk.holds[..CHUNK - 1]) {
            hold.older = next;
        }
        self.chunks[at as usize] = Some(chunk);
        self.open.insert(at);
        at
    }

    fn at(&self, id: u32) -> &Hold {
        let chunk = self.chunks[id as usize / CHUNK].as_ref().expect("a chunk with a used hold is there");
        &chunk.holds[id as usize % CHUNK]
    }

    fn at_mut(&mut self, id: u32) -> &mut Hold {
        let chunk = self.chunks[id as usize / CHUNK].as_mut().expect("a chunk with a used hold is there");
        &mut chunk.holds[id as usize % CHUNK]
    }
}

// === impl List ===

impl List {
    pub(super) const EMPTY: Self = Self { newest: NONE, oldest: NONE };

    pub(super) fn oldest(&self) -> Option<HoldId> {
        (self.oldest != NONE).then_some(HoldId(self.oldest))
    }

    /// Puts a hold that is in no list first.
    pub(super) fn push_newest(&mut self, holds: &mut Holds, id: HoldId) {
        self.link(holds, NONE, id, self.newest);
    }

    /// Puts a hold that is in no list just behind `newer`, or first if there is none.
    pub(super) fn insert_behind(&mut self, holds: &mut Holds, newer: Option<HoldId>, id: HoldId) {
        match newer {
            Some(newer) => self.link(holds, newer.0, id, holds.at(newer.0).older),
            None => self.push_newest(holds, id),
        }
    }

    pub(super) fn unlink(&mut self, holds: &mut Holds, id: HoldId) {
        let Hold { newer, older, .. } = *holds.at(id.0);
        match newer {
            NONE => self.newest = older,
            newer => holds.at_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => holds.at_mut(older).newer = newer,
        }
    }

    pub(super) fn make_newest(&mut self, holds: &mut Holds, id: HoldId) {
        if self.newest != id.0 {
            self.unlink(holds, id);
            self.push_newest(holds, id);
        }
    }

    /// From the newest to the oldest.
    pub(super) fn iter(self, holds: &Holds) -> impl Iterator<Item = HoldId> {
        let mut next = self.newest;
        std::iter::from_fn(move || {
            let id = (next != NONE).then_some(HoldId(next))?;
            next = holds.at(next).older;
            Some(id)
        })
    }

    fn link(&mut self, holds: &mut Holds, newer: u32, id: HoldId, older: u32) {
        let hold = holds.at_mut(id.0);
        (hold.newer, hold.older) = (newer, older);
        match newer {
            NONE => self.newest = id.0,
            newer => holds.at_mut(newer).older = id.0,
        }
        match older {
            NONE => self.oldest = id.0,
            older => holds.at_mut(older).newer = id.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_list_keeps_the_order_that_a_vector_keeps(
            changes in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..800),
        ) {
            let (mut holds, mut list, mut model) = (Holds::default(), List::EMPTY, Vec::new());
            for (change, index) in changes {
                let at = if model.is_empty() { None } else { Some(index.index(model.len())) };
                match (change, at) {
                    (0, Some(at)) => {
                        let id = model.remove(at);
                        list.unlink(&mut holds, id);
                        holds.remove(id);
                    }
                    (1, Some(at)) => {
                        let id = model.remove(at);
                        model.insert(0, id);
                        list.make_newest(&mut holds, id);
                    }
                    _ => {
                        let foretold = holds.bytes() + holds.growth_bytes(1);
                        let id = holds.add(BlockHash(9), 1);
                        prop_assert_eq!(holds.bytes(), foretold, "the growth was not as foretold");
                        list.insert_behind(&mut holds, at.map(|at| model[at]), id);
                        model.insert(at.map_or(0, |at| at + 1), id);
                    }
                }
                prop_assert_eq!(list.iter(&holds).collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(list.oldest(), model.last().copied());
                prop_assert_eq!(holds.len(), model.len());
            }
        }
    }

    #[test]
    fn chunks_are_freed_when_their_holds_are_gone() {
        let mut holds = Holds::default();
        let ids: Vec<_> = (0..CHUNK * 4).map(|n| holds.add(BlockHash(n as u64), 1)).collect();
        assert_eq!(holds.bytes(), 4 * CHUNK_BYTES);
        ids[CHUNK..CHUNK * 2].iter().for_each(|id| holds.remove(*id));
        assert_eq!(holds.bytes(), 3 * CHUNK_BYTES, "an empty chunk in the middle stayed");
        assert_eq!(holds.growth_bytes(CHUNK + 1), 2 * CHUNK_BYTES);
        let again = holds.add(BlockHash(0), 1);
        assert_eq!(again.0 as usize / CHUNK, 1, "the freed place is not used again");
        holds.remove(again);
        ids[..CHUNK].iter().chain(&ids[CHUNK * 2..]).for_each(|id| holds.remove(*id));
        assert_eq!((holds.bytes(), holds.len()), (0, 0));
    }
}
