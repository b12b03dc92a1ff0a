//! Backends that leave: how their drains begin, what a tick makes of them, and how they come back.

use std::sync::Arc;
use std::time::Duration;

use super::table::BackendEntry;
use crate::config;
use crate::pool::{Drain, DrainCause, DrainPhase};
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
