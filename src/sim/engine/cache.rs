//! The prefix cache: a fixed number of blocks, counted references, least recently freed out first.
//!
//! A block is held (some running request refers to it) or free. Free blocks keep their content and their hash until they
//! are needed for something else; they are taken in the order in which they were freed, and a request frees its last
//! block first, so that tails go before the prefixes they hang on. Blocks without a hash go before all others.
//!
//! Invariant: `held + free <= capacity`, and a hash names at most one block.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::FixedState;

use super::log::EventLog;
use crate::kv_events::{Batch, EngineHash};
use crate::prefix::BlockHash;

/// A block's place in the cache.
pub type BlockId = u32;

/// The end of the free list.
const NONE: BlockId = BlockId::MAX;

/// The blocks of one engine.
#[derive(Debug)]
pub struct BlockCache {
    capacity: u32,
    /// Grows up to `capacity` as blocks are first used, so that a large cache costs nothing until it is full.
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, BlockId, FixedState>,
    /// Counts changes of `by_hash`: what was matched at one version is still so at the same version.
    version: u64,
    held: u32,
    /// Ends of the doubly linked free list; the oldest is taken first.
    oldest: BlockId,
    newest: BlockId,
    /// What has changed, if anyone wants to know.
    log: Option<Box<EventLog>>,
}

#[derive(Debug)]
struct Block {
    hash: Option<BlockHash>,
    references: u32,
    older: BlockId,
    newer: BlockId,
}

// === impl BlockCache ===

impl BlockCache {
    /// An empty cache of `capacity` blocks; at least 1.
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity.clamp(1, NONE - 1),
            blocks: Vec::new(),
            by_hash: HashMap::default(),
            version: 0,
            held: 0,
            oldest: NONE,
            newest: NONE,
            log: None,
        }
    }

    /// Notes from now on what changes. `seed` gives blocks their names.
    pub(super) fn listen(&mut self, seed: u64) {
        self.log = Some(Box::new(EventLog::new(seed)));
    }

    pub(super) fn log(&mut self) -> Option<&mut EventLog> {
        self.log.as_deref_mut()
    }

    /// What has changed since this was last asked, if anything has.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        self.log()?.take()
    }

    /// The names of all blocks that can be found, in no order; none if nobody listens.
    pub(super) fn names(&self) -> Vec<EngineHash> {
        let log = self.log.as_deref();
        log.map_or_else(Vec::new, |log| self.by_hash.keys().map(|&hash| log.name(hash)).collect())
    }

    /// Blocks there are.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks referred to by running requests.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Blocks that a later request could find by their hash, held or free.
    pub fn cached(&self) -> usize {
        self.by_hash.len()
    }

    /// Another number whenever what can be found has changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many leading blocks of `chain` are here.
    pub fn matched(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|hash| self.by_hash.contains_key(hash)).count()
    }

    /// Takes the leading blocks of `chain` that are here, and as many fresh ones as make up `total`. `None`, and nothing
    /// changed, if the free blocks do not suffice.
    pub fn take(&mut self, chain: &[BlockHash], total: u32) -> Option<Vec<BlockId>> {
        let mut taken: Vec<BlockId> = chain.iter().map_while(|hash| self.by_hash.get(hash).copied()).collect();
        taken.truncate(total as usize);
        let already_held = taken.iter().filter(|&&id| self.block(id).references > 0).count() as u32;
        if total - already_held > self.capacity - self.held {
            return None;
        }
        // The matched ones first: else a fresh block could be made out of one of them.
        for &id in &taken {
            self.hold(id);
        }
        taken.extend((taken.len() as u32..total).map(|_| self.fresh()));
        Some(taken)
    }

    /// Makes a held block findable. A hash that names another block already stays with it, and this is false: two requests
    /// that compute the same prefix side by side leave one block that can be found and one that is reused first.
    pub fn publish(&mut self, id: BlockId, hash: BlockHash) -> bool {
        let Entry::Vacant(vacant) = self.by_hash.entry(hash) else { return false };
        vacant.insert(id);
        self.version += 1;
        self.block_mut(id).hash = Some(hash);
        true
    }

    /// Makes all blocks unfindable. Those that are held stay so.
    pub fn forget(&mut self) {
        self.by_hash.clear();
        self.version += 1;
        self.blocks.iter_mut().for_each(|block| block.hash = None);
    }

    /// Gives back one reference to each block, the last block first.
    pub fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = self.block_mut(id);
            block.references -= 1;
            if block.references == 0 {
                let is_findable = block.hash.is_some();
                self.held -= 1;
                if is_findable { self.link_newest(id) } else { self.link_oldest(id) }
            }
        }
    }

    fn hold(&mut self, id: BlockId) {
        if self.block(id).references == 0 {
            self.unlink(id);
            self.held += 1;
        }
        self.block_mut(id).references += 1;
    }

    /// A block that was never used, else the one freed longest ago. The caller has checked that there is one.
    fn fresh(&mut self) -> BlockId {
        let id = if (self.blocks.len() as u32) < self.capacity {
            self.blocks.push(Block { hash: None, references: 0, older: NONE, newer: NONE });
            self.blocks.len() as BlockId - 1
        } else {
            let id = self.oldest;
            self.unlink(id);
            if let Some(hash) = self.block_mut(id).hash.take() {
                self.by_hash.remove(&hash);
                self.version += 1;
                if let Some(log) = &mut self.log {
                    log.removed(hash);
                }
            }
            id
        };
        self.block_mut(id).references = 1;
        self.held += 1;
        id
    }

    fn link_newest(&mut self, id: BlockId) {
        let older = self.newest;
        (self.block_mut(id).older, self.block_mut(id).newer) = (older, NONE);
        match older {
            NONE => self.oldest = id,
            older => self.block_mut(older).newer = id,
        }
        self.newest = id;
    }

    fn link_oldest(&mut self, id: BlockId) {
        let newer = self.oldest;
        (self.block_mut(id).older, self.block_mut(id).newer) = (NONE, newer);
        match newer {
            NONE => self.newest = id,
            newer => self.block_mut(newer).older = id,
        }
        self.oldest = id;
    }

    fn unlink(&mut self, id: BlockId) {
        let (older, newer) = (self.block(id).older, self.block(id).newer);
        match older {
            NONE => self.oldest = newer,
            older => self.block_mut(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.block_mut(newer).older = older,
        }
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }
}
