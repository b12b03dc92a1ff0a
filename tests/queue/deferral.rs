//! Long prefills wait while backends have much to compute, and nobody else does.

use serde_json::Value;

use crate::Bench;
use crate::common::{chat, client, eventually};

/// No backend is full for what is pending: all that waits is deferred.
const KEYS: &str = "max_pending_prefill: none";

/// So many in a minute make a prefill of a second or two a long one.
const SHORT_ONES: usize = 120;

// === impl Bench ===

impl Bench {
    /// One backend that many short requests came to, and that has a very long prefill to do.
    async fn start_busy(keys: &str) -> (Self, crate::Asked) {
        let bench = Self::start(1, &format!("{KEYS}, {keys}")).await;
        bench.answer(SHORT_ONES);
        for number in 0..SHORT_ONES {
            bench.ask(&format!("short {number}"), "").served().await;
        }
        let busy = bench.ask(&"much ".repeat(100_000), "");
        bench.until_received(SHORT_ONES + 1).await;
        (bench, busy)
    }

    fn ask_long(&self) -> crate::Asked {
        self.ask(&"long ".repeat(20_000), "")
    }

    /// Has these answered, and everything given back.
    async fn end(self, requests: impl IntoIterator<Item = crate::Asked>) {
        let requests: Vec<_> = requests.into_iter().collect();
        self.answer(requests.len());
        for request in requests {
            request.served().await;
        }
        self.proxy.let_go().await;
    }

    async fn until_deferred(&self, requests: usize) {
        let what = format!("{requests} requests are deferred");
        eventually(&what, async || self.proxy.metric("deferred_requests", "").await == requests as f64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prefill_waits_until_the_backend_has_less_to_do_and_a_short_one_does_not() {
    let (bench, busy) = Bench::start_busy("policy: cost").await;
    let long = bench.ask_long();
    bench.until_deferred(1).await;
    let explained = async |prompt: &str| {
        let explained = client::post(bench.proxy.admin, "/explain", "", &chat(prompt)).await;
        explained.json::<Value>()["is_deferred"].as_bool()
    };
    assert_eq!((explained(&"long ".repeat(20_000)).await, explained("short").await), (Some(true), Some(false)));
    let short = bench.ask("short", "");
    bench.until_received(SHORT_ONES + 2).await;
    assert_eq!(bench.proxy.metric("deferred_requests", "").await, 1.0);
    bench.answer(3);
    for request in [busy, short, long] {
        request.served().await;
    }
    assert_eq!(bench.proxy.metric("deferral_seconds_count", "").await, 1.0);
    assert_eq!(bench.proxy.metric("queue_wait_seconds_count", r#"priority="normal""#).await, 0.0);
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_when_it_has_waited_for_as_long_as_it_may() {
    let (bench, busy) = Bench::start_busy("queue: {max_defer: 300ms}").await;
    let long = bench.ask_long();
    bench.until_received(SHORT_ONES + 2).await;
    assert_eq!(
        bench.proxy.metric("deferral_seconds_count", "").await,
        1.0,
        "it was deferred, and the backend is busy still"
    );
    bench.end([busy, long]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_not_waited_for_and_none_waits_where_none_is_to() {
    let (bench, busy) = Bench::start_busy("policy: cost").await;
    let long = bench.ask_long();
    bench.until_deferred(1).await;
    long.leave();
    bench.until_deferred(0).await;
    bench.end([busy]).await;

    for keys in ["queue: {max_defer: none}", "queue: {max_requests: 0}", "policy: least_request"] {
        let (bench, busy) = Bench::start_busy(keys).await;
        let long = bench.ask_long();
        bench.until_received(SHORT_ONES + 2).await;
        bench.end([busy, long]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_for_room_is_not_deferred() {
    let (bench, busy) = Bench::start_busy("max_in_flight: 2").await;
    let second = bench.ask("short", "");
    bench.until_received(SHORT_ONES + 2).await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(bench.ask_long());
        bench.until_waiting(number + 1).await;
    }
    // There is room for one then, and the backend is as busy as before.
    second.leave();
    bench.until_received(SHORT_ONES + 3).await;
    bench.until_waiting(2).await;
    // One more than there are: the engine may not know yet that nobody waits for it.
    bench.answer(5);
    busy.served().await;
    for request in waiting {
        request.served().await;
    }
    let waits = bench.proxy.metric("queue_wait_seconds_count", r#"priority="normal""#).await;
    assert_eq!((waits, bench.proxy.metric("deferral_seconds_count", "").await), (3.0, 0.0), "each has waited once");
    bench.proxy.let_go().await;
}
