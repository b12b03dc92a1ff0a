//! A run: consecutive blocks with nothing known to leave or end between them, and the tenants that hold some of them.
//!
//! Runs are the edges of a compressed trie. Block hashes are chained (equal hash, equal blocks up to there), so the
//! trie needs no nodes and no pointers: after the last block of a run, the next hash of the prompt names the next run.
//!
//! A run whose end is also the end of all that follows is made longer by the next turn of a conversation, so that a
//! conversation of many turns does not become as many runs.
//!
//! Invariants: a run has a block; holders are ordered by slot and generation; some holder reaches the last block.

use std::mem::size_of;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use smallvec::SmallVec;

use super::Tenant;
use super::bytes::heap_bytes;
use super::holder::{Counts, Holder};
use super::lru::HoldId;
use super::matches::{Held, Matches};
use crate::prefix::BlockHash;

/// A run that has come to this many blocks is not made longer, so that no copy takes more than a microsecond.
const MAX_GROWN_BLOCKS: usize = 2048;

/// Consecutive blocks and who holds them.
pub(super) struct Run {
    hashes: Vec<BlockHash>,
    /// Another run has followed this one at some time.
    is_followed: AtomicBool,
    /// Most runs are one conversation's turn at one backend, so one holder is kept without an allocation.
    holders: SmallVec<[Holder; 1]>,
}

/// How far a prompt goes along a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overlap {
    /// Leading blocks of the run that the prompt shares, at least 1.
    pub(super) shared: usize,
    /// Blocks of the run.
    pub(super) run: usize,
}

// === impl Overlap ===

impl Overlap {
    /// The prompt covers the run, so that another may follow.
    pub(super) fn is_whole(self) -> bool {
        self.shared == self.run
    }
}

// === impl Run ===

impl Run {
    /// A run without holders; `hashes` is not empty.
    pub(super) fn new(hashes: &[BlockHash]) -> Self {
        Self { hashes: hashes.to_vec(), is_followed: AtomicBool::new(false), holders: SmallVec::new() }
    }

    /// Bytes that [`Run::new`] allocates for `blocks` blocks, itself included.
    pub(super) fn bytes_for(blocks: usize) -> usize {
        heap_bytes(size_of::<Self>()) + heap_bytes(blocks * size_of::<BlockHash>())
    }

