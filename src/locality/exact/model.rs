//! The naive model that the index is tested against: a world of blocks, and for every engine how often it has each of
//! them in each medium. What matches is found by walking along the prompt.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use proptest::prelude::*;

use super::TierBlocks;
use crate::kv_events::{Batch, EngineHash, Event, Medium, Stored};
use crate::prefix::{BlockHash, token_block, token_root};

pub(super) const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// A block that engines may compute.
#[derive(Debug, Clone)]
pub(super) struct WorldBlock {
    /// Its place in the world's list, always lower than its own.
    pub(super) parent: Option<usize>,
    pub(super) ids: [u32; 4],
    pub(super) extra: Option<NonZeroU64>,
    /// Of the prompt's beginning.
    pub(super) adapter: Option<Arc<str>>,
    pub(super) salt: Option<Arc<str>>,
    pub(super) key: BlockHash,
}

/// All blocks that there are, as trees.
#[derive(Debug, Clone)]
pub(super) struct World(pub(super) Vec<WorldBlock>);

/// What one engine has: for each block of the world how often in each medium.
#[derive(Debug, Clone)]
pub(super) struct ModelEngine {
    pub(super) counts: Vec<[u32; 3]>,
    /// Sets its names apart from other engines'.
    pub(super) names: u64,
}

// === impl World ===

impl World {
    /// Trees in which prompts mostly go on for a while before they part.
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let block = (prop_oneof![6 => Just(0usize), 1 => 1usize..5, 1 => Just(usize::MAX)], 0u8..12, 0u8..6);
        prop::collection::vec(block, 1..28).prop_map(|blocks| {
            let mut world = Self(Vec::new());
            blocks.into_iter().for_each(|(back, extra, names)| world.push(back, extra, names));
            world
        })
    }

    /// Adds a block behind the last one, or behind one further `back`, or behind none.
    fn push(&mut self, back: usize, extra: u8, names: u8) {
        let at = self.0.len();
        let parent = at.checked_sub(1).and_then(|last| last.checked_sub(back));
        let before = parent.map(|parent| self.0[parent].clone());
        let name = |wanted: u8| (names == wanted || names == 3).then(|| Arc::from("a"));
        let (adapter, salt) = before.as_ref().map_or((name(1), name(2)), |before| {
            // Like in an engine: both are those of the whole prompt.
            (before.adapter.clone(), before.salt.clone())
        });
        let ids = [at as u32, 1, 2, 3];
        let extra = if extra == 0 { NonZeroU64::new(7) } else { None };
        let root = token_root(adapter.as_deref(), salt.as_deref());
        let key = token_block(before.map_or(root, |before| before.key), &ids, extra);
        self.0.push(WorldBlock { parent, ids, extra, adapter, salt, key });
    }

    /// The blocks from the beginning of the prompt that ends with this one.
    pub(super) fn path(&self, end: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(end), |at| self.0[*at].parent).collect();
        path.reverse();
        path
    }

    pub(super) fn chain(&self, end: usize) -> Vec<BlockHash> {
        self.path(end).into_iter().map(|at| self.0[at].key).collect()
    }

    /// An event that stores the last `depth` blocks of the path that ends with `end`.
    pub(super) fn stored(&self, batch: &mut Batch, engine: &ModelEngine, end: usize, depth: usize, medium: Medium) {
        let path = self.path(end);
        let path = &path[path.len().saturating_sub(depth)..];
        let names: Vec<EngineHash> = path.iter().map(|at| engine.name(*at)).collect();
        let ids: Vec<u32> = path.iter().flat_map(|at| self.0[*at].ids).collect();
        let parent = self.0[path[0]].parent;
        batch.push_stored(&names, parent.map(|parent| engine.name(parent)), &ids, BLOCK_TOKENS, medium);
        let first_extra = batch.extras.len();
        if path.iter().any(|at| self.0[*at].extra.is_some()) {
            batch.extras.extend(path.iter().map(|at| self.0[*at].extra));
        }
        if let Some(stored) = last_stored(batch) {
            stored.adapter = self.0[path[0]].adapter.clone();
            stored.salt = parent.is_none().then(|| self.0[path[0]].salt.clone()).flatten();
        }
        let extras = first_extra..batch.extras.len();
        if let Some(stored) = last_stored(batch) {
            stored.extras = extras;
        }
    }
}

pub(super) fn last_stored(batch: &mut Batch) -> Option<&mut Stored> {
    match batch.events.last_mut() {
        Some(Event::Stored(stored)) => Some(stored),
        _ => None,
    }
}

// === impl ModelEngine ===

impl ModelEngine {
    pub(super) fn new(world: &World, names: u64) -> Self {
        Self { counts: vec![[0; 3]; world.0.len()], names }
    }

    pub(super) fn name(&self, at: usize) -> EngineHash {
        EngineHash(self.names << 32 | at as u64)
    }

    pub(super) fn store(&mut self, world: &World, end: usize, depth: usize, medium: Medium) {
        let path = world.path(end);
        for at in &path[path.len().saturating_sub(depth)..] {
            self.counts[*at][medium as usize] += 1;
        }
    }

    pub(super) fn remove(&mut self, at: usize, medium: Medium) {
        let count = &mut self.counts[at][medium as usize];
        *count = count.saturating_sub(1);
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill([0; 3]);
    }

    pub(super) fn blocks(&self) -> u64 {
        self.counts.iter().filter(|counts| **counts != [0; 3]).count() as u64
    }

    /// Leading blocks of the prompt by where they are.
    pub(super) fn matched(&self, world: &World, end: usize) -> TierBlocks {
        let path = world.path(end);
        let within = |media: usize| {
            let is_held = |at: &&usize| self.counts[**at][..media].iter().any(|count| *count > 0);
            path.iter().take_while(is_held).count() as u32
        };
        let (gpu, cpu, disk) = (within(1), within(2), within(3));
        TierBlocks { gpu, cpu: cpu - gpu, disk: disk - cpu }
    }
}
