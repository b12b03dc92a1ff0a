//! What waits goes as soon as there is room, and no request is lost.

use crate::common::client::{self, Client};
use crate::common::h2c::{H2, Length};
use crate::common::proxy::Setup;
use crate::common::{chat, eventually};
use crate::{Bench, CHAT};

#[tokio::test(flavor = "multi_thread")]
async fn no_backend_has_more_than_its_limit_and_what_waits_goes_when_one_is_answered() {
    let bench = Bench::start(2, "max_in_flight: 1, policy: round_robin").await;
    let mut asked = bench.fill(2).await;
    for number in 0..6 {
        asked.push(bench.ask_after(number, &format!("late {number}"), "").await);
    }
    bench.until_waiting(6).await;
    for answered in 1..=6 {
        bench.answer(1);
        bench.until_received(2 + answered).await;
        bench.until_waiting(6 - answered).await;
        assert_eq!(bench.proxy.metric("in_flight_requests", "").await, 2.0, "one each");
    }
    bench.answer(2);
    for request in asked {
        request.served().await;
    }
    assert_eq!(bench.proxy.metric("queue_wait_seconds_count", r#"priority="normal""#).await, 6.0);
    assert_eq!(bench.proxy.metric("queue_requests_ahead_count", "").await, 6.0);
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_come_and_go_at_once_are_all_served() {
    let bench = Bench::start(3, "max_in_flight: 2").await;
    bench.answer(100);
    let asked: Vec<_> = (0..100).map(|number| bench.ask(&format!("request {number}"), "")).collect();
    for request in asked {
        request.served().await;
    }
    bench.proxy.let_go().await;
    assert_eq!(bench.proxy.metric("queued_requests", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_waits_leaves_the_queue_at_once() {
    let bench = Bench::start(1, "max_in_flight: 1").await;
    let held = bench.fill(1).await;
    let leaving = bench.ask("leaving", "");
    let staying = bench.ask_after(1, "staying", "").await;
    bench.until_waiting(2).await;
    leaving.leave();
    bench.until_waiting(1).await;
    bench.answer(2);
    for request in held.into_iter().chain([staying]) {
        request.served().await;
    }
    assert_eq!(bench.fleet.received().len(), 2, "no backend has seen the one that left");
    assert_eq!(bench.proxy.metric("requests_total", r#"reason="client_gone""#).await, 1.0);
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_stream_that_is_reset_leaves_the_queue_at_once() {
    let bench = Bench::start(1, "max_in_flight: 1").await;
    let held = bench.fill(1).await;
    let (h2, body) = (H2::connect(bench.proxy.h2c).await, chat("leaving"));
    let mut stream = h2.post(CHAT, &[], body.len(), Length::Stated).await;
    stream.send(&body, true).await.unwrap();
    bench.until_waiting(1).await;
    stream.reset();
    bench.until_waiting(0).await;
    bench.answer(1);
    for request in held {
        request.served().await;
    }
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_sent_behind_one_that_waits_is_served_after_it() {
    let bench = Bench::start(1, "max_in_flight: 1").await;
    let held = bench.fill(1).await;
    let mut client = Client::connect(bench.proxy.http).await;
    client.send("POST", CHAT, "", &chat("first")).await;
    bench.until_waiting(1).await;
    client.send("POST", CHAT, "", &chat("second")).await;
    bench.answer(3);
    for text in ["first", "second"] {
        let response = client.response("POST").await.unwrap();
        assert_eq!(response.body, chat(text));
    }
    for request in held {
        request.served().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_backend_that_is_back_wakes_what_waits() {
    let bench = Bench::start(2, "max_in_flight: 1").await;
    let mut asked = bench.fill(2).await;
    let waiting = bench.ask("waiting", "");
    bench.until_waiting(1).await;
    // One backend is empty but draining; that is no room.
    let path = |what: &str| format!("/backends/{}/{what}", bench.fleet.name(0));
    let mut admin = Client::connect(bench.proxy.admin).await;
    admin.send("POST", &path("drain"), "", b"").await;
    assert_eq!(admin.response("POST").await.unwrap().status, 200);
    bench.answer(2);
    for request in asked.drain(..) {
        request.served().await;
    }
    bench.answer(1);
    waiting.served().await;

    let mut again = bench.fill(1).await;
    let waiting = bench.ask("waiting again", "");
    bench.until_waiting(1).await;
    let mut admin = Client::connect(bench.proxy.admin).await;
    admin.send("POST", &path("undrain"), "", b"").await;
    bench.until_waiting(0).await;
    bench.answer(2);
    again.push(waiting);
    for request in again {
        request.served().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_takes_long_is_waited_for_elsewhere() {
    // 40,000 tokens are more than 5 s at the rate that is assumed at first.
    let bench = Bench::start(1, "max_pending_prefill: 1s, max_in_flight: none").await;
    let long = bench.ask(&"long ".repeat(32_000), "");
    bench.until_received(1).await;
    let short = bench.ask("short", "");
    bench.until_waiting(1).await;
    bench.answer(2);
    long.served().await;
    short.served().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_what_waits_and_the_log_says_how_long_it_did() {
    let folder = std::env::temp_dir().join(format!("warmgate-queue-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("access.log");
    let bench = Bench::start_with(Setup::new().access_log(&log), 1, "max_in_flight: 1").await;
    let held = bench.fill(1).await;
    let waiting = bench.ask("waiting", "");
    bench.until_waiting(1).await;
    let report: serde_json::Value = client::get(bench.proxy.admin, "/backends").await.json();
    assert_eq!(report["pools"][0]["queue"]["normal"], 1, "{report}");
    assert_eq!(report["pools"][0]["backends"][0]["is_full"], true, "{report}");
    bench.answer(2);
    waiting.served().await;
    for request in held {
        request.served().await;
    }
    eventually("the log has both lines", async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().count() == 2
    })
    .await;
    let text = std::fs::read_to_string(&log).unwrap();
    let queued = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["queued_millis"].as_f64();
    assert_eq!(text.lines().filter_map(queued).filter(|millis| *millis > 0.0).count(), 1, "{text}");
    let _ = std::fs::remove_dir_all(&folder);
}
