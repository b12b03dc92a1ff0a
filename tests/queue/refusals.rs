//! Who is refused, when, and with what words.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::Bench;
use crate::common::client::Response;

#[track_caller]
fn assert_refused(response: &Response, code: &str) -> u32 {
    assert_eq!(response.status, 429, "{}", response.text());
    assert_eq!(response.error_code(), code);
    let error: Value = response.json();
    assert_eq!(error["error"]["type"], "rate_limit_error");
    let seconds = response.header("retry-after").expect("a refusal says when to come back").parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds} s");
    seconds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once() {
    let bench = Bench::start(1, "max_in_flight: 1, queue: {max_requests: 2}").await;
    let mut asked = bench.fill(1).await;
    for waiting in 0..2 {
        asked.push(bench.ask_after(waiting, "waiting", "").await);
    }
    bench.until_waiting(2).await;
    let refused = bench.ask("too many", "").answered().await;
    assert_refused(&refused, "queue_full");
    bench.answer(3);
    for request in asked {
        request.served().await;
    }
    assert_eq!(bench.proxy.metric("queue_refusals_total", r#"reason="full""#).await, 1.0);
    assert_eq!(bench.proxy.metric("requests_total", r#"reason="shed""#).await, 1.0);
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_queue_nothing_waits() {
    let bench = Bench::start(1, "max_in_flight: 1, queue: {max_requests: 0}").await;
    let asked = bench.fill(1).await;
    assert_refused(&bench.ask("too many", "").answered().await, "queue_full");
    bench.answer(1);
    for request in asked {
        request.served().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_has_waited_for_as_long_as_it_may_is_refused() {
    let bench = Bench::start(1, "max_in_flight: 1, queue: {max_wait: 3s}").await;
    let asked = bench.fill(1).await;
    let started = Instant::now();
    let seconds = assert_refused(&bench.ask("late", "").answered().await, "queue_timed_out");
    assert!(started.elapsed() >= Duration::from_millis(1500), "it has waited");
    assert!(seconds >= 2, "nothing has moved in that time, and in a second nothing will have: {seconds}");
    assert_eq!(bench.proxy.metric("queued_requests", "").await, 0.0);
    bench.answer(1);
    for request in asked {
        request.served().await;
    }
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_request_takes_the_place_of_a_less_urgent_one() {
    let keys = "max_in_flight: 1, queue: {max_requests: 1, priority_header: x-priority}";
    let bench = Bench::start(1, keys).await;
    let mut asked = bench.fill(1).await;
    let low = bench.ask("low", "x-priority: low\r\n");
    asked.push(bench.ask_after(1, "high", "x-priority: high\r\n").await);
    assert_refused(&low.answered().await, "queue_displaced");
    bench.answer(2);
    for request in asked {
        request.served().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_make_it_is_refused_at_once() {
    let bench = Bench::start(1, "max_in_flight: 1, queue: {max_wait: 10s}").await;
    let mut asked = bench.fill(1).await;
    for number in 0..100 {
        asked.push(bench.ask(&format!("waiting {number}"), ""));
    }
    bench.until_waiting(100).await;
    // One request every 150 ms, for long enough to see it.
    for _ in 0..8 {
        bench.answer(1);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let refused = bench.ask("too late", "").answered().await;
    let seconds = assert_refused(&refused, "queue_too_long");
    assert!(seconds > 10, "92 requests take more than 10 s at 7 a second: {seconds}");
    bench.answer(1_000);
    for request in asked {
        request.answered().await;
    }
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_whose_backend_is_gone_is_not_called_busy() {
    let mut bench = Bench::start(1, "max_in_flight: 1").await;
    bench.fleet.refuse(0).await;
    let response = bench.ask("anyone", "").answered().await;
    assert_eq!(response.status, 502, "{}", response.text());
}
