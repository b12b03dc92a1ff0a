//! The small workload whose figures are published for three policies: the simulator has the same, and `cost` does better.

use std::sync::LazyLock;

use crate::simulated::{Compared, Figures, simulate};

/// What is published of a policy.
struct Published {
    policy: &'static str,
    hit_ratio: f64,
    prefill_tokens: f64,
    skew_requests: f64,
    ttft_p50: f64,
}

const PUBLISHED: [Published; 3] = [
    Published {
        policy: "round_robin",
        hit_ratio: 0.466,
        prefill_tokens: 2_809_330.0,
        skew_requests: 1.0,
        ttft_p50: 0.061,
    },
    Published {
        policy: "prefix_affinity",
        hit_ratio: 0.860,
        prefill_tokens: 893_365.0,
        skew_requests: 1.8,
        ttft_p50: 0.030,
    },
    Published {
        policy: "locality_first",
        hit_ratio: 0.848,
        prefill_tokens: 957_709.0,
        skew_requests: 1.2,
        ttft_p50: 0.030,
    },
];

static COMPARED: LazyLock<Compared> = LazyLock::new(|| {
    simulate("--workload shared-prefix --policies cost,locality_first,prefix_affinity,round_robin", &[])
});

#[test]
fn the_simulator_has_the_published_figures_of_the_small_workload() {
    let compared = &*COMPARED;
    for published in PUBLISHED {
        let simulated = compared.of(published.policy);
        assert!(published.agrees_with(simulated), "{} is published otherwise:\n{compared}", published.policy);
    }
}

#[test]
fn on_the_small_workload_cost_has_more_hits_at_less_skew_than_the_published_policies() {
    let compared = &*COMPARED;
    let cost = compared.of("cost");
    assert!(cost.hit_ratio >= 0.90 && cost.skew_requests <= 1.2, "{compared}");
    for Published { policy, .. } in PUBLISHED {
        let other = compared.of(policy);
        let is_better = cost.hit_ratio > other.hit_ratio && cost.prefill_tokens < other.prefill_tokens;
        assert!(is_better, "{policy} finds more:\n{compared}");
    }
}

// === impl Published ===

impl Published {
    fn agrees_with(&self, simulated: &Figures) -> bool {
        (simulated.hit_ratio - self.hit_ratio).abs() <= 0.02
            && (simulated.prefill_tokens / self.prefill_tokens - 1.0).abs() <= 0.06
            && (simulated.skew_requests - self.skew_requests).abs() <= 0.2
            && (simulated.ttft_p50 / self.ttft_p50 - 1.0).abs() <= 0.15
    }
}
