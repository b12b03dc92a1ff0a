//! What a run still holds at its end, for tests.

use super::Run;
use crate::simulate::outcome::Outcome;
use crate::simulate::setup::{Contender, Setup};
use crate::simulate::workload::Workload;
use crate::time::Moment;

/// As [`super::run`], and what is still held at the end, of everything together: 0, unless something was counted wrong.
pub(in crate::simulate) fn run_to_nothing(
    workload: &Workload,
    setup: &Setup,
    contender: Contender,
    seed: u64,
) -> (Outcome, u64) {
    let mut run = Run::new(workload, setup, contender, seed);
    run.go(&|_| ());
    let engines = run.fleet.engines().iter().map(|engine| {
        let load = engine.load();
        load.running as u64 + load.waiting as u64 + u64::from(load.held_blocks)
    });
    let routers = run.routers.iter().map(|router| router.held(Moment::ORIGIN));
    let held = engines.sum::<u64>() + routers.sum::<u64>() + run.requests.iter().flatten().count() as u64;
    let held = held + run.waiting.len() as u64;
    (run.outcome(), held)
}
