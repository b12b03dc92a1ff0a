//! The demo keeps its promise: the same conversations, and what locality is worth. Ratios within one run.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::process::Command;

use serde_json::Value;

#[test]
fn cost_has_twice_the_cached_share_and_half_the_ttft_of_round_robin() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_warmgate")).args(["demo", "--json", "--backends", "8"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [cost, round_robin] = &results.as_array().unwrap()[..] else { panic!("two policies: {results}") };
    let (cost, round_robin) = (Figures::of(cost, "cost"), Figures::of(round_robin, "round_robin"));
    assert!(cost.cached_share >= 2.0 * round_robin.cached_share, "{cost:?} against {round_robin:?}");
    assert!(cost.ttft_p90_seconds <= 0.5 * round_robin.ttft_p90_seconds, "{cost:?} against {round_robin:?}");
    assert_eq!(cost.backends, 8, "the load is spread over every backend");
}

#[derive(Debug)]
struct Figures {
    cached_share: f64,
    ttft_p90_seconds: f64,
    backends: usize,
}

// === impl Figures ===

impl Figures {
    fn of(results: &Value, policy: &str) -> Self {
        assert_eq!(results["policy"], policy);
        assert_eq!(results["failed"], 0, "every request is answered: {results}");
        assert_eq!(results["requests"], 480, "80 conversations of 6 turns: {results}");
        Self {
            cached_share: results["cached_share"].as_f64().unwrap(),
            ttft_p90_seconds: results["ttft_p90_seconds"].as_f64().unwrap(),
            backends: results["requests_by_backend"].as_object().unwrap().len(),
        }
    }
}
