//! What goes into the simulated engine and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use super::log::Content;
use crate::prefix::BlockHash;
use crate::time::Moment;

/// One request, as the scheduler sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Hashes of the full blocks of the prompt and, behind them, of the answer that will be generated: decoding fills
    /// blocks too, and the next turn of a conversation finds them. May stop early; blocks without a hash are never found.
    pub chain: Vec<BlockHash>,
    /// Tokens of the prompt; zero counts as one.
    pub prompt_tokens: u32,
    /// Tokens to generate; zero (an embedding) ends with the prefill.
    pub output_tokens: u32,
    /// What the blocks of `chain` are made of: needed by an engine that somebody listens to, else none.
    pub content: Option<Arc<Content>>,
}

/// Names a request of one engine; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// Why the engine took a request not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Prompt and answer together do not fit into the KV cache, even an empty one.
    #[error("prompt and answer have more than {limit_tokens} tokens")]
    TooLong {
        /// The most that fits.
        limit_tokens: u64,
    },
    /// As many requests wait as may.
    #[error("the queue is full")]
    QueueFull,
}

/// Something that happened inside a step; its moment is the step's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub id: RequestId,
    /// When.
    pub at: Moment,
    /// What.
    pub kind: EventKind,
}

/// What happened to a request. In order: admitted once, then its tokens, then finished once. An aborted request has no
/// more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It left the queue and holds blocks for its prompt and answer.
    Admitted {
        /// Prompt tokens found in the prefix cache.
        cached_tokens: u32,
    },
    /// A token came out. Number 0 ends the prefill.
    Token {
        /// Counted from 0.
        index: u32,
    },
    /// All its tokens are out; its blocks are free.
    Finished,
}

/// Which events an engine gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventDetail {
    /// All.
    #[default]
    Tokens,
    /// Of the tokens only the first: for who does not stream, and does not want to handle an event for every token.
    Milestones,
}

/// What an engine has counted since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests taken in.
    pub submitted: u64,
    /// Requests that ran to their end.
    pub finished: u64,
    /// Requests given up or lost in a crash while they waited or ran.
    pub aborted: u64,
    /// Requests turned away because the queue was full.
    pub rejected: u64,
    /// Prompt tokens of admitted requests: the prefix cache was asked for these.
    pub queried_tokens: u64,
    /// Those of them that were found.
    pub cached_tokens: u64,
    /// Prompt tokens of requests whose prefill is complete, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were computed, in whole prefills and in those cut short.
    pub computed_tokens: u64,
    /// Tokens that came out.
    pub generated_tokens: u64,
    /// Time spent in steps that contain prefill. A step counts when it has ended.
    pub prefill_busy: Duration,
}

/// What an engine holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the batch, aborted ones until the end of their step included.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// KV blocks held by running requests; of all engines that share the cache, as is the next.
    pub held_blocks: u32,
    /// KV blocks that can be found by their hash.
    pub cached_blocks: usize,
}
