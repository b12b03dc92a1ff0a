//! How fast sessions have to start for a given utilization.
//!
//! Utilization is the share of time in steps with prefill under a router that knows what is cached (`cost` with exact
//! locality), so a speed means the same load for every contender.

use super::outcome::Outcome;
use super::run::run;
use super::setup::{Contender, Locality, Setup};
use super::workload::Workload;
use crate::pool::PolicyKind;

/// Runs that are tried. More speed means more hits as well, so the first guess by proportion is not the last.
const MOST_RUNS: usize = 8;

/// Relative error that is good enough.
const TOLERANCE: f64 = 0.01;

/// A workload that cannot be brought to the utilization.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "utilization {target} cannot be reached: at {speed:.3} times the workload's speed it is {reached:.2}; use --speed"
)]
pub(super) struct OutOfReach {
    target: f64,
    reached: f64,
    speed: f64,
}

/// The speed at which `workload` keeps the fleet of `setup` busy with prefill for `target` of the time.
///
/// # Errors
/// When no speed does: a closed loop, or a fleet that decodes all the time.
pub(super) fn speed_for(
    workload: &Workload,
    setup: &Setup,
    target: f64,
    seed: u64,
    progress: &dyn Fn(usize),
) -> Result<f64, OutOfReach> {
    let mut setup = Setup { locality: Locality::Exact, routers: 1, faults: Vec::new(), ..setup.clone() };
    let mut reached = 0.0;
    for _ in 0..MOST_RUNS {
        let Outcome { utilization, .. } = run(workload, &setup, Contender::Policy(PolicyKind::Cost), seed, progress);
        reached = utilization;
        if (utilization / target - 1.0).abs() <= TOLERANCE {
            return Ok(setup.speed);
        }
        if utilization <= 0.0 {
            break;
        }
        // Overloaded engines are busy all the time, whatever the speed: halve it at least.
        let ratio = target / utilization;
        setup.speed *= if utilization > 0.98 { ratio.min(0.6) } else { ratio.clamp(0.2, 5.0) };
    }
    Err(OutOfReach { target, reached, speed: setup.speed })
}
