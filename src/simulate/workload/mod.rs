//! What arrives at a simulated fleet: sessions of one or more turns.
//!
//! A recorded trace is sessions of one turn each; a conversation is one session whose next turn comes when a person has
//! read the last answer; a closed loop is as many sessions as it has clients. So one structure serves for all, and what
//! arrives depends on the seed alone: every policy gets the same work.

mod agentic;
mod builtin;
mod burst;
mod conversation;
mod draw;
mod ideal;
mod no_sharing;
mod rag;
mod script;
mod shared_prefix;
mod text;
mod trace;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub use agentic::Agentic;
pub use builtin::{Builtin, UnknownWorkload};
pub use burst::Burst;
pub use conversation::Conversation;
pub use draw::LogNormal;
pub use ideal::infinite_cache_hit_ratio;
pub use no_sharing::NoSharing;
pub use rag::Rag;
pub use shared_prefix::SharedPrefix;
pub use text::Text;
pub use trace::from_trace;

use crate::prefix::BlockHash;

/// Tokens of a block in the built-in workloads that do not need another size: small against any prompt of theirs.
const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);

/// All that arrives in one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Tokens in a prefix block.
    pub block_tokens: NonZeroU32,
    /// In the order of their start.
    pub sessions: Vec<Session>,
}

/// Turns that follow one another.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// When its first turn comes, at speed 1.
    pub start: Duration,
    /// What the caller sends to name it, as a hash; none if it has no name.
    pub key: Option<u64>,
    /// First to last; each comes when the answer to the one before it is complete, or was given up.
    pub turns: Vec<Turn>,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// The pause between the end of the turn before it (or the session's start) and this one. A person's or a tool's
    /// time: it does not change with the speed.
    pub pause: Duration,
    /// Hashes of the whole blocks of the prompt and, behind them, of the answer, as far as anybody could find them.
    /// It may go on behind the answer, because the turns of a session share one chain: the lengths say what is this turn's.
    pub chain: Arc<[BlockHash]>,
    /// Tokens of the prompt; at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer; at least 1.
    pub output_tokens: u32,
}

// === impl Workload ===

impl Workload {
    /// The turns of all sessions.
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|session| session.turns.len()).sum()
    }
}

// === impl Turn ===

impl Turn {
    /// The whole blocks of the prompt: what a router can look up.
    pub fn prompt_blocks(&self, block_tokens: NonZeroU32) -> &[BlockHash] {
        let whole = (self.prompt_tokens / block_tokens.get()) as usize;
        &self.chain[..whole.min(self.chain.len())]
    }
}
