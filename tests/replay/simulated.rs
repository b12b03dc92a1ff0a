//! The same workloads in simulated time.

use warmgate::simulate::workload::Workload;
use warmgate::simulate::{Contender, Outcome, Setup, run};

use crate::{BLOCK_TOKENS, SEED};

/// What comes of the workload; every request is served.
pub(crate) fn simulated(workload: &Workload, setup: &Setup, policy: &str) -> Outcome {
    let outcome = run(workload, setup, Contender::named(policy).unwrap(), SEED, &|_| ());
    let served = outcome.records.iter().filter(|record| record.times.is_some()).count();
    assert_eq!(served, workload.requests());
    outcome
}

/// The share of prompt tokens that engines found in their caches.
pub(crate) fn hit_ratio(outcome: &Outcome) -> f64 {
    let computed: f64 = outcome.records.iter().map(|record| f64::from(record.prefill_tokens)).sum();
    let cached: f64 = outcome.records.iter().map(|record| f64::from(record.cached_blocks * BLOCK_TOKENS)).sum();
    cached / (cached + computed)
}

/// The time within which 90 % of the requests had their first token, in seconds.
pub(crate) fn ttft_p90(outcome: &Outcome) -> f64 {
    p90(outcome.records.iter().filter_map(|record| Some(record.times?.first_token)).collect())
}

/// The value that nine of ten do not exceed (nearest rank).
pub(crate) fn p90(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 9).div_ceil(10) - 1]
}
