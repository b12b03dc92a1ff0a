//! What the demo prints.

use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::fleet::MODEL;
use super::load::Results;

/// How far one policy is.
pub(super) fn progress(policy: &str, done: u32, requests: u32, results: &Results) -> String {
    format!(
        "  {policy:<12} {done:>4}/{requests} requests, {:>3.0} % of prompt tokens cached, TTFT p50 {:>4.0} ms",
        100.0 * results.cached_share(),
        1e3 * results.ttft(0.5),
    )
}

/// Both policies side by side.
pub(super) fn comparison(cost: &Results, round_robin: &Results) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: &dyn Fn(&Results) -> String, note: &str| {
        let _ = writeln!(out, "{name:<24} {:>12} {:>12}   {note}", value(cost), value(round_robin));
    };
    let times = |share: f64| format!("{:.1}x less", round_robin.ttft(share) / cost.ttft(share).max(1e-9));
    let more = format!("{:.1}x more", cost.cached_share() / round_robin.cached_share().max(1e-9));
    row("", &|results| if std::ptr::eq(results, cost) { "cost" } else { "round_robin" }.into(), "");
    row("cached prompt tokens", &|results| format!("{:.0} %", 100.0 * results.cached_share()), &more);
    row("TTFT p50", &|results| millis(results.ttft(0.5)), &times(0.5));
    row("TTFT p90", &|results| millis(results.ttft(0.9)), &times(0.9));
    row("requests a backend", &spread, "fewest to most");
    row("requests", &|results| results.done().to_string(), "");
    row("failed", &|results| results.failed.to_string(), "");
    out
}

/// Both policies for programs: an array, one object a policy.
pub(super) fn json(cost: &Results, round_robin: &Results) -> Value {
    let object = |policy: &str, results: &Results| {
        json!({
            "policy": policy,
            "requests": results.done(),
            "failed": results.failed,
            "prompt_tokens": results.prompt_tokens,
            "cached_tokens": results.cached_tokens,
            "cached_share": results.cached_share(),
            "ttft_p50_seconds": results.ttft(0.5),
            "ttft_p90_seconds": results.ttft(0.9),
            "requests_by_backend": results.by_backend,
        })
    };
    json!([object("cost", cost), object("round_robin", round_robin)])
}

/// How to go on by hand.
pub(super) fn invitation(proxy: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "Still serving. Try it; the headers say what was decided, and the second time the prompt is warm:\n\n  \
         curl -i http://{proxy}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\": \"{MODEL}\", \"messages\": [{{\"role\": \"user\", \"content\": \"'\"$(seq -s ' ' 500)\"'\"}}]}}'\n  \
         curl http://{admin}/backends\n  \
         curl http://{admin}/metrics\n\nCtrl-C ends it."
    )
}

fn millis(seconds: f64) -> String {
    format!("{:.0} ms", 1e3 * seconds)
}

fn spread(results: &Results) -> String {
    let counts = results.by_backend.values();
    format!("{} to {}", counts.clone().min().unwrap_or(&0), counts.max().unwrap_or(&0))
}
