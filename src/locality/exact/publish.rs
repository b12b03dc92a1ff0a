//! What of a tenant's tree readers are told.
//!
//! A block's *published level* is the lesser of its own and that of the block before it. So a block is claimed only if
//! all before it are held, in whatever order the engine stores and removes them, and the published blocks are closed
//! under prefixes at every level. They are so after each single change, because levels rise from the first block to the
//! last and fall from the last to the first.
//!
//! Where bytes are short a level stays below that, and so do those behind it.

use super::budget::Budget;
use super::level::Level;
use super::shards::Shards;
use super::slab::NodeId;
use super::slot::Slot;
use super::tree::Tree;

/// Where a tenant's writer publishes.
#[derive(Clone, Copy)]
pub(super) struct Publisher<'a> {
    pub(super) shards: &'a Shards,
    pub(super) budget: &'a Budget,
    pub(super) slot: Slot,
}

impl Tree {
    /// Brings what readers see of a block and those behind it up to what is held. False if bytes are short for that.
    #[must_use]
    pub(super) fn raise(&mut self, top: NodeId, to: &Publisher<'_>) -> bool {
        let mut is_whole = true;
        let mut next = Some(top);
        while let Some(id) = next {
            let (node, before) = (&self.slab[id], self.level_before(id));
            let level = node.own_level().min(before);
            let mut is_raised = level > node.published;
            if is_raised && !self.publish(id, level, to) {
                (is_raised, is_whole) = (false, false);
            }
            next = self.next_down(id, top, is_raised);
        }
        is_whole
    }

    /// Lowers what readers see of a block and those behind it to at most `level`, the last ones first.
    pub(super) fn lower(&mut self, top: NodeId, level: Level, to: &Publisher<'_>) {
        if self.slab[top].published <= level {
            return;
        }
        let mut id = self.last_above(top, level);
        loop {
            // To lower never needs bytes.
            let _is_done = self.publish(id, level, to);
            if id == top {
                return;
            }
            let sibling = self.first_above(self.slab[id].next, level);
            id = sibling.map_or(self.slab[id].parent, |sibling| self.last_above(sibling, level));
        }
    }

    fn publish(&mut self, id: NodeId, level: Level, to: &Publisher<'_>) -> bool {
        let node = &mut self.slab[id];
        let is_done = to.slot != Slot::NOWHERE && to.shards.change(node.key, to.slot, node.published, level, to.budget);
        if is_done {
            node.published = level;
        }
        is_done
    }

    fn level_before(&self, id: NodeId) -> Level {
        self.slab[id].parent.some().map_or(Level::Gpu, |parent| self.slab[parent].published)
    }

    /// The next block of the tree from `top` on, a block before its children; these are left out if so told.
    fn next_down(&self, id: NodeId, top: NodeId, with_children: bool) -> Option<NodeId> {
        if with_children && let Some(child) = self.slab[id].first_child.some() {
            return Some(child);
        }
        let mut id = id;
        while id != top {
            match self.slab[id].next.some() {
                Some(sibling) => return Some(sibling),
                None => id = self.slab[id].parent,
            }
        }
        None
    }

    /// From a block above `level`, on to the first such child and its first such child, to the last.
    fn last_above(&self, id: NodeId, level: Level) -> NodeId {
        let mut id = id;
        while let Some(child) = self.first_above(self.slab[id].first_child, level) {
            id = child;
        }
        id
    }

    /// The first block above `level` among siblings.
    fn first_above(&self, first: NodeId, level: Level) -> Option<NodeId> {
        let mut next = first.some();
        while let Some(id) = next
            && self.slab[id].published <= level
        {
            next = self.slab[id].next.some();
        }
        next
    }
}
