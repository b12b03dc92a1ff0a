//! Histograms with vLLM's buckets.

/// Counts of observations up to each bound.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// One more than `bounds`: the last is without bound. Not cumulative.
    counts: Vec<u64>,
    sum: f64,
}

// === impl Histogram ===

impl Histogram {
    /// `vllm:time_to_first_token_seconds`
    pub(super) fn time_to_first_token() -> Self {
        Self::new(&[
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
            80.0, 160.0, 640.0, 2560.0,
        ])
    }

    /// `vllm:e2e_request_latency_seconds`
    pub(super) fn request_time() -> Self {
        Self::new(&[
            0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0,
        ])
    }

    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts one value.
    pub(super) fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|&bound| bound < value);
        self.counts[place] += 1;
        self.sum += value;
    }

    /// Upper bounds, the last infinite, with the number of values up to each.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        }))
    }

    /// How many values were counted.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_below_it() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(1.0, 2), (2.0, 3), (f64::INFINITY, 4)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 12.0));
    }
}
