//! What a process that takes over knows from the start (`crate::handover`).
//!
//! A backend is the same if its pool, its name and its host and port are. What is unknown to the old process, or does not
//! fit the new configuration, starts as it would have.

use std::sync::Arc;

use super::{BackendEntry, PoolEntry, Table};
use crate::handover::state::{Learned, LearnedBackend, LearnedRun};
use crate::locality::LocalityIndex;
use crate::pool::{DrainCause, EjectionSettings, ModelEntry};
use crate::prefix::BlockHash;
use crate::responses::Owner;
use crate::time::Moment;

use super::super::settings;

impl Table {
    /// Goes on from what another process has learned. To be called before the first snapshot.
    pub(in crate::control) fn inherit(&mut self, learned: &Learned, now: Moment) {
        let index = Arc::clone(&self.state.index);
        for pool in &mut self.pools {
            let Some(found) = learned.pools.iter().find(|found| found.name == **pool.pool.name()) else { continue };
            pool.pool.scale().restore(found.scale);
            let settings = settings::ejection(&pool.config);
            let known = |entry: &BackendEntry| found.backends.iter().find(|found| is_same(entry, found));
            for entry in &mut pool.backends {
                if let Some(found) = known(entry) {
                    entry.inherit(found, &settings, now);
                }
            }
            // How much of it fits depends on what engines have told of themselves.
            pool.size_tenants(&self.state);
            for entry in &pool.backends {
                if let Some(found) = known(entry) {
                    entry.hold(found, &learned.runs, &index);
                }
            }
        }
        self.state.responses.restore(made(learned, &self.pools));
    }
}

/// The makers of responses that are there still.
fn made(learned: &Learned, pools: &[PoolEntry]) -> impl Iterator<Item = (u64, Owner)> {
    learned.responses.iter().filter_map(|response| {
        let pool = learned.pools.get(response.pool as usize)?;
        let backend = pool.backends.get(response.backend as usize)?;
        let pool = pools.iter().find(|entry| **entry.pool.name() == pool.name)?;
        let maker = pool.backends.iter().find(|entry| is_same(entry, backend))?;
        let owner = Owner { pool: Arc::clone(pool.pool.name()), backend: Arc::clone(maker.backend.name()) };
        Some((response.id, owner))
    })
}

fn is_same(entry: &BackendEntry, found: &LearnedBackend) -> bool {
    **entry.backend.name() == found.name && entry.backend.origin().authority() == found.authority
}

// === impl BackendEntry ===

impl BackendEntry {
    fn inherit(&mut self, found: &LearnedBackend, settings: &EjectionSettings, now: Moment) {
        self.address = found.address;
        self.probes.restore(found.health);
        if let Some(time) = found.drains_for {
            self.drain(DrainCause::Operator, time, now);
        }
        self.engine.block_tokens = found.block_tokens;
        self.engine.capacity_tokens = found.capacity_tokens;
        self.engine.max_running = found.max_running;
        self.models = ModelEntry::read_entries(&found.models);
        self.backend.load().restore(found.rate, found.recent, now);
        self.backend.ejection().restore(found.ejection, settings, now);
        self.backend.trust().restore(found.trust);
    }

    fn hold(&self, found: &LearnedBackend, runs: &[LearnedRun], index: &LocalityIndex) {
        let mut blocks = Vec::new();
        for hold in found.holds.iter().rev() {
            let Some(run) = runs.get(hold.run as usize) else { continue };
            let part = run.blocks.len().min(hold.blocks as usize);
            if part > 0 {
                blocks.clear();
                blocks.extend(run.blocks[..part].iter().map(|hash| BlockHash(*hash)));
                index.restore(self.tenant, &blocks, run.is_followed && part == run.blocks.len());
            }
        }
    }
}
