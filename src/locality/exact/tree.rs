//! What one tenant's engine holds: its blocks as a tree, found by the names that the engine gives them.
//!
//! A block that is not held stays as a *ghost* while blocks behind it are: nobody is told of those, but they are found
//! again when it is stored anew. Ghosts without children go.

use super::super::table::mix;
use super::budget::{Budget, Table};
use super::slab::{Node, NodeId, Slab};
use crate::kv_events::EngineHash;
use crate::prefix::BlockHash;

/// Tables of names, so that one which grows holds up its writer for a part of the time only.
const TABLES: usize = 16;

/// The blocks of one tenant.
pub(super) struct Tree {
    seed: u64,
    pub(super) slab: Slab,
    names: Box<[Table<NodeId>]>,
}

// === impl Tree ===

impl Tree {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, slab: Slab::new(), names: (0..TABLES).map(|_| Table::new()).collect() }
    }

    pub(super) fn find(&self, name: EngineHash) -> Option<NodeId> {
        let hash = self.hash(name);
        self.names[table_of(hash)].find(hash, |id| self.slab[*id].name == name).copied()
    }

    /// Adds a block that nobody holds yet, under a name that is not there. None if there are not enough bytes.
    pub(super) fn add(&mut self, name: EngineHash, key: BlockHash, parent: NodeId, budget: &Budget) -> Option<NodeId> {
        let hash = self.hash(name);
        let id = self.slab.add(Node::new(name, key, parent), budget)?;
        let (seed, slab) = (self.seed, &self.slab);
        if !self.names[table_of(hash)].insert(hash, id, |id| hash_of(slab[*id].name, seed), budget) {
            self.slab.remove(id, budget);
            return None;
        }
        self.link(id, parent);
        Some(id)
    }

    /// Removes a block that nobody holds if it has no children, and then the ghosts before it that have none any more.
    /// Nothing of them is published.
    pub(super) fn prune(&mut self, id: NodeId, budget: &Budget) {
        let mut next = Some(id);
        while let Some(id) = next
            && !self.slab[id].is_held()
            && self.slab[id].first_child == NodeId::NOWHERE
        {
            next = self.slab[id].parent.some();
            self.remove(id, budget);
        }
    }

    /// Forgets all names, for whoever takes the slab apart.
    pub(super) fn into_slab(mut self, budget: &Budget) -> Slab {
        self.names.iter_mut().for_each(|names| names.free(budget));
        self.slab
    }

    fn remove(&mut self, id: NodeId, budget: &Budget) {
        self.unlink(id);
        let hash = self.hash(self.slab[id].name);
        let (seed, slab) = (self.seed, &self.slab);
        self.names[table_of(hash)].remove(hash, |found| *found == id, |id| hash_of(slab[*id].name, seed), budget);
        self.slab.remove(id, budget);
    }

    fn link(&mut self, id: NodeId, parent: NodeId) {
        let Some(parent) = parent.some() else { return };
        let next = std::mem::replace(&mut self.slab[parent].first_child, id);
        self.slab[id].next = next;
        if let Some(next) = next.some() {
            self.slab[next].previous = id;
        }
    }

    fn unlink(&mut self, id: NodeId) {
        let Node { parent, next, previous, .. } = self.slab[id];
        match (previous.some(), parent.some()) {
            (Some(previous), _) => self.slab[previous].next = next,
            (None, Some(parent)) => self.slab[parent].first_child = next,
            (None, None) => {}
        }
        if let Some(next) = next.some() {
            self.slab[next].previous = previous;
        }
    }

    fn hash(&self, name: EngineHash) -> u64 {
        hash_of(name, self.seed)
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.names.iter().flat_map(Table::iter).copied()
    }
}

fn hash_of(name: EngineHash, seed: u64) -> u64 {
    mix(BlockHash(name.0), seed)
}

fn table_of(hash: u64) -> usize {
    // Bits that place nothing inside a table.
    (hash >> 40) as usize % TABLES
}
