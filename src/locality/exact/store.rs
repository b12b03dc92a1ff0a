//! Stored blocks: where they belong in the tree, and what is done with those that belong nowhere.

use std::num::NonZeroU64;

use super::aside::{AsideBlock, SetAside};
use super::held::Held;
use super::level::MEDIA;
use super::publish::Publisher;
use super::slab::NodeId;
use super::tenant::Facts;
use super::{Applied, ExactIndex};
use crate::kv_events::{Batch, EngineHash, Medium, Stored};
use crate::prefix::{BlockHash, token_block, token_root};

/// The blocks of one event.
struct Blocks<'a> {
    names: &'a [EngineHash],
    /// The ids of all; none if the event names blocks that were stored elsewhere before.
    ids: &'a [u32],
    block_tokens: usize,
    /// One for each, or none at all.
    extras: &'a [Option<NonZeroU64>],
    medium: Medium,
}

/// A single block.
#[derive(Clone, Copy)]
struct Block<'a> {
    name: EngineHash,
    ids: &'a [u32],
    extra: Option<NonZeroU64>,
    medium: Medium,
}

/// What comes before a block.
#[derive(Clone, Copy)]
struct Before {
    key: BlockHash,
    node: NodeId,
}

// === impl Held ===

impl Held {
    pub(super) fn store(
        &mut self,
        batch: &Batch,
        stored: &Stored,
        index: &ExactIndex,
        facts: &Facts,
        applied: &mut Applied,
    ) {
        if !stored.is_full_attention || *self.group.get_or_insert(stored.group) != stored.group {
            return;
        }
        let Some(blocks) = Blocks::of(batch, stored) else {
            applied.unusable_events += 1;
            return;
        };
        if let Some(adapter) = &stored.adapter {
            index.adapters.note(adapter, &mut self.adapters, &index.budget);
        }
        let to = self.publisher(index);
        if blocks.ids.is_empty() {
            return self.store_by_name(&blocks, &to, applied);
        }
        facts.see_block_tokens(stored.block_tokens);
        match stored.parent {
            None => {
                let root = token_root(stored.adapter.as_deref(), stored.salt.as_deref());
                self.store_behind(Before { key: root, node: NodeId::NOWHERE }, blocks.iter(), &to, applied);
            }
            Some(parent) => match self.before(parent) {
                Some(before) => self.store_behind(before, blocks.iter(), &to, applied),
                None => self.store_behind_unknown(parent, &blocks, &to, applied),
            },
        }
        self.store_what_is_ready(&to, applied);
    }

    fn before(&self, name: EngineHash) -> Option<Before> {
        self.tree.find(name).map(|node| Before { key: self.tree.slab[node].key, node })
    }

