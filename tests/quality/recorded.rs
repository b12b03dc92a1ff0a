//! An hour of a real service, which is no part of the project: it lies in `../shared` beside the checkout, or where the
//! environment variable `WARMGATE_SHARED` points. Where neither exists the test says so and passes.

use std::path::PathBuf;

use crate::simulated::simulate;

/// Where the trace is; says so where it is not.
fn trace() -> Option<PathBuf> {
    let shared = std::env::var_os("WARMGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")), PathBuf::from);
    let trace = shared.join("traces/mooncake-conversation.jsonl");
    if !trace.exists() {
        println!("skipped: no trace at {}", trace.display());
        return None;
    }
    Some(trace)
}

#[test]
fn on_the_conversation_trace_first_tokens_come_sooner_than_with_any_rival_and_nearly_as_with_one_shared_cache() {
    let Some(trace) = trace() else { return };
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

#[test]
fn on_the_conversation_trace_a_fault_hardly_shows() {
    let Some(trace) = trace() else { return };
    // The speed of utilization 0.7; a backend that becomes as fast as it was, for the same minute without a fault.
    let run = |fault: &str| {
        let options = format!("--speed 1.118 --seeds 3 --policies cost --fault {fault} --trace");
        simulate(&options, &[trace.as_os_str()]).into_only()
    };
    let without = run("slow@1500:2:1").ttft_p90_after[0];
    for fault in ["restart@1500:2", "add@1500", "slow@1500:2:3"] {
        let with = run(fault);
        let (before, after) = (with.ttft_p90_before.unwrap(), with.ttft_p90_after[0]);
        println!("{fault}: TTFT p90 {after:.2} s, {before:.2} s before, {without:.2} s in the same minute without it");
        assert!(after <= 1.6 * before && after <= 1.6 * without, "{fault}: {after} s, {before} s, {without} s");
    }
}
