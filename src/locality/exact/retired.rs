//! What tenants held that have left or lost it all: readers ask for it no more, and it is taken apart bit by bit.

use super::budget::Budget;
use super::level::Level;
use super::shards::Shards;
use super::slab::{CHUNK, Node, Slab};
use super::slot::Slot;

/// The blocks of a slot that is nobody's any more.
pub(super) struct Retired {
    pub(super) slot: Slot,
    slab: Slab,
    /// The chunk being swept, and how much of it is left.
    chunk: Option<(Box<[Node; CHUNK]>, usize)>,
}

/// How far a sweep went.
pub(super) enum Swept {
    /// So many places were looked at, and there are more.
    Some(usize),
    /// So many places were looked at, and nothing of the slot is left.
    All(usize),
}

// === impl Retired ===

impl Retired {
    pub(super) fn new(slot: Slot, slab: Slab) -> Self {
        Self { slot, slab, chunk: None }
    }

    /// Looks at up to `max` places, the last ones first: mostly the ends of prompts.
    pub(super) fn sweep(&mut self, max: usize, shards: &Shards, budget: &Budget) -> Swept {
        let mut swept = 0;
        while swept < max {
            let Some((chunk, left)) = self.chunk.as_mut().filter(|(_, left)| *left > 0) else {
                self.chunk = self.slab.pop_chunk(budget).map(|chunk| (chunk, CHUNK));
                match self.chunk {
                    Some(_) => continue,
                    None => return Swept::All(swept),
                }
            };
            *left -= 1;
            swept += 1;
            let node = &chunk[*left];
            if node.published > Level::None {
                // To remove never needs bytes.
                let _is_done = shards.change(node.key, self.slot, node.published, Level::None, budget);
            }
        }
        Swept::Some(swept)
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        let chunk = self.chunk.iter().flat_map(|(chunk, left)| &chunk[..*left]);
        self.slab.iter().chain(chunk)
    }
}