    fn store_behind<'a>(
        &mut self,
        mut before: Before,
        mut blocks: impl Iterator<Item = Block<'a>>,
        to: &Publisher<'_>,
        applied: &mut Applied,
    ) {
        for block in blocks.by_ref() {
            match self.store_block(before, block, to, applied) {
                Some(stored) => before = stored,
                None => break,
            }
        }
        blocks.for_each(|block| self.refuse(block.name, applied));
    }

    /// Stores one block; nothing if it was refused.
    fn store_block(
        &mut self,
        before: Before,
        block: Block<'_>,
        to: &Publisher<'_>,
        applied: &mut Applied,
    ) -> Option<Before> {
        let key = token_block(before.key, block.ids, block.extra);
        let Some(id) = self.tree.find(block.name) else { return self.store_new(before, key, block, to, applied) };
        if self.tree.slab[id].key != key {
            applied.ambiguous += 1;
            self.disown(id, to);
        }
        self.hold_known(id, block.medium, to, applied);
        Some(Before { key: self.tree.slab[id].key, node: id })
    }

    fn store_new(
        &mut self,
        before: Before,
        key: BlockHash,
        block: Block<'_>,
        to: &Publisher<'_>,
        applied: &mut Applied,
    ) -> Option<Before> {
        let added = self.tree.add(block.name, key, before.node, to.budget);
        let held = added.filter(|id| self.hold(*id, block.medium, to));
        if held.is_none() {
            if let Some(id) = added {
                self.take_back(id, to);
            }
            self.refuse(block.name, applied);
            return None;
        }
        applied.stored += 1;
        self.refused.remove(block.name);
        self.wake(block.name);
        held.map(|node| Before { key, node })
    }

    /// Removes a block that was made just now and could not be published.
    fn take_back(&mut self, id: NodeId, to: &Publisher<'_>) {
        self.tree.slab[id].counts = [0; MEDIA];
        self.blocks -= 1;
        self.tree.prune(id, to.budget);
    }

    fn hold_known(&mut self, id: NodeId, medium: Medium, to: &Publisher<'_>, applied: &mut Applied) {
        match self.hold(id, medium, to) {
            true => applied.stored += 1,
            false => applied.refused += 1,
        }
    }

    /// Blocks that are said to be in a medium, by names that must be known: engines that copy blocks to slower media tell
    /// no more.
    fn store_by_name(&mut self, blocks: &Blocks<'_>, to: &Publisher<'_>, applied: &mut Applied) {
        for &name in blocks.names {
            match self.tree.find(name) {
                Some(id) => self.hold_known(id, blocks.medium, to, applied),
                None => applied.unknown_names += 1,
            }
        }
    }

    fn store_behind_unknown(
        &mut self,
        parent: EngineHash,
        blocks: &Blocks<'_>,
        to: &Publisher<'_>,
        applied: &mut Applied,
    ) {
        let mut parent = parent;
        for block in blocks.iter() {
            match self.before(parent) {
                // A block on the way is known, under another name for what is before it.
                Some(before) => {
                    self.store_block(before, block, to, applied);
                }
                None => self.set_aside(parent, block, to, applied),
            }
            parent = block.name;
        }
    }

    fn set_aside(&mut self, parent: EngineHash, block: Block<'_>, to: &Publisher<'_>, applied: &mut Applied) {
        let Block { name, ids, extra, medium } = block;
        if self.refused.contains(parent) {
            return self.refuse(name, applied);
        }
        match self.aside.add(AsideBlock { name, parent, ids: ids.into(), extra, medium }, to.budget) {
            SetAside::Done { dropped } => {
                applied.set_aside += 1;
                applied.dropped_aside += dropped as u64;
            }
            SetAside::Refused => self.refuse(name, applied),
        }
    }

    fn refuse(&mut self, name: EngineHash, applied: &mut Applied) {
        applied.refused += 1;
        self.refused.add(name);
        self.wake(name);
    }

    /// Has those looked after that wait for this name.
    fn wake(&mut self, name: EngineHash) {
        if self.aside.len() > 0 {
            self.ready.push(name);
        }
    }

    /// Stores the blocks whose parent has come, or refuses them with it, and so on behind them.
    fn store_what_is_ready(&mut self, to: &Publisher<'_>, applied: &mut Applied) {
        while let Some(parent) = self.ready.pop() {
            while let Some(block) = self.aside.take_child(parent, to.budget) {
                let AsideBlock { name, ref ids, extra, medium, .. } = block;
                match self.before(parent) {
                    Some(before) => {
                        self.store_block(before, Block { name, ids, extra, medium }, to, applied);
                    }
                    None => self.refuse(name, applied),
                }
            }
        }
        self.ready = Vec::new();
    }
}

// === impl Blocks ===

impl<'a> Blocks<'a> {
    /// None if the parts of the event do not fit together.
    fn of(batch: &'a Batch, stored: &Stored) -> Option<Self> {
        let names = batch.hashes.get(stored.hashes.clone())?;
        let ids = batch.tokens.get(stored.tokens.clone())?;
        let extras = batch.extras.get(stored.extras.clone())?;
        let block_tokens = stored.block_tokens.get() as usize;
        let fits = (ids.is_empty() || ids.len().div_ceil(block_tokens) == names.len())
            && (extras.is_empty() || extras.len() == names.len());
        fits.then_some(Self { names, ids, block_tokens, extras, medium: stored.medium })
    }

    fn iter(&self) -> impl Iterator<Item = Block<'a>> + use<'a> {
        let Self { extras, medium, .. } = *self;
        let blocks = self.names.iter().zip(self.ids.chunks(self.block_tokens)).enumerate();
        blocks.map(move |(at, (&name, ids))| {
            let extra = extras.get(at).copied().flatten();
            Block { name, ids, extra, medium }
        })
    }
}
