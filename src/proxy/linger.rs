//! Blocks of a request stay claimed after its first token until the engine's events have named them: they come a moment
//! later, and what follows in between would not find them. Whether they come at all says what the events are worth.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::sleep;

use super::context::RequestContext;
use crate::locality::{ExactMatches, InFlightBlocks};
use crate::metrics::BackendLabels;
use crate::pool::{Backend, EventView};
use crate::prefix::BlockHash;
use crate::state::State;

/// What an engine's events may take. What has not come by then will not: the blocks were evicted, or never stored.
const EVENT_TIME: Duration = Duration::from_millis(250);

/// The first look for them; each next one takes twice as long to come.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// What was computed, and where its events come from.
struct Lingering {
    state: Arc<State>,
    labels: BackendLabels,
    backend: Arc<Backend>,
    /// Held until then.
    _claims: SmallVec<[InFlightBlocks; 1]>,
    /// Hashes by token ids of each prompt.
    wanted: SmallVec<[Arc<[BlockHash]>; 1]>,
    block_tokens: NonZeroU32,
    feeds: Arc<[EventView]>,
    /// Times that the engine had lost all it had when the request went there.
    clears: u64,
}

/// The engine of the last attempt has computed the prompts: their blocks are assumed to be in its cache from now on, and
/// claimed for as long as its events may still be on their way. Not if the engine lost all it had in the meantime: what it
/// found in its cache before is not there any more, and no event will come of it.
pub(super) fn computed(state: &Arc<State>, ctx: &mut RequestContext) {
    let labels = ctx.labels();
    let Some((route, attempt)) = ctx.route.as_ref().zip(ctx.attempt.as_mut()) else { return };
    let claims = std::mem::take(&mut attempt.blocks);
    let feeds = Arc::clone(&route.pool().backends[attempt.index].feeds);
    let told = feeds.iter().find_map(|view| view.feed.tenant().block_tokens());
    let Some(block_tokens) = told.filter(|_| attempt.prediction.exact.is_some()) else {
        claims.into_iter().for_each(InFlightBlocks::commit);
        return;
    };
    claims.iter().for_each(InFlightBlocks::note_computed);
    let (state, backend) = (Arc::clone(state), Arc::clone(&attempt.backend));
    let wanted = route.plan.hashes_by_ids(block_tokens);
    let clears = attempt.clears;
    tokio::spawn(Lingering { state, labels, backend, _claims: claims, wanted, block_tokens, feeds, clears }.wait());
}

/// Times that the engine behind these lost all that it had.
pub(super) fn clears(feeds: &[EventView]) -> u64 {
    feeds.iter().map(|view| view.feed.clears()).sum()
}

// === impl Lingering ===

impl Lingering {
    async fn wait(self) {
        let wanted = self.wanted.iter().map(|hashes| hashes.len()).sum::<usize>();
        let (mut waited, mut pause, mut told) = (Duration::ZERO, FIRST_LOOK, self.told());
        while told < wanted && waited < EVENT_TIME && !self.is_lost() {
            sleep(pause).await;
            waited += pause;
            pause *= 2;
            told = told.max(self.told());
        }
        if self.is_lost() {
            return;
        }
        let tokens = |blocks: usize| blocks as u64 * u64::from(self.block_tokens.get());
        let changes = self.backend.trust().judge_events(tokens(wanted), tokens(told));
        self.state.trust_changed(&self.labels, &changes);
    }

    /// Whether the engine has lost all that it had since the request went there.
    fn is_lost(&self) -> bool {
        clears(&self.feeds) != self.clears
    }

    /// Blocks that events have named.
    fn told(&self) -> usize {
        let mut matches = ExactMatches::new();
        let told = self.wanted.iter().map(|hashes| {
            self.state.events.lookup(hashes, &mut matches);
            let held = self.feeds.iter().map(|view| matches.levels(view.feed.tenant().slot()).total()).max();
            held.unwrap_or(0) as usize
        });
        told.sum()
    }
}
