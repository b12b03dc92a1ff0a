//! What came of a run: a record of each request, and what is read from them.

use std::time::Duration;

use crate::time::Moment;

/// One request, after its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// When it came.
    pub arrived: Moment,
    /// The backend that served it last.
    pub backend: usize,
    /// Whole blocks of its prompt.
    pub blocks: u32,
    /// Those of them that the engine found in its cache.
    pub cached_blocks: u32,
    /// Tokens of its prompt that the engine computed.
    pub prefill_tokens: u32,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// Since its arrival; none if it was cut off or refused.
    pub times: Option<Times>,
}

/// How long a request took, in seconds since its arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// To the first token of the answer.
    pub first_token: f64,
    /// To the last.
    pub end: f64,
    /// To the first one, had the engine that held most of the prompt when it came had nothing else to do: no router can do
    /// better for it from then on.
    pub alone: f64,
}

/// Everything about one contender's run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// In the order in which they ended.
    pub records: Vec<Record>,
    /// Backends at the end.
    pub backends: usize,
    /// Share of the backends' time in steps with prefill, while sessions start; of a closed loop, to the end.
    pub utilization: f64,
}

/// Limits within which an answer counts as good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// To the first token, seconds.
    pub ttft: f64,
    /// For each further token on average, seconds.
    pub per_token: f64,
}

/// The figures of one run, or the means of several.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Summary {
    /// The contender's name.
    pub policy: String,
    /// Found share of the prompts' whole blocks. A block that is not whole can be in no cache.
    pub hit_ratio: f64,
    /// Prompt tokens that were computed.
    pub prefill_tokens: f64,
    /// Mean time to first token. Times are in seconds, here and below.
    pub ttft_mean: f64,
    /// Median time to first token.
    pub ttft_p50: f64,
    /// The time within which 90 % had their first token.
    pub ttft_p90: f64,
    /// The time within which 99 % had their first token.
    pub ttft_p99: f64,
    /// Mean time to the last token.
    pub e2e_mean: f64,
    /// Prompt tokens computed by the busiest backend, as a multiple of the mean.
    pub skew_tokens: f64,
    /// Requests of the busiest backend, as a multiple of the mean.
    pub skew_requests: f64,
    /// Share of requests within the objective.
    pub goodput: f64,
    /// Requests in all.
    pub requests: f64,
    /// Requests among these that were cut off or refused.
    pub failed: f64,
    /// Share of time in steps with prefill, from a fifth of the sessions' starts on; of a closed loop, in all.
    pub utilization: f64,
    /// How fast sessions started, as a multiple of the workload's own speed.
    pub speed: f64,
    /// With faults: TTFT p90 of what arrived before the first; none if nothing was served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_p90_before: Option<f64>,
    /// With faults: TTFT p90 of what arrived in the minute after each, in order of time; none if nothing was served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ttft_p90_after: Vec<Option<f64>>,
    /// What `ttft_p90_before` would be if nobody had waited for anything but the own prefill ([`Times::alone`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_p90_before: Option<f64>,
    /// The same of `ttft_p90_after`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alone_p90_after: Vec<Option<f64>>,
}

/// One of a request's times.
type Of = fn(&Times) -> f64;

const TTFT: Of = |times| times.first_token;
const ALONE: Of = |times| times.alone;

/// How long after a fault its effect is looked at.
const AFTERMATH: Duration = Duration::from_secs(60);

// === impl Outcome ===

impl Outcome {
    /// TTFTs of what was served, in rising order, seconds.
    pub fn ttfts(&self) -> Vec<f64> {
        self.sorted(|_| true, TTFT)
    }

    /// Prompt tokens computed at each backend.
    pub fn prefill_by_backend(&self) -> Vec<f64> {
        self.by_backend(|record| f64::from(record.prefill_tokens))
    }

