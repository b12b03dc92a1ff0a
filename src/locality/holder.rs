//! One tenant's part of a run.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Tenant;
use super::lru::HoldId;

/// A tenant that holds some of a run, or all. At least one of its two counts is not 0.
pub(super) struct Holder {
    pub(super) tenant: Tenant,
    /// The place of the assumed blocks in the tenant's order of use.
    pub(super) hold: HoldId,
    /// Both counts in one word, changed by the one writer alone: readers see the two as they are at one moment, and
    /// never neither where one takes over from the other.
    counts: AtomicU64,
}

/// What a tenant has of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Leading blocks of the run that the tenant is assumed to hold.
    pub(super) blocks: u32,
    /// Requests in flight whose prompts run through here; while there are any, the whole run counts as held.
    pub(super) in_flight: u32,
}

// === impl Holder ===

impl Holder {
    pub(super) fn new(tenant: Tenant, hold: HoldId, counts: Counts) -> Self {
        Self { tenant, hold, counts: AtomicU64::new(counts.pack()) }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts::unpack(self.counts.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, counts: Counts) {
        self.counts.store(counts.pack(), Ordering::Release);
    }
}

// === impl Counts ===

impl Counts {
    pub(super) const NONE: Self = Self { blocks: 0, in_flight: 0 };

    /// Blocks that count as held, of a run of `run_blocks`.
    pub(super) fn reach(self, run_blocks: usize) -> usize {
        if self.in_flight > 0 { run_blocks } else { self.blocks as usize }
    }

    /// Whether there is something at or after block `at`.
    pub(super) fn reaches_beyond(self, at: usize) -> bool {
        self.in_flight > 0 || self.blocks as usize > at
    }

    fn pack(self) -> u64 {
        u64::from(self.in_flight) << 32 | u64::from(self.blocks)
    }

    fn unpack(word: u64) -> Self {
        Self { blocks: word as u32, in_flight: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counts_keep_to_their_half_of_the_word() {
        for counts in [(0, 0), (u32::MAX, 0), (0, u32::MAX), (7, 9)] {
            let counts = Counts { blocks: counts.0, in_flight: counts.1 };
            assert_eq!(Counts::unpack(counts.pack()), counts);
        }
    }
}
