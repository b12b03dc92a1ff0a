//! What a fault does to a run.

use std::time::Duration;

use super::{Coming, Event, Request, Run, State};
use crate::simulate::fault::FaultKind;
use crate::simulate::router::Router;
use crate::time::Moment;

// === impl Run ===

impl Run<'_> {
    pub(super) fn strike(&mut self, fault: FaultKind, now: Moment) {
        match fault {
            FaultKind::Add => self.add_backend(),
            FaultKind::Slow { backend, factor } => self.fleet.slow_down(backend, factor),
            FaultKind::Restart { backend, down } => self.restart(backend, down, now),
        }
    }

    pub(super) fn add_backend(&mut self) {
        self.fleet.add();
        self.away.push(0);
        self.routers.iter_mut().for_each(Router::add_backend);
        self.stir_all();
    }

    /// As the proxy sees it: connections are reset, so requests without a first token go elsewhere at once, answers
    /// that have begun are cut off, and the backend is out until it is back.
    fn restart(&mut self, backend: usize, down: Duration, now: Moment) {
        let lost = self.fleet.restart(backend);
        self.away[backend] += 1;
        self.routers.iter_mut().for_each(|router| router.lose(backend));
        for number in lost {
            let Some(Request { session, turn, router, arrived, alone, state, .. }) = self.requests[number].take()
            else {
                continue;
            };
            let is_pending = matches!(state, State::Pending(_));
            drop(state);
            if is_pending {
                self.send(
                    Coming { session, turn, router, arrived, alone, tried: Some(backend), has_waited: true },
                    now,
                );
            } else {
                self.give_up(session, turn, arrived, backend, now);
            }
        }
        self.stir_all();
        self.plan(now + down, Event::Return { backend });
    }

    /// The end of a restart; only the last of several brings the backend back.
    pub(super) fn come_back(&mut self, backend: usize) {
        self.away[backend] -= 1;
        if self.away[backend] == 0 {
            self.routers.iter_mut().for_each(|router| router.regain(backend));
            self.stir_all();
        }
    }
}
