//! One tenant's writer: applies the events of its engine, in their order, to what it holds.

use std::sync::Arc;

use super::aside::Aside;
use super::level::{Level, place_of};
use super::publish::Publisher;
use super::refused::Refused;
use super::retired::Retired;
use super::slab::NodeId;
use super::slot::Slot;
use super::tenant::Facts;
use super::tree::Tree;
use super::{Applied, ExactIndex};
use crate::kv_events::{Batch, EngineHash, Event, Medium, Removed};

/// What a tenant's engine holds, as far as its events say. Behind the tenant's lock.
pub(super) struct Held {
    pub(super) tree: Tree,
    pub(super) aside: Aside,
    pub(super) refused: Refused,
    /// The group of layers that is indexed: the first one of full attention seen.
    pub(super) group: Option<u32>,
    /// What readers see is stored under it.
    pub(super) slot: Slot,
    /// Blocks that the engine has somewhere.
    pub(super) blocks: u64,
    /// Adapters seen in its events, the last one seen last.
    pub(super) adapters: Vec<Arc<str>>,
    /// Names with which something has happened that others may wait for; empty between events.
    pub(super) ready: Vec<EngineHash>,
}

// === impl Held ===

impl Held {
    pub(super) fn new(seed: u64, slot: Slot) -> Self {
        Self {
            tree: Tree::new(seed),
            aside: Aside::default(),
            refused: Refused::new(),
            group: None,
            slot,
            blocks: 0,
            adapters: Vec::new(),
            ready: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, batch: &Batch, index: &ExactIndex, facts: &Facts) -> Applied {
        let mut applied = Applied::default();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.store(batch, stored, index, facts, &mut applied),
                Event::Removed(removed) => self.remove(batch, removed, index, &mut applied),
                Event::Cleared => self.clear(index, facts),
            }
        }
        applied
    }

    /// Ends all that the tenant holds; its engine goes on as it was.
    pub(super) fn clear(&mut self, index: &ExactIndex, facts: &Facts) {
        self.aside.clear(&index.budget);
        self.refused = Refused::new();
        if self.tree.slab.len() == 0 {
            return;
        }
        let slot = index.slots.take();
        facts.slot.set(slot);
        self.retire(index);
        self.slot = slot;
    }

    /// Leaves all that the tenant holds to be swept, and its slot with it.
    pub(super) fn retire(&mut self, index: &ExactIndex) {
        self.aside.clear(&index.budget);
        self.blocks = 0;
        let tree = std::mem::replace(&mut self.tree, Tree::new(index.seed));
        index.retire(Retired::new(self.slot, tree.into_slab(&index.budget)));
    }

    pub(super) fn publisher<'a>(&self, index: &'a ExactIndex) -> Publisher<'a> {
        Publisher { shards: &index.shards, budget: &index.budget, slot: self.slot }
    }

    /// Counts a block once more in a medium. False if that is not possible, or readers are not told of all it makes.
    #[must_use]
    pub(super) fn hold(&mut self, id: NodeId, medium: Medium, to: &Publisher<'_>) -> bool {
        let node = &mut self.tree.slab[id];
        let (was_held, level) = (node.is_held(), node.own_level());
        let count = &mut node.counts[place_of(medium)];
        let Some(more) = count.checked_add(1) else { return false };
        *count = more;
        let is_raised = node.own_level() > level;
        self.blocks += u64::from(!was_held);
        !is_raised || self.tree.raise(id, to)
    }

    fn remove(&mut self, batch: &Batch, removed: &Removed, index: &ExactIndex, applied: &mut Applied) {
        if self.group != Some(removed.group) {
            return;
        }
        let Some(names) = batch.hashes.get(removed.hashes.clone()) else {
            applied.unusable_events += 1;
            return;
        };
        let to = self.publisher(index);
        for &name in names {
            let is_known = self.tree.find(name).is_some_and(|id| self.release(id, removed.medium, &to))
                || self.aside.remove(name, removed.medium, to.budget).is_some();
            match is_known {
                true => applied.removed += 1,
                false => applied.unknown_removals += 1,
            }
        }
    }

    /// Counts a block once less in a medium; false if it was not there.
    pub(super) fn release(&mut self, id: NodeId, medium: Medium, to: &Publisher<'_>) -> bool {
        let node = &mut self.tree.slab[id];
        let count = &mut node.counts[place_of(medium)];
        let Some(less) = count.checked_sub(1) else { return false };
        *count = less;
        let (level, is_held) = (node.own_level(), node.is_held());
        self.tree.lower(id, level, to);
        if !is_held {
            self.blocks -= 1;
            self.tree.prune(id, to.budget);
        }
        true
    }

    /// The engine uses the name of this block for another one: neither is claimed any more.
    pub(super) fn disown(&mut self, id: NodeId, to: &Publisher<'_>) {
        self.tree.slab[id].is_ambiguous = true;
        self.tree.lower(id, Level::None, to);
    }
}
