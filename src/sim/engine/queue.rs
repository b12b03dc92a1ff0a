//! The queue of an engine: who waits, and who is next.
//!
//! It is kept in the order of arrival. [`QueueOrder::LongestMatch`] takes from its middle; what each request matches is
//! looked up once a step, and again only if the cache has changed since.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::cache::BlockCache;
use super::parameters::{LONGEST_MATCH_QUEUE, QueueOrder};
use super::request::{Request, RequestId};
use crate::time::Moment;

#[derive(Debug)]
pub(super) struct Queue {
    order: QueueOrder,
    waiting: VecDeque<Waiting>,
    /// Whether the step that starts takes by match; decided once for the whole step.
    is_by_match: bool,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) submitted_at: Moment,
    /// Blocks to hold for prompt and answer.
    pub(super) total_blocks: u32,
    /// Leading blocks that may be found: all whole ones before the last prompt token.
    pub(super) findable: usize,
    /// What the queue knows of its match.
    pub(super) matched: Option<Match>,
}

/// Blocks found at a version of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Match {
    blocks: usize,
    version: u64,
}

// === impl Queue ===

impl Queue {
    pub(super) fn new(order: QueueOrder) -> Self {
        Self { order, waiting: VecDeque::new(), is_by_match: false }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When the first of those that wait came.
    pub(super) fn first_at(&self) -> Option<Moment> {
        self.waiting.front().map(|first| first.submitted_at)
    }

    pub(super) fn push(&mut self, mut waiting: Waiting) {
        // The queue is ordered by time whatever the caller's clock does.
        if let Some(last) = self.waiting.back() {
            waiting.submitted_at = waiting.submitted_at.max(last.submitted_at);
        }
        self.waiting.push_back(waiting);
    }

    /// False if it does not wait here.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        // Ids are given in the order of arrival.
        let place = self.waiting.binary_search_by_key(&id, |waiting| waiting.id);
        place.is_ok_and(|place| self.waiting.remove(place).is_some())
    }

    /// All that wait, first to last; none wait any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = RequestId> + '_ {
        self.waiting.drain(..).map(|waiting| waiting.id)
    }

    /// Before the admissions of a step: looks up what those that were here by `at` match, if the order depends on it.
    pub(super) fn rank(&mut self, at: Moment, cache: &BlockCache) {
        self.is_by_match = self.order == QueueOrder::LongestMatch && self.waiting.len() <= LONGEST_MATCH_QUEUE;
        if self.is_by_match {
            let here = self.waiting.iter_mut().take_while(|waiting| waiting.submitted_at <= at);
            here.for_each(|waiting| _ = waiting.match_blocks(cache));
        }
    }

    /// The place of the next request among those that were here by `at`.
    pub(super) fn next(&self, at: Moment) -> Option<usize> {
        let mut here = self.waiting.iter().take_while(|waiting| waiting.submitted_at <= at).enumerate();
        let next = if self.is_by_match {
            // Of equals `min_by_key` takes the first.
            here.min_by_key(|(_, waiting)| Reverse(waiting.matched.map(|matched| matched.blocks)))
        } else {
            here.next()
        };
        next.map(|(place, _)| place)
    }

    pub(super) fn at(&mut self, place: usize) -> Option<&mut Waiting> {
        self.waiting.get_mut(place)
    }

    pub(super) fn take(&mut self, place: usize) -> Option<Waiting> {
        self.waiting.remove(place)
    }
}

// === impl Waiting ===

impl Waiting {
    /// How many blocks of its prompt the cache has.
    pub(super) fn match_blocks(&mut self, cache: &BlockCache) -> usize {
        let version = cache.version();
        match self.matched {
            Some(matched) if matched.version == version => matched.blocks,
            _ => {
                let blocks = cache.matched(&self.request.chain[..self.findable]);
                self.matched = Some(Match { blocks, version });
                blocks
            }
        }
    }
}