    /// The figures; `faults` are the times of the faults, in order.
    pub fn summary(&self, policy: &str, objective: &Objective, faults: &[Duration]) -> Summary {
        let ttfts = self.ttfts();
        let sum = |of: &dyn Fn(&Record) -> f64| self.records.iter().map(of).sum::<f64>();
        let served = ttfts.len() as f64;
        let blocks = sum(&|record| f64::from(record.blocks));
        let ends = sum(&|record| record.times.map_or(0.0, |times| times.end));
        let good = self.records.iter().filter(|record| record.meets(objective)).count() as f64;
        let requests = self.records.len() as f64;
        Summary {
            policy: policy.to_owned(),
            hit_ratio: sum(&|record| f64::from(record.cached_blocks)) / blocks.max(1.0),
            prefill_tokens: sum(&|record| f64::from(record.prefill_tokens)),
            // From 0, as the sum of nothing would be -0.
            ttft_mean: ttfts.iter().fold(0.0, |sum, ttft| sum + ttft) / served.max(1.0),
            ttft_p50: quantile(&ttfts, 0.5),
            ttft_p90: quantile(&ttfts, 0.9),
            ttft_p99: quantile(&ttfts, 0.99),
            e2e_mean: ends / served.max(1.0),
            skew_tokens: skew(&self.prefill_by_backend()),
            skew_requests: skew(&self.by_backend(|_| 1.0)),
            goodput: good / requests.max(1.0),
            requests,
            failed: requests - served,
            utilization: self.utilization,
            speed: 1.0,
            ttft_p90_before: self.p90_before(faults, TTFT),
            ttft_p90_after: self.p90_after(faults, TTFT),
            alone_p90_before: self.p90_before(faults, ALONE),
            alone_p90_after: self.p90_after(faults, ALONE),
        }
    }

    fn p90_before(&self, faults: &[Duration], of: Of) -> Option<f64> {
        faults.first().and_then(|&first| self.p90_within(Duration::ZERO, first, of))
    }

    fn p90_after(&self, faults: &[Duration], of: Of) -> Vec<Option<f64>> {
        faults.iter().map(|&fault| self.p90_within(fault, fault + AFTERMATH, of)).collect()
    }

    fn p90_within(&self, from: Duration, to: Duration, of: Of) -> Option<f64> {
        let (from, to) = (Moment::at(from), Moment::at(to));
        let times = self.sorted(|record| (from..to).contains(&record.arrived), of);
        (!times.is_empty()).then(|| quantile(&times, 0.9))
    }

    /// What was served, in rising order.
    fn sorted(&self, counts: impl Fn(&Record) -> bool, of: Of) -> Vec<f64> {
        let counted = self.records.iter().filter(|record| counts(record));
        let mut times: Vec<f64> = counted.filter_map(|record| record.times.as_ref().map(of)).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    fn by_backend(&self, weight: impl Fn(&Record) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.backends];
        for record in &self.records {
            sums[record.backend] += weight(record);
        }
        sums
    }
}

// === impl Record ===

impl Record {
    fn meets(&self, objective: &Objective) -> bool {
        self.times.is_some_and(|times| {
            let further = f64::from(self.output_tokens.saturating_sub(1));
            let decoding = times.end - times.first_token;
            times.first_token <= objective.ttft && decoding <= objective.per_token * further
        })
    }
}

// === impl Summary ===

impl Summary {
    /// The means of the same contender's runs with different seeds.
    pub fn mean(runs: &[Self]) -> Self {
        let count = runs.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Self) -> f64| runs.iter().map(of).sum::<f64>() / count;
        let optional = |of: &dyn Fn(&Self) -> Option<f64>| {
            let known: Option<Vec<f64>> = runs.iter().map(of).collect();
            known.map(|known| known.iter().sum::<f64>() / count)
        };
        let faults = runs.iter().map(|run| run.ttft_p90_after.len()).min().unwrap_or(0);
        Self {
            policy: runs.first().map(|run| run.policy.clone()).unwrap_or_default(),
            hit_ratio: mean(&|run| run.hit_ratio),
            prefill_tokens: mean(&|run| run.prefill_tokens),
            ttft_mean: mean(&|run| run.ttft_mean),
            ttft_p50: mean(&|run| run.ttft_p50),
            ttft_p90: mean(&|run| run.ttft_p90),
            ttft_p99: mean(&|run| run.ttft_p99),
            e2e_mean: mean(&|run| run.e2e_mean),
            skew_tokens: mean(&|run| run.skew_tokens),
            skew_requests: mean(&|run| run.skew_requests),
            goodput: mean(&|run| run.goodput),
            requests: mean(&|run| run.requests),
            failed: mean(&|run| run.failed),
            utilization: mean(&|run| run.utilization),
            speed: mean(&|run| run.speed),
            ttft_p90_before: optional(&|run| run.ttft_p90_before),
            ttft_p90_after: (0..faults).map(|fault| optional(&|run| run.ttft_p90_after[fault])).collect(),
            alone_p90_before: optional(&|run| run.alone_p90_before),
            alone_p90_after: (0..faults).map(|fault| optional(&|run| run.alone_p90_after[fault])).collect(),
        }
    }
}

