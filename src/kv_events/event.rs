//! KV events: what an engine says of the blocks in its cache, in one form for all engines and releases.
//!
//! A batch keeps the ids and hashes of all its events in shared lists, so that a stream of a million events a second is
//! read into the same memory again and again.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::sync::Arc;

/// An engine's name for a block: 64 bits as they came (signed ones by their bits), longer digests hashed down to 64. It
/// is no more than a name: two engines, or two processes of one engine, may use the same for different blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineHash(pub u64);

/// Where a block lies, ordered from the fastest to the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// Where it is used: no cost to take it from there.
    Gpu,
    /// The host's memory.
    Cpu,
    /// A disk, or a store elsewhere.
    Disk,
}

/// The events of one message, in the order in which they happened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The engine's clock, seconds since 1970.
    pub timestamp: f64,
    /// The data-parallel rank that sent it, if it says so.
    pub rank: Option<u32>,
    /// What happened. The ranges in these index the lists below.
    pub events: Vec<Event>,
    /// Engine hashes of all events.
    pub hashes: Vec<EngineHash>,
    /// Token ids of all events.
    pub tokens: Vec<u32>,
    /// Digests of what else goes into blocks; see [`Stored::extras`].
    pub extras: Vec<Option<NonZeroU64>>,
}

/// One change of a cache.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Blocks were stored, each the child of the one before it.
    Stored(Stored),
    /// Blocks were removed, once each.
    Removed(Removed),
    /// All blocks are gone.
    Cleared,
}

/// Blocks that were stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The names of the blocks, first to last: a range of [`Batch::hashes`].
    pub hashes: Range<usize>,
    /// The block before the first; none at the beginning of a prompt.
    pub parent: Option<EngineHash>,
    /// The ids of all their tokens: a range of [`Batch::tokens`].
    pub tokens: Range<usize>,
    /// Tokens in each block.
    pub block_tokens: NonZeroU32,
    /// Where they are stored.
    pub medium: Medium,
    /// The LoRA adapter that they were computed with.
    pub adapter: Option<Arc<str>>,
    /// The salt that separates them from other caches; known for blocks at the beginning of a prompt only.
    pub salt: Option<Arc<str>>,
    /// For each block a digest of what went into it besides tokens, adapter and salt (pictures, say): a range of
    /// [`Batch::extras`], empty if there is nothing for any.
    pub extras: Range<usize>,
    /// The group of layers whose cache it is.
    pub group: u32,
    /// Whether a block is of use to every prompt that begins with it: false for sliding windows and states that only
    /// a part of a prompt leaves behind.
    pub is_full_attention: bool,
}

/// Blocks that were removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Removed {
    /// Their names: a range of [`Batch::hashes`].
    pub hashes: Range<usize>,
    /// Where they were stored.
    pub medium: Medium,
    /// The group of layers whose cache it is.
    pub group: u32,
}

// === impl Batch ===

impl Batch {
    /// Empties it, but keeps its memory.
    pub fn clear(&mut self) {
        self.timestamp = 0.0;
        self.rank = None;
        self.events.clear();
        self.hashes.clear();
        self.tokens.clear();
        self.extras.clear();
    }

    /// Adds stored blocks with nothing besides their tokens, for whoever makes events.
    ///
    /// `hashes` has a name for each block of `block_tokens` of `tokens`.
    pub fn push_stored(
        &mut self,
        hashes: &[EngineHash],
        parent: Option<EngineHash>,
        tokens: &[u32],
        block_tokens: NonZeroU32,
        medium: Medium,
    ) {
        let (first_hash, first_token) = (self.hashes.len(), self.tokens.len());
        self.hashes.extend_from_slice(hashes);
        self.tokens.extend_from_slice(tokens);
        self.events.push(Event::Stored(Stored {
            hashes: first_hash..self.hashes.len(),
            parent,
            tokens: first_token..self.tokens.len(),
            block_tokens,
            medium,
            adapter: None,
            salt: None,
            extras: self.extras.len()..self.extras.len(),
            group: 0,
            is_full_attention: true,
        }));
    }

    /// Adds removed blocks, for whoever makes events.
    pub fn push_removed(&mut self, hashes: &[EngineHash], medium: Medium) {
        let first = self.hashes.len();
        self.hashes.extend_from_slice(hashes);
        self.events.push(Event::Removed(Removed { hashes: first..self.hashes.len(), medium, group: 0 }));
    }
}
