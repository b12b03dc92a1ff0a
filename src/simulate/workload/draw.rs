//! Random draws that the built-in workloads are made of. The generator is an argument, so equal seeds draw equal numbers.

use std::fmt;
use std::time::Duration;

/// Lengths and times as they occur: many small, a few large. Log-normal, cut to a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    /// Half of all draws are below it. Its unit is that of what is drawn.
    pub median: f64,
    /// Standard deviation of the natural logarithm: two thirds of the draws are within a factor of `exp(sigma)`.
    pub sigma: f64,
    /// No draw is below it.
    pub min: f64,
    /// No draw is above it.
    pub max: f64,
}

/// Popularity by rank: rank `k`, counted from 1, weighs `1 / k^exponent` (G. K. Zipf, 1949).
#[derive(Debug)]
pub(super) struct Zipf {
    /// Sums of the weights up to each rank; never empty.
    sums: Vec<f64>,
}

/// The times of a Poisson process: arrivals that know nothing of one another.
#[derive(Debug)]
pub(super) struct Arrivals {
    last: Duration,
}

// === impl LogNormal ===

impl LogNormal {
    /// Shorthand for the four fields, in their order.
    pub const fn new(median: f64, sigma: f64, min: f64, max: f64) -> Self {
        Self { median, sigma, min, max }
    }

    /// A number of tokens, at least 1.
    pub(super) fn tokens(&self, rng: &mut fastrand::Rng) -> u32 {
        (self.draw(rng).round() as u32).max(1)
    }

    /// A time, the fields being seconds.
    pub(super) fn time(&self, rng: &mut fastrand::Rng) -> Duration {
        seconds(self.draw(rng))
    }

    /// By the transform of G. E. P. Box and M. E. Muller (1958).
    fn draw(&self, rng: &mut fastrand::Rng) -> f64 {
        let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * rng.f64()).cos();
        (self.median * (self.sigma * normal).exp()).min(self.max).max(self.min)
    }
}

impl fmt::Display for LogNormal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "about {} ({} to {})", self.median, self.min, self.max)
    }
}

// === impl Zipf ===

impl Zipf {
    /// Popularities of `ranks` things; of one if it is 0.
    pub(super) fn new(ranks: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=ranks.max(1)).map(|rank| f64::from(rank).powf(-exponent));
        Self {
            sums: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    /// A rank, counted from 0.
    pub(super) fn draw(&self, rng: &mut fastrand::Rng) -> usize {
        let last = self.sums.len() - 1;
        let at = rng.f64() * self.sums[last];
        self.sums.partition_point(|&sum| sum <= at).min(last)
    }
}

// === impl Arrivals ===

impl Arrivals {
    /// Nothing has arrived at time 0.
    pub(super) fn new() -> Self {
        Self { last: Duration::ZERO }
    }

    /// The next arrival, at `per_second` arrivals a second from the last one on.
    pub(super) fn next(&mut self, per_second: f64, rng: &mut fastrand::Rng) -> Duration {
        let gap = -(1.0 - rng.f64()).ln() / per_second;
        self.last = self.last.saturating_add(seconds(gap));
        self.last
    }
}

/// Saturates, where the conversion of the standard library panics: a rate of 0 means "never".
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_median_their_spread_and_their_range() {
        let lengths = LogNormal::new(200.0, 0.5, 50.0, 800.0);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut drawn: Vec<_> = (0..20_000).map(|_| lengths.tokens(&mut rng)).collect();
        drawn.sort_unstable();
        let share = |at: f64| f64::from(drawn[(at * 20_000.0) as usize]);
        assert!((share(0.5) / 200.0 - 1.0).abs() < 0.02, "median {}", share(0.5));
        assert!((share(0.841) / 329.7 - 1.0).abs() < 0.03, "a standard deviation above it {}", share(0.841));
        assert_eq!((drawn[0], drawn[19_999]), (50, 800), "both ends of the range are reached and not passed");
    }

    #[test]
    fn a_rank_is_drawn_in_proportion_to_its_weight() {
        let zipf = Zipf::new(4, 1.0);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut counts = [0; 4];
        (0..25_000).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
        for (count, expected) in counts.into_iter().zip([12_000, 6_000, 4_000, 3_000]) {
            assert!(i32::abs_diff(count, expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn arrivals_come_at_their_rate_with_exponential_gaps() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut arrivals = Arrivals::new();
        let times: Vec<_> = (0..20_000).map(|_| arrivals.next(4.0, &mut rng).as_secs_f64()).collect();
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((times[19_999] / 5_000.0 - 1.0).abs() < 0.03, "20,000 at 4 a second: {} s", times[19_999]);
        let longer = gaps.iter().filter(|&&gap| gap > 0.25).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.01, "longer than the mean: {longer}");
    }

    #[test]
    fn a_rate_of_nothing_never_arrives() {
        let mut arrivals = Arrivals::new();
        assert_eq!(arrivals.next(0.0, &mut fastrand::Rng::with_seed(1)), Duration::MAX);
    }
}
