//! What an engine tells of its cache, as decisions see it: a place in the index of events, and whether it is current.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::kv_events::{Batch, SourceState, SourceWatch};
use crate::locality::{Applied, ExactTenant, TierBlocks};

/// The KV events of one cache: a backend's engine, or one of its data-parallel ranks. Written by the task that follows
/// them, read by decisions.
#[derive(Debug)]
pub struct EventFeed {
    tenant: ExactTenant,
    is_live: AtomicBool,
    /// All was forgotten, and it has not been current since.
    is_forgotten: AtomicBool,
    messages: AtomicU64,
    applied: AppliedTotals,
}

/// A feed as decisions and operators see it.
#[derive(Debug, Clone)]
pub struct EventView {
    /// What has come of it.
    pub feed: Arc<EventFeed>,
    /// Where it comes from.
    pub endpoint: Arc<str>,
    /// How it is followed.
    pub watch: SourceWatch,
}

/// Sums of [`Applied`], for metrics.
#[derive(Debug, Default)]
struct AppliedTotals {
    stored: AtomicU64,
    removed: AtomicU64,
    cleared: AtomicU64,
}

/// What a token is worth of one on the GPU, by where it lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierCredits {
    /// In the host's memory, 0 to 1.
    pub cpu: f64,
    /// On disk, 0 to 1.
    pub disk: f64,
}

// === impl EventFeed ===

impl EventFeed {
    /// A feed from which nothing has come yet.
    pub fn new(tenant: ExactTenant) -> Self {
        let (is_live, is_forgotten) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { tenant, is_live, is_forgotten, messages: AtomicU64::new(0), applied: AppliedTotals::default() }
    }

    /// Where its blocks stand in the index.
    pub fn tenant(&self) -> &ExactTenant {
        &self.tenant
    }

    /// Takes in a message.
    pub fn apply(&self, batch: &Batch) -> Applied {
        let applied = self.tenant.apply(batch);
        self.messages.fetch_add(1, Relaxed);
        self.applied.stored.fetch_add(applied.stored, Relaxed);
        self.applied.removed.fetch_add(applied.removed, Relaxed);
        applied
    }

    /// Forgets all that it told: messages were missed, or the engine is another process.
    pub fn clear(&self) {
        self.tenant.clear();
        self.is_forgotten.store(true, Relaxed);
        self.applied.cleared.fetch_add(1, Relaxed);
    }

    /// Says whether what is known is current: every message since the engine's start, or since the last clear, has come.
    pub fn set_live(&self, is_live: bool) {
        if is_live {
            self.is_forgotten.store(false, Relaxed);
        }
        self.is_live.store(is_live, Relaxed);
    }

    /// Whether what is known is current.
    pub fn is_live(&self) -> bool {
        self.is_live.load(Relaxed)
    }

    /// Messages that have come.
    pub fn messages(&self) -> u64 {
        self.messages.load(Relaxed)
    }

    /// Blocks that were stored.
    pub fn stored_blocks(&self) -> u64 {
        self.applied.stored.load(Relaxed)
    }

    /// Blocks that were removed.
    pub fn removed_blocks(&self) -> u64 {
        self.applied.removed.load(Relaxed)
    }

    /// Times that all was forgotten.
    pub fn clears(&self) -> u64 {
        self.applied.cleared.load(Relaxed)
    }
}

// === impl EventView ===

impl EventView {
    /// Whether the engine has started anew and is telling what it holds since: nothing from before is there, whatever our own
    /// decisions make of it.
    pub fn is_renewed(&self) -> bool {
        let is_telling = || !matches!(self.watch.get().state, SourceState::Connecting | SourceState::Failed);
        !self.feed.is_live() && self.feed.is_forgotten.load(Relaxed) && is_telling()
    }
}

// === impl TierCredits ===

impl TierCredits {
    /// What matched blocks are worth of blocks on the GPU.
    pub fn worth(self, blocks: TierBlocks) -> f64 {
        f64::from(blocks.gpu) + self.cpu * f64::from(blocks.cpu) + self.disk * f64::from(blocks.disk)
    }
}

impl Default for TierCredits {
    fn default() -> Self {
        Self { cpu: 0.8, disk: 0.4 }
    }
}