/// The value that `share` of the sorted `values` do not exceed (nearest rank); 0 of none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// The largest by the mean; 1 of nothing.
fn skew(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    if mean > 0.0 { values.iter().copied().fold(0.0, f64::max) / mean } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u64, backend: usize, ttft: Option<f64>) -> Record {
        Record {
            arrived: Moment::at(Duration::from_secs(second)),
            backend,
            blocks: 10,
            cached_blocks: 4,
            prefill_tokens: 100,
            output_tokens: 11,
            times: ttft.map(|first_token| Times { first_token, end: first_token + 1.0, alone: first_token / 2.0 }),
        }
    }

    const OBJECTIVE: Objective = Objective { ttft: 5.0, per_token: 0.1 };

    fn outcome(records: Vec<Record>) -> Outcome {
        Outcome { records, backends: 2, utilization: 0.5 }
    }

    #[test]
    fn the_figures_are_those_of_the_records() {
        let records = (1..=10).map(|second| record(second, usize::from(second > 7), Some(second as f64))).collect();
        let summary = outcome(records).summary("cost", &OBJECTIVE, &[]);
        assert_eq!((summary.ttft_p50, summary.ttft_p90, summary.ttft_p99), (5.0, 9.0, 10.0));
        assert_eq!((summary.ttft_mean, summary.e2e_mean), (5.5, 6.5));
        assert_eq!((summary.hit_ratio, summary.prefill_tokens), (0.4, 1_000.0));
        assert_eq!((summary.skew_requests, summary.skew_tokens), (1.4, 1.4));
        assert_eq!((summary.goodput, summary.failed), (0.5, 0.0));
    }

    #[test]
    fn a_request_that_failed_is_in_no_time_but_counts() {
        let summary = outcome(vec![record(1, 0, Some(2.0)), record(2, 0, None)]).summary("cost", &OBJECTIVE, &[]);
        assert_eq!((summary.requests, summary.failed, summary.goodput), (2.0, 1.0, 0.5));
        assert_eq!((summary.ttft_mean, summary.e2e_mean, summary.skew_requests), (2.0, 3.0, 2.0));
    }

    #[test]
    fn slow_tokens_are_not_good() {
        let slow = Record { output_tokens: 5, ..record(1, 0, Some(1.0)) };
        assert_eq!(outcome(vec![slow]).summary("cost", &OBJECTIVE, &[]).goodput, 0.0);
    }

    #[test]
    fn the_minute_after_a_fault_is_seen_alone() {
        let records = vec![record(10, 0, Some(1.0)), record(110, 0, Some(9.0)), record(170, 0, Some(4.0))];
        let summary =
            outcome(records).summary("cost", &OBJECTIVE, &[Duration::from_secs(100), Duration::from_secs(165)]);
        assert_eq!((summary.ttft_p90_before, summary.ttft_p90_after), (Some(1.0), vec![Some(9.0), Some(4.0)]));
        assert_eq!((summary.alone_p90_before, summary.alone_p90_after), (Some(0.5), vec![Some(4.5), Some(2.0)]));
    }

    #[test]
    fn nothing_has_figures_too() {
        let summary = outcome(Vec::new()).summary("cost", &OBJECTIVE, &[]);
        assert_eq!((summary.ttft_p90, summary.hit_ratio, summary.skew_tokens), (0.0, 0.0, 1.0));
        assert_eq!(Summary::mean(&[summary.clone(), summary.clone()]), summary);
    }
}
