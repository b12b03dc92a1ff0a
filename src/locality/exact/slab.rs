//! The nodes of one tenant, in chunks that never move: growing copies nothing, and costs no second place meanwhile.
//!
//! Chunks are kept until the tenant has no block left: an engine's cache is as large in an hour as it is now.

use std::ops::{Index, IndexMut};

use super::super::bytes::heap_bytes;
use super::budget::Budget;
use super::level::{Level, MEDIA};
use crate::kv_events::EngineHash;
use crate::prefix::BlockHash;

/// Nodes in a chunk: 10 KiB, little for a small engine, and few chunks for a large one.
pub(super) const CHUNK: usize = 256;

pub(super) const CHUNK_BYTES: usize = heap_bytes(size_of::<[Node; CHUNK]>());

/// A node's place in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(pub(super) u32);

/// A block of one tenant, in 40 bytes: under what name, where, and between which others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// What the engine calls it.
    pub(super) name: EngineHash,
    /// What readers find it by.
    pub(super) key: BlockHash,
    /// The block before it; nowhere at the beginning of a prompt.
    pub(super) parent: NodeId,
    pub(super) first_child: NodeId,
    /// The siblings around it; in a free node `next` is the next free one.
    pub(super) next: NodeId,
    pub(super) previous: NodeId,
    /// How often the engine has it in each medium, in the order of [`Medium`](crate::kv_events::Medium).
    pub(super) counts: [u16; MEDIA],
    /// What readers see.
    pub(super) published: Level,
    /// The engine used its name for another block too, so that nobody knows which one it holds.
    pub(super) is_ambiguous: bool,
}

/// The nodes of one tenant.
pub(super) struct Slab {
    chunks: Vec<Box<[Node; CHUNK]>>,
    first_free: NodeId,
    /// Nodes that are or were in use; those behind have never been.
    reached: usize,
    used: usize,
}

// === impl NodeId ===

impl NodeId {
    pub(super) const NOWHERE: Self = Self(u32::MAX);

    /// None if it is nowhere.
    pub(super) fn some(self) -> Option<Self> {
        (self != Self::NOWHERE).then_some(self)
    }
}

// === impl Node ===

impl Node {
    const FREE: Self = Self::new(EngineHash(0), BlockHash(0), NodeId::NOWHERE);

    pub(super) const fn new(name: EngineHash, key: BlockHash, parent: NodeId) -> Self {
        Self {
            name,
            key,
            parent,
            first_child: NodeId::NOWHERE,
            next: NodeId::NOWHERE,
            previous: NodeId::NOWHERE,
            counts: [0; MEDIA],
            published: Level::None,
            is_ambiguous: false,
        }
    }

    /// Where the engine has this block, whatever is before it.
    pub(super) fn own_level(&self) -> Level {
        if self.is_ambiguous { Level::None } else { Level::best(self.counts) }
    }

    pub(super) fn is_held(&self) -> bool {
        self.counts != [0; MEDIA]
    }
}

// === impl Slab ===

impl Slab {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), first_free: NodeId::NOWHERE, reached: 0, used: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// None if there are not enough bytes, or numbers.
    pub(super) fn add(&mut self, node: Node, budget: &Budget) -> Option<NodeId> {
        let id = match self.first_free.some() {
            Some(id) => {
                self.first_free = self[id].next;
                id
            }
            None => self.reach(budget)?,
        };
        self[id] = node;
        self.used += 1;
        Some(id)
    }

    pub(super) fn remove(&mut self, id: NodeId, budget: &Budget) {
        self[id] = Node { next: self.first_free, ..Node::FREE };
        self.first_free = id;
        self.used -= 1;
        if self.used == 0 {
            while self.pop_chunk(budget).is_some() {}
            *self = Self::new();
        }
    }

    /// Takes a chunk out, used and free nodes alike, for whoever takes the whole slab apart.
    pub(super) fn pop_chunk(&mut self, budget: &Budget) -> Option<Box<[Node; CHUNK]>> {
        let chunk = self.chunks.pop();
        match chunk {
            Some(_) => budget.give_back(CHUNK_BYTES),
            None => budget.free(&mut self.chunks),
        }
        chunk
    }

    fn reach(&mut self, budget: &Budget) -> Option<NodeId> {
        let id = u32::try_from(self.reached).ok().map(NodeId)?.some()?;
        if self.reached == self.chunks.len() * CHUNK {
            if !budget.grow(&mut self.chunks) || !budget.take(CHUNK_BYTES) {
                return None;
            }
            let chunk: Box<[Node]> = vec![Node::FREE; CHUNK].into();
            self.chunks.push(chunk.try_into().ok()?);
        }
        self.reached += 1;
        Some(id)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

impl Index<NodeId> for Slab {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        &self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }
}

impl IndexMut<NodeId> for Slab {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.chunks[id.0 as usize / CHUNK][id.0 as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_bytes_go_back_when_all_are_free() {
        let budget = Budget::new(1 << 20);
        let mut slab = Slab::new();
        let node = |at: usize| Node::new(EngineHash(at as u64), BlockHash(at as u64), NodeId::NOWHERE);
        let ids: Vec<NodeId> = (0..CHUNK + 1).map(|at| slab.add(node(at), &budget).unwrap()).collect();
        let two_chunks = budget.used_bytes();
        slab.remove(ids[7], &budget);
        assert_eq!(slab.add(node(999), &budget), Some(ids[7]));
        assert_eq!((slab.len(), budget.used_bytes()), (CHUNK + 1, two_chunks));
        assert_eq!(slab[ids[CHUNK]].name, EngineHash(CHUNK as u64), "a neighbour was overwritten");
        ids.iter().for_each(|id| slab.remove(*id, &budget));
        assert_eq!((slab.len(), budget.used_bytes()), (0, 0));
    }

    #[test]
    fn it_takes_no_more_than_the_budget() {
        let budget = Budget::new(CHUNK_BYTES + 1000);
        let mut slab = Slab::new();
        let node = Node::new(EngineHash(1), BlockHash(1), NodeId::NOWHERE);
        let added = (0..2 * CHUNK).take_while(|_| slab.add(node, &budget).is_some()).count();
        assert_eq!(added, CHUNK);
    }

    #[test]
    fn a_node_is_small() {
        assert_eq!(size_of::<Node>(), 40);
    }
}
