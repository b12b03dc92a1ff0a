//! Callers with keys that wait: what they may have, and who of them goes first.

use std::fmt::Write as _;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::Bench;
use crate::common::eventually;
use crate::common::proxy::Setup;

/// A file of keys that is removed at the end.
struct Keys(PathBuf);

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A bench whose callers have these labels and further keys of the file. A caller's key is its label behind `wg-key-of-`.
async fn bench(callers: &[(&str, &str)], pool: &str) -> (Bench, Keys) {
    let mut text = "keys:\n".to_owned();
    for (label, more) in callers {
        let digest = Sha256::digest(format!("wg-key-of-{label}"));
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "  - {{label: {label}, hash: 'sha256:{digest}'{more}}}").unwrap();
    }
    let path = std::env::temp_dir().join(format!("warmgate-queue-{}-{}", std::process::id(), fastrand::u64(..)));
    std::fs::write(&path, text).unwrap();
    let setup = Setup::new().section("auth", &format!("keys_file: '{}'", path.display()));
    (Bench::start_with(setup, 1, pool).await, Keys(path))
}

fn of(label: &str) -> String {
    format!("authorization: Bearer wg-key-of-{label}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_is_one_of_its_callers_concurrent_ones() {
    let callers = [("a", ", concurrent_requests: 1"), ("b", "")];
    let (bench, _keys) = bench(&callers, "max_in_flight: 1").await;
    let held = bench.ask("held", &of("b"));
    bench.until_received(1).await;
    let waiting = bench.ask("waiting", &of("a"));
    bench.until_waiting(1).await;
    let refused = bench.ask("one too many", &of("a")).answered().await;
    let error: serde_json::Value = refused.json();
    assert_eq!((refused.status, &error["error"]["type"]), (429, &"requests".into()));
    assert!(refused.header("retry-after").is_some());
    bench.answer(2);
    held.served().await;
    waiting.served().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_no_more_urgent_than_its_class_whatever_it_says() {
    let callers = [("held", ""), ("high", ", priority: high"), ("normal", ""), ("low", ", priority: low")];
    let (bench, _keys) = bench(&callers, "max_in_flight: 1, queue: {priority_header: x-priority}").await;
    let held = bench.ask("held", &of("held"));
    bench.until_received(1).await;
    let urgent = |label: &str| format!("{}x-priority: high\r\n", of(label));
    let low = bench.ask_after(0, "low", &urgent("low")).await;
    let normal = bench.ask_after(1, "normal", &urgent("normal")).await;
    let high = bench.ask_after(2, "high", &of("high")).await;
    bench.until_waiting(3).await;
    for (priority, waiting) in [("high", 1.0), ("normal", 1.0), ("low", 1.0)] {
        let labels = format!("priority=\"{priority}\"");
        assert_eq!(bench.proxy.metric("queued_requests", &labels).await, waiting, "{priority}");
    }
    bench.answer(4);
    for asked in [held, high, normal, low] {
        asked.served().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_refused_for_its_uncached_tokens_leaves_its_room_to_the_next() {
    let callers = [("a", ", uncached_tokens_per_minute: 10"), ("b", "")];
    let (bench, _keys) = bench(&callers, "max_in_flight: 1").await;
    // Whoever has used nothing may use more at once.
    let held = bench.ask(&"many words ".repeat(1_000), &of("a"));
    bench.until_received(1).await;
    let refused = bench.ask_after(0, "other words", &of("a")).await;
    let next = bench.ask_after(1, "next", &of("b")).await;
    bench.until_waiting(2).await;
    bench.answer(2);
    held.served().await;
    assert_eq!(refused.answered().await.status, 429);
    next.served().await;
    eventually("nothing is held", async || bench.proxy.held().await == Default::default()).await;
}
