//! An hour of a real service, which is no part of the project: it lies in `../shared` beside the checkout, or where the
//! environment variable `WARMGATE_SHARED` points. Where neither exists the test says so and passes.

use std::path::PathBuf;

use crate::simulated::simulate;

#[test]
fn on_the_conversation_trace_first_tokens_come_sooner_than_with_any_rival_and_nearly_as_with_one_shared_cache() {
    let shared = std::env::var_os("WARMGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")), PathBuf::from);
    let trace = shared.join("traces/mooncake-conversation.jsonl");
    if !trace.exists() {
        println!("skipped: no trace at {}", trace.display());
        return;
    }
    let policies = "--utilization 0.7 --seeds 3 --policies cost,locality_first,least_request,pooled --trace";
    let compared = simulate(policies, &[trace.as_os_str()]);
    let [cost, pooled] = ["cost", "pooled"].map(|policy| compared.of(policy));
    for (policy, most) in [("locality_first", 0.35), ("least_request", 0.2), ("pooled", 1.25)] {
        let ratio = cost.ttft_p90 / compared.of(policy).ttft_p90;
        println!("TTFT p90 of cost is {ratio:.3} times that of {policy}");
        assert!(ratio <= most, "{ratio:.3} times the TTFT p90 of {policy}, expected at most {most}:\n{compared}");
    }
    assert!(cost.skew_tokens <= 1.15, "the work is even:\n{compared}");
    assert!(cost.hit_ratio >= 0.85 * pooled.hit_ratio, "of what one cache would find:\n{compared}");
}
