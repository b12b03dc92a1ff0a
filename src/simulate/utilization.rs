//! How fast sessions have to start for a given utilization.
//!
//! Utilization is the share of time in steps with prefill under a router that knows what is cached (`cost` with exact
//! locality) that gives engines all at once, so a speed means the same load for every contender, whatever the limits and whether any is deferred.

use super::outcome::Outcome;
use super::run::run;
use super::setup::{Contender, Locality, Setup};
use super::workload::Workload;
use crate::pool::{Limits, PolicyKind};

/// Runs that are tried. More speed means more hits as well, so the first guess by proportion is not the last.
const MOST_RUNS: usize = 8;

/// Relative error that ends the search.
const TOLERANCE: f64 = 0.01;

/// Relative error of the nearest run that is good enough after all runs: few requests make steps of it, not a line.
const ACCEPTED: f64 = 0.05;

/// A workload that cannot be brought to the utilization.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "utilization {target} cannot be reached with these {requests} requests: the nearest is {:.2}, at {:.3} times the \
     workload's speed; use --speed, or more requests", .nearest.utilization, .nearest.speed
)]
pub(super) struct OutOfReach {
    target: f64,
    requests: usize,
    nearest: Measured,
}

/// What a speed came to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    speed: f64,
    utilization: f64,
}

/// The speed at which `workload` keeps the fleet of `setup` busy with prefill for `target` of the time.
///
/// # Errors
/// When none is found: too few requests to keep it busy, or engines with so much decoding that queues only grow.
pub(super) fn speed_for(
    workload: &Workload,
    setup: &Setup,
    target: f64,
    seed: u64,
    progress: &dyn Fn(usize),
) -> Result<f64, OutOfReach> {
    let limits = Limits::default();
    let mut setup =
        Setup { locality: Locality::Exact, routers: 1, limits, max_defer: None, faults: Vec::new(), ..setup.clone() };
    let mut tried: Vec<Measured> = Vec::new();
    for _ in 0..MOST_RUNS {
        let Outcome { utilization, .. } = run(workload, &setup, Contender::Policy(PolicyKind::Cost), seed, progress);
        let measured = Measured { speed: setup.speed, utilization };
        tried.push(measured);
        if measured.error(target) <= TOLERANCE || utilization <= 0.0 {
            break;
        }
        setup.speed = next(&tried, measured, target);
    }
    let nearest = tried.into_iter().min_by(|left, right| left.error(target).total_cmp(&right.error(target)));
    let nearest = nearest.unwrap_or(Measured { speed: setup.speed, utilization: 0.0 });
    if nearest.error(target) <= ACCEPTED {
        return Ok(nearest.speed);
    }
    Err(OutOfReach { target, requests: workload.requests(), nearest })
}

/// A guess by proportion to the last, or the middle where others were already seen to be too slow and too fast for it.
fn next(tried: &[Measured], last: Measured, target: f64) -> f64 {
    let ratio = target / last.utilization;
    // Overloaded engines are busy all the time, whatever the speed, so the proportion says too little.
    let guess = last.speed * if last.utilization > 0.98 { ratio.min(0.6) } else { ratio.clamp(0.2, 5.0) };
    let speeds =
        |is_over: bool| tried.iter().filter(move |run| (run.utilization > target) == is_over).map(|run| run.speed);
    let (slow, fast) = (speeds(false).fold(0.0, f64::max), speeds(true).fold(f64::INFINITY, f64::min));
    if slow < fast && !(slow..=fast).contains(&guess) { (slow * fast).sqrt() } else { guess }
}

// === impl Measured ===

impl Measured {
    fn error(&self, target: f64) -> f64 {
        (self.utilization / target - 1.0).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(runs: &[(f64, f64)]) -> Vec<Measured> {
        runs.iter().map(|&(speed, utilization)| Measured { speed, utilization }).collect()
    }

    fn next_after(list: &[(f64, f64)], target: f64) -> f64 {
        let tried = runs(list);
        next(&tried, tried[tried.len() - 1], target)
    }

    #[test]
    fn a_guess_is_in_proportion_and_no_wild_leap() {
        assert_eq!(next_after(&[(1.0, 0.25)], 0.75), 3.0);
        assert_eq!(next_after(&[(1.0, 0.001)], 0.6), 5.0);
        assert_eq!(next_after(&[(2.0, 1.0)], 0.7), 1.2, "nobody knows how much too fast it was");
    }

    #[test]
    fn a_guess_is_between_what_was_too_slow_and_what_was_too_fast() {
        // With more speed there may be more hits, so that the proportion to one run contradicts another.
        assert_eq!(next_after(&[(1.0, 0.4), (4.0, 0.8)], 0.5), 2.5, "the proportion is within");
        assert_eq!(next_after(&[(1.0, 0.4), (4.0, 0.9), (2.25, 0.2)], 0.8), 3.0, "the middle of 2.25 and 4");
    }
}
