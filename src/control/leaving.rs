//! Backends that leave: how their drains begin, what a tick makes of them, and how they come back.

use std::sync::Arc;
use std::time::Duration;

use super::DrainOrder;
use super::table::{BackendEntry, Table};
use crate::config;
use crate::pool::{Drain, DrainCause, DrainPhase, Pool};
use crate::state::State;
use crate::time::Moment;

/// A backend's drain, as the control loop follows it.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    pub(super) drain: Arc<Drain>,
    /// How far it was when that was last logged.
    logged: DrainPhase,
}

// === impl Leaving ===

impl Leaving {
    /// Begins, and says so.
    pub(super) fn begin(cause: DrainCause, time: Duration, backend: &str, now: Moment) -> Self {
        let why = match cause {
            DrainCause::Operator => "as asked",
            DrainCause::Removed => "the configuration has it no more",
        };
        log::info!("backend {backend} drains ({why}); its conversations may go on for {time:?}");
        Self { drain: Drain::begin(cause, time, now), logged: DrainPhase::Conversations }
    }

    /// Whether the operator asked for it.
    pub(super) fn is_asked_for(&self) -> bool {
        self.drain.cause() == DrainCause::Operator
    }

    /// Logs how far the drain has come, each phase once; whether it is over.
    fn follow(&mut self, backend: &str, phase: DrainPhase, in_flight: u32) -> bool {
        if phase > self.logged {
            self.logged = phase;
            let requests = self.drain.requests();
            match phase {
                DrainPhase::Conversations => {}
                DrainPhase::Emptying => log::info!(
                    "backend {backend}: the time of its conversations is over ({requests} requests); {in_flight} in flight"
                ),
                DrainPhase::Drained => log::info!("backend {backend} is drained ({requests} requests meanwhile)"),
            }
        }
        phase == DrainPhase::Drained
    }
}

// === impl Table ===

impl Table {
    /// Starts or ends the drain of every backend of this name; how many there are.
    pub(super) fn drain(&mut self, name: &str, order: DrainOrder, now: Moment) -> usize {
        let mut found = 0;
        for pool in &mut self.pools {
            let usual = pool.config.drain.deadline;
            let is_undrain = order == DrainOrder::Undrain;
            let leaving = pool.leaving.iter_mut().filter(|_| !is_undrain);
            for entry in pool.backends.iter_mut().chain(leaving).filter(|entry| entry.config.name == name) {
                found += 1;
                match order {
                    DrainOrder::Drain(time) => entry.drain(DrainCause::Operator, time.unwrap_or(usual), now),
                    DrainOrder::Undrain if entry.leaving.take().is_some() => {
                        log::info!("backend {name} drains no more")
                    }
                    DrainOrder::Undrain => {}
                }
            }
        }
        found
    }

    /// Lets those drain that `config` has no more. One whose name or address another has got goes at once: the two could
    /// not be told apart.
    pub(super) fn let_go(
        &mut self,
        pool: &Pool,
        mut old: Vec<BackendEntry>,
        config: &config::Pool,
        now: Moment,
    ) -> Vec<BackendEntry> {
        let time = config.drain.deadline;
        let can_stay = |entry: &mut BackendEntry| {
            !time.is_zero() && config.backends.iter().all(|backend| entry.is_apart_from(backend))
        };
        let mut leaving: Vec<_> = old.extract_if(.., can_stay).collect();
        self.remove(pool, old);
        leaving.iter_mut().for_each(|entry| entry.remove(time, now));
        leaving
    }

    /// Follows all drains, and removes what a reload has removed and is drained; whether there was any.
    pub(super) fn follow_drains(&mut self, now: Moment) -> bool {
        let state = Arc::clone(&self.state);
        let mut over = Vec::new();
        for pool in &mut self.pools {
            for entry in &mut pool.backends {
                entry.follow_drain(&state, now);
            }
            let drained: Vec<_> = pool.leaving.extract_if(.., |entry| entry.follow_drain(&state, now)).collect();
            if !drained.is_empty() {
                over.push((Arc::clone(&pool.pool), drained));
                pool.size_tenants(&state);
            }
        }
        let is_any = !over.is_empty();
        for (pool, drained) in over {
            self.remove(&pool, drained);
        }
        is_any
    }
}

// === impl BackendEntry ===

impl BackendEntry {
    /// Begins a drain, or gives the present one another deadline.
    pub(super) fn drain(&mut self, cause: DrainCause, time: Duration, now: Moment) {
        // What a reload has removed stays removed, whatever the operator asks for.
        let cause = match &self.leaving {
            Some(leaving) if !leaving.is_asked_for() => DrainCause::Removed,
            _ => cause,
        };
        self.leaving = Some(Leaving::begin(cause, time, &self.config.name, now));
    }

    /// The configuration has it no more: it drains, unless it does already.
    pub(super) fn remove(&mut self, time: Duration, now: Moment) {
        if self.leaving.is_none() {
            self.drain(DrainCause::Removed, time, now);
        }
    }

    /// The configuration has it again. What the operator asked for stays.
    pub(super) fn put_back(&mut self) {
        if self.leaving.as_ref().is_some_and(|leaving| !leaving.is_asked_for()) {
            self.leaving = None;
            log::info!("backend {} was put back, and drains no more", self.config.name);
        }
    }

    /// Follows the drain; whether it is over.
    pub(super) fn follow_drain(&mut self, state: &State, now: Moment) -> bool {
        let Some(phase) = self.snapshot().drain_phase(&state.index, now) else { return false };
        let in_flight = self.backend.load().in_flight();
        let leaving = self.leaving.as_mut();
        leaving.is_some_and(|leaving| leaving.follow(&self.config.name, phase, in_flight))
    }

    /// Whether it can be told from `other`, in metrics and at its address.
    pub(super) fn is_apart_from(&self, other: &config::Backend) -> bool {
        self.config.name != other.name && self.config.url != other.url
    }
}
