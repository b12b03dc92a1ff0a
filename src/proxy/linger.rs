//! Blocks of a request stay claimed after its first token until the engine's events have named them: they come a moment
//! later, and what follows in between would not find them.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::sleep;

use super::context::{Attempt, Route};
use crate::locality::{ExactIndex, ExactMatches, InFlightBlocks};
use crate::pool::EventView;
use crate::prefix::BlockHash;

/// What an engine's events may take. What has not come by then will not: the blocks were evicted, or never stored.
const EVENT_TIME: Duration = Duration::from_millis(250);

/// The first look for them; each next one takes twice as long to come.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// What was computed, and where its events come from.
struct Lingering {
    claims: SmallVec<[InFlightBlocks; 1]>,
    /// Hashes by token ids of each prompt.
    wanted: SmallVec<[Arc<[BlockHash]>; 1]>,
    feeds: Arc<[EventView]>,
    events: Arc<ExactIndex>,
}

/// The engine of `attempt` has computed the prompts of `route`: their blocks are assumed to be in its cache from now on,
/// and claimed for as long as its events may still be on their way.
pub(super) fn computed(route: &Route, attempt: &mut Attempt, events: &Arc<ExactIndex>) {
    let claims = std::mem::take(&mut attempt.blocks);
    let feeds = Arc::clone(&route.pool().backends[attempt.index].feeds);
    let block_tokens = feeds.iter().find_map(|view| view.feed.tenant().block_tokens());
    let wanted = block_tokens.map(|size| route.plan.hashes_by_ids(size)).unwrap_or_default();
    if attempt.prediction.exact.is_none() || wanted.is_empty() {
        claims.into_iter().for_each(InFlightBlocks::commit);
        return;
    }
    claims.iter().for_each(InFlightBlocks::note_computed);
    let lingering = Lingering { claims, wanted, feeds, events: Arc::clone(events) };
    tokio::spawn(lingering.wait());
}

// === impl Lingering ===

impl Lingering {
    async fn wait(self) {
        let clears = self.clears();
        let (mut waited, mut pause) = (Duration::ZERO, FIRST_LOOK);
        while waited < EVENT_TIME && self.clears() == clears && !self.have_come() {
            sleep(pause).await;
            waited += pause;
            pause *= 2;
        }
        drop(self.claims);
    }

    /// Whether events have named all blocks.
    fn have_come(&self) -> bool {
        let mut matches = ExactMatches::new();
        self.wanted.iter().all(|hashes| {
            self.events.lookup(hashes, &mut matches);
            let held = self.feeds.iter().map(|view| matches.levels(view.feed.tenant().slot()).total()).max();
            held.unwrap_or(0) as usize == hashes.len()
        })
    }

    /// Times that the engine lost all that it had.
    fn clears(&self) -> u64 {
        self.feeds.iter().map(|view| view.feed.totals()[2]).sum()
    }
}