    pub(super) fn blocks(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    pub(super) fn holders(&self) -> &[Holder] {
        &self.holders
    }

    pub(super) fn holder(&self, tenant: Tenant) -> Option<&Holder> {
        self.position(tenant).ok().map(|at| &self.holders[at])
    }

    /// Bytes allocated by this run, itself included.
    pub(super) fn bytes(&self) -> usize {
        let holders = if self.holders.spilled() { holder_bytes(self.holders.capacity()) } else { 0 };
        heap_bytes(size_of::<Self>()) + heap_bytes(self.hashes.capacity() * size_of::<BlockHash>()) + holders
    }

    /// Notes what every holder has of a prompt's `rest`, which starts `base` blocks into it. The shared length is
    /// searched for by halving: equal hashes mean equal blocks up to there.
    pub(super) fn note_matches(&self, rest: &[BlockHash], base: usize, matches: &mut Matches) -> Overlap {
        let shared = self.search_shared(rest);
        for holder in &self.holders {
            let counts = holder.counts();
            let assumed = shared.min(counts.blocks as usize) as u32;
            let in_flight = if counts.in_flight > 0 { shared as u32 } else { 0 };
            matches.note(holder.tenant, base as u32, Held { blocks: assumed.max(in_flight), assumed, in_flight });
        }
        Overlap { shared, run: self.hashes.len() }
    }

    /// How far `rest` goes along this run, every block compared: what is written must be right even where two hashes
    /// collide, or a claim could be released on other runs than those it was made on.
    pub(super) fn compare(&self, rest: &[BlockHash]) -> Overlap {
        const STRIDE: usize = 32;
        let longest = self.hashes.len().min(rest.len());
        let (ours, theirs) = (&self.hashes[..longest], &rest[..longest]);
        let equal =
            ours.chunks(STRIDE).zip(theirs.chunks(STRIDE)).take_while(|(a, b)| are_equal(a, b)).count() * STRIDE;
        let equal = equal.min(longest);
        let more = ours[equal..].iter().zip(&theirs[equal..]).take_while(|(a, b)| a == b).count();
        Overlap { shared: equal + more, run: self.hashes.len() }
    }

    /// Bytes by which one more holder makes the run larger.
    pub(super) fn holder_growth_bytes(&self) -> usize {
        if self.holders.len() < self.holders.capacity() {
            return 0;
        }
        let now = if self.holders.spilled() { holder_bytes(self.holders.capacity()) } else { 0 };
        holder_bytes(self.grown_capacity()) - now
    }

    /// Adds a holder for a tenant that has none; returns the bytes that this took.
    pub(super) fn add_holder(&mut self, holder: Holder) -> usize {
        let growth = self.holder_growth_bytes();
        if growth > 0 {
            self.holders.grow(self.grown_capacity());
        }
        let at = self.position(holder.tenant).unwrap_or_else(|at| at);
        self.holders.insert(at, holder);
        growth
    }

    /// Changes a tenant's counts where that changes nothing else: the holder stays, and so does the run's length. So
    /// it is with most changes, and they can be made beside readers. False, and nothing changes, with all others.
    #[must_use]
    pub(super) fn try_recount(&self, holder: &Holder, counts: Counts) -> bool {
        let whole = self.hashes.len();
        let is_alone = || self.holders.iter().all(|it| it.tenant == holder.tenant || it.counts().reach(whole) < whole);
        let (before, after) = (holder.counts().reach(whole), counts.reach(whole));
        let is_simple = counts != Counts::NONE && (after >= before || after == whole || !is_alone());
        if is_simple {
            holder.set(counts);
        }
        is_simple
    }

    /// Changes a tenant's counts, takes the holder out if it has nothing left, and drops the blocks that nobody reaches.
    /// True if that was the last holder, and the run is to be removed.
    #[must_use]
    pub(super) fn recount(&mut self, tenant: Tenant, counts: Counts) -> bool {
        let Ok(at) = self.position(tenant) else { return false };
        self.holders[at].set(counts);
        if counts == Counts::NONE {
            self.holders.remove(at);
            if self.holders.len() <= self.holders.capacity() / 4 || self.holders.len() == 1 {
                self.holders.shrink_to_fit();
            }
        }
        if !self.holders.is_empty() {
            self.drop_unreached();
        }
        self.holders.is_empty()
    }

    /// The last part of this run, from block `at` on, as a run of its own; `hold_of` is told each holder that goes
    /// over and how many of its blocks do, and makes a place in its tenant's order of use for them.
    pub(super) fn tail(&self, at: usize, mut hold_of: impl FnMut(&Holder, u32) -> HoldId) -> Self {
        let mut holders = SmallVec::with_capacity(self.reaching_beyond(at));
        for holder in self.holders.iter().filter(|holder| holder.counts().reaches_beyond(at)) {
            let counts = holder.counts();
            let counts = Counts { blocks: counts.blocks.saturating_sub(at as u32), ..counts };
            holders.push(Holder::new(holder.tenant, hold_of(holder, counts.blocks), counts));
        }
        Self { hashes: self.hashes[at..].to_vec(), is_followed: AtomicBool::new(self.is_followed()), holders }
    }

    /// Bytes by which a cut at `at` makes this run and its tail larger together, at most.
    pub(super) fn cut_growth_bytes(&self, at: usize) -> usize {
        let moved = self.reaching_beyond(at);
        let holders = if moved > 1 { holder_bytes(moved) } else { 0 };
        let hashes = heap_bytes(self.hashes.capacity() * size_of::<BlockHash>());
        (Self::bytes_for(self.hashes.len() - at) + heap_bytes(at * size_of::<BlockHash>()) + holders)
            .saturating_sub(hashes)
    }

    /// Holders that have something at or after block `at`.
    pub(super) fn reaching_beyond(&self, at: usize) -> usize {
        self.holders.iter().filter(|holder| holder.counts().reaches_beyond(at)).count()
    }

    /// Whether another run has followed this one at some time.
    pub(super) fn is_followed(&self) -> bool {
        self.is_followed.load(Relaxed)
    }

    /// Says that there is another run after this one. Nothing to readers, who go by the blocks alone.
    pub(super) fn mark_followed(&self) {
        self.is_followed.store(true, Relaxed);
    }

    /// Bytes by which `more` blocks at the end make this run larger; nothing if there are none, or if it cannot be made
    /// longer: the place where it ends must stay when another run begins there, and when a claim ends there.
    pub(super) fn extension_bytes(&self, more: usize) -> Option<usize> {
        let blocks = self.hashes.len() + more;
        let is_claimed = || self.holders.iter().any(|holder| holder.counts().in_flight > 0);
        if more == 0 || self.is_followed() || blocks > MAX_GROWN_BLOCKS || is_claimed() {
            return None;
        }
        let now = heap_bytes(self.hashes.capacity() * size_of::<BlockHash>());
        Some(heap_bytes(blocks * size_of::<BlockHash>()).saturating_sub(now))
    }

    /// A copy of the blocks with `more` at the end.
    pub(super) fn extended(&self, more: &[BlockHash]) -> Vec<BlockHash> {
        [&self.hashes, more].concat()
    }

    /// Takes over what [`Run::extended`] made; returns the former vector, to be freed after the lock.
    pub(super) fn lengthen(&mut self, longer: Vec<BlockHash>) -> Vec<BlockHash> {
        std::mem::replace(&mut self.hashes, longer)
    }

    /// Leaves the blocks of `head`, a copy of the first blocks; returns the former vector, to be freed after the lock.
    pub(super) fn shorten(&mut self, head: Vec<BlockHash>) -> Vec<BlockHash> {
        for holder in &self.holders {
            let counts = holder.counts();
            holder.set(Counts { blocks: counts.blocks.min(head.len() as u32), ..counts });
        }
        self.mark_followed();
        std::mem::replace(&mut self.hashes, head)
    }

    fn search_shared(&self, rest: &[BlockHash]) -> usize {
        let longest = self.hashes.len().min(rest.len());
        // Most runs are gone through whole, so the end is looked at first: one cache miss instead of a dozen.
        if self.hashes[longest - 1] == rest[longest - 1] {
            return longest;
        }
        let (mut shared, mut differs) = (1, longest - 1);
        while shared < differs {
            let middle = shared + (differs - shared) / 2;
            if self.hashes[middle] == rest[middle] {
                shared = middle + 1;
            } else {
                differs = middle;
            }
        }
        shared
    }

    fn position(&self, tenant: Tenant) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&(tenant.slot, tenant.generation), |holder| {
            (holder.tenant.slot, holder.tenant.generation)
        })
    }

    fn grown_capacity(&self) -> usize {
        // By half: a run shared by a fleet must not carry as much slack as content.
        let capacity = self.holders.capacity();
        (capacity + capacity / 2).max(capacity + 1)
    }

    fn drop_unreached(&mut self) {
        let whole = self.hashes.len();
        let reach = self.holders.iter().map(|holder| holder.counts().reach(whole)).max().unwrap_or(whole);
        if reach == whole {
            return;
        }
        self.hashes.truncate(reach.max(1));
        // Eviction nibbles; giving back each block at once would copy the whole run for each.
        if self.hashes.len() <= self.hashes.capacity() / 4 * 3 {
            self.hashes.shrink_to_fit();
        }
    }
}

/// Whether all of them are, without a branch for each.
fn are_equal(left: &[BlockHash], right: &[BlockHash]) -> bool {
    left.iter().zip(right).fold(0, |all, (left, right)| all | (left.0 ^ right.0)) == 0
}

fn holder_bytes(capacity: usize) -> usize {
    heap_bytes(capacity * size_of::<Holder>())
}
