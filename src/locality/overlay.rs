//! The overlay: blocks of requests in flight count as held from dispatch on, before the engine has computed them.
//!
//! Without it, requests with a common prefix that arrive together are spread, because none of them has been seen to
//! fill a cache yet. A claim is a count on every run along the prompt. It keeps those runs from being removed or
//! shortened; cutting one leaves the count on both parts. So the runs along the same chain are found again at the end.

use std::sync::Arc;

use super::LocalityIndex;
use super::Tenant;
use super::holder::Counts;
use super::run::Run;
use super::writer::{Step, Writer};
use crate::prefix::BlockHash;

/// The blocks of one request in flight, counted as held by its backend while this lives.
///
/// [`commit`](Self::commit) it when the engine has computed them; dropping it only takes the claim back.
#[must_use = "dropping it takes the claim back"]
pub struct InFlightBlocks {
    index: Arc<LocalityIndex>,
    tenant: Tenant,
    chain: Arc<[BlockHash]>,
    /// Leading blocks of the chain with a claim; 0 when there was no room, or the tenant is stale.
    claimed: usize,
}

// === impl LocalityIndex ===

impl LocalityIndex {
    /// Counts `chain` as held by `tenant` from now on, until the guard ends. What does not fit into the tenant's
    /// capacity or the byte budget is not claimed; a stale tenant claims nothing.
    pub fn begin(self: &Arc<Self>, tenant: Tenant, chain: Arc<[BlockHash]>) -> InFlightBlocks {
        let claimed = self.change(|writer| writer.claim(tenant, &chain));
        InFlightBlocks { index: Arc::clone(self), tenant, chain, claimed }
    }
}

// === impl InFlightBlocks ===

impl InFlightBlocks {
    /// The engine has the blocks: they become assumed entries, the most recently used ones of the tenant. They also stay
    /// claimed while this lives.
    pub fn note_computed(&self) {
        self.index.change(|writer| writer.insert(self.tenant, &self.chain, self.claimed));
    }

    /// The same, and takes the claim back.
    pub fn commit(mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        self.index.change(|writer| {
            writer.insert(self.tenant, &self.chain, claimed);
            writer.release(self.tenant, &self.chain[..claimed]);
        });
    }

    /// Leading blocks of the prompt that are claimed.
    pub fn claimed_blocks(&self) -> u32 {
        self.claimed as u32
    }
}

impl Drop for InFlightBlocks {
    fn drop(&mut self) {
        if self.claimed > 0 {
            self.index.change(|writer| writer.release(self.tenant, &self.chain[..self.claimed]));
        }
    }
}

// === impl Writer ===

impl Writer {
    /// Puts a claim on the runs along the chain, as far as there is room; returns the blocks claimed.
    fn claim(&mut self, tenant: Tenant, chain: &[BlockHash]) -> usize {
        self.sweep_some();
        let chain = self.clip(tenant, chain);
        let chain = &chain[..self.cut_at_end(chain)];
        let mut claimed = 0;
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        while claimed < chain.len() {
            let previous = path.last().map(|step: &Step| self.holds.run(step.hold));
            let Some(step) = self.claim_run(tenant, &chain[claimed..], previous) else { break };
            claimed += step.run_blocks as usize;
            path.push(step);
        }
        if let Some((slot, holds)) = self.live_lists(tenant) {
            for step in path.iter().rev().filter(|step| holds.blocks(step.hold) == 0).collect::<Vec<_>>() {
                slot.lists.claimed.make_newest(holds, step.hold);
            }
        }
        self.path = path;
        claimed
    }

    fn claim_run(&mut self, tenant: Tenant, rest: &[BlockHash], previous: Option<BlockHash>) -> Option<Step> {
        let admitted = self.admit(tenant, rest, previous, None)?;
        let run_blocks = admitted.run_blocks as u32;
        let one_more = |counts: Counts| Counts { in_flight: counts.in_flight + 1, ..counts };
        let (_, counts) = self.recount(admitted.key, tenant, one_more);
        let (slot, holds) = self.live_lists(tenant)?;
        if admitted.is_new {
            slot.lists.claimed.push_newest(holds, admitted.hold);
        }
        if counts.in_flight == 1 {
            slot.in_flight_blocks += u64::from(run_blocks);
            self.totals.in_flight_blocks += u64::from(run_blocks);
        }
        Some(Step { hold: admitted.hold, run_blocks })
    }

    /// Takes a claim back. That of a retired generation is left alone: its counts go when its holds are swept.
    fn release(&mut self, tenant: Tenant, chain: &[BlockHash]) {
        if self.live(tenant).is_none() {
            return;
        }
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let mut base = 0;
        while base < chain.len() {
            let look = |run: &Run| Some((run.blocks(), run.holder(tenant)?.hold));
            let Some((run_blocks, hold)) = self.shards.read(chain[base], look).flatten() else { break };
            path.push(Step { hold, run_blocks: run_blocks as u32 });
            base += run_blocks;
        }
        // From the last run to the first: whoever is in a run holds all before it, at every moment.
        path.iter().rev().for_each(|step| self.release_run(tenant, *step));
        self.path = path;
    }

    fn release_run(&mut self, tenant: Tenant, step: Step) {
        let one_less = |counts: Counts| Counts { in_flight: counts.in_flight.saturating_sub(1), ..counts };
        let (before, after) = self.recount(self.holds.run(step.hold), tenant, one_less);
        let Some((slot, holds)) = self.live_lists(tenant) else { return };
        if after == Counts::NONE {
            slot.lists.claimed.unlink(holds, step.hold);
            holds.remove(step.hold);
        }
        if before.in_flight == 1 {
            slot.in_flight_blocks -= u64::from(step.run_blocks);
            self.totals.in_flight_blocks -= u64::from(step.run_blocks);
        }
    }
}
