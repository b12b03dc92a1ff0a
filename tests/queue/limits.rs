//! Time limits of requests that wait or are hedged.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;

use crate::common::backend::{Exchange, Fleet};
use crate::common::client::{self, Client, Response};
use crate::common::proxy::{Proxy, Setup};
use crate::common::{streamed_chat, within};
use crate::{Bench, CHAT};

const TOKEN: &str = r#"{"choices":[{"text":"a"}]}"#;

/// Backends that give so many tokens and are silent then, and how many of their connections were closed.
async fn silent(backends: usize, tokens: usize, keys: &str) -> (Fleet, Proxy, Arc<Semaphore>) {
    let closed = Arc::new(Semaphore::new(0));
    let counted = Arc::clone(&closed);
    let fleet = Fleet::start(backends, move |exchange: &mut Exchange| {
        let closed = Arc::clone(&counted);
        Box::pin(async move {
            exchange.begin_stream().await?;
            for _ in 0..tokens {
                exchange.event(TOKEN).await?;
            }
            exchange.until_closed().await;
            closed.add_permits(1);
            Ok(())
        })
    })
    .await;
    let keys = format!("policy: round_robin, ejection: {{failures: 1000}}, {keys}");
    let proxy = Setup::new().pool("p", &fleet, &keys).section("retry", "max_attempts: 1").start().await;
    (fleet, proxy, closed)
}

fn last_code(response: &Response) -> String {
    let text = response.text();
    let last = text.split_terminator("\n\n").last().unwrap();
    let value: Value = serde_json::from_str(last.trim_start().strip_prefix("data: ").unwrap()).unwrap();
    value["error"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn hedged_attempts_without_a_token_end_together_when_their_time_is_up() {
    for (backends, after) in [(1, "10m"), (2, "50ms")] {
        let keys = format!("hedging: {{after: {after}, budget: 1.0}}, timeouts: {{first_token: 500ms}}");
        let (fleet, proxy, closed) = silent(backends, 0, &keys).await;
        let response = client::post(proxy.http, CHAT, "", &streamed_chat("silent")).await;
        assert_eq!((response.status, response.error_code().as_str()), (504, "first_token_timeout"));
        assert_eq!(fleet.received().len(), backends, "an attempt at each");
        within("their connections are closed", closed.acquire_many(backends as u32)).await.unwrap().forget();
        assert_eq!(proxy.metric("time_limits_total", "limit=\"first_token\"").await, 1.0);
        proxy.let_go().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hedged_answer_that_goes_silent_ends_with_an_error_event() {
    let keys = "hedging: {after: 10m, budget: 1.0}, timeouts: {between_tokens: 300ms}";
    let (_fleet, proxy, closed) = silent(1, 2, keys).await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("silent")).await;
    assert_eq!((response.status, last_code(&response).as_str()), (200, "between_tokens_timeout"));
    assert_eq!(response.text().matches(TOKEN).count(), 2);
    within("its connection is closed", closed.acquire()).await.unwrap().forget();
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_attempt_that_has_won_is_watched_like_any_other() {
    let fleet = Fleet::start(2, |exchange: &mut Exchange| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            if exchange.attempt > 1 {
                exchange.event(TOKEN).await?;
            }
            exchange.until_closed().await;
            Ok(())
        })
    })
    .await;
    let keys = "policy: round_robin, hedging: {after: 50ms, budget: 1.0}, timeouts: {between_tokens: 300ms}";
    let proxy = Setup::new().pool("p", &fleet, keys).start().await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("silent")).await;
    assert_eq!((response.status, last_code(&response).as_str()), (200, "between_tokens_timeout"));
    assert_eq!(proxy.metric("hedges_total", "outcome=\"second_won\"").await, 1.0);
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_the_first_token_does_not_run_in_the_queue() {
    // The first sign of life comes after twice the limit.
    let keys = "max_in_flight: 1, queue: {keep_alive: 1s}, timeouts: {first_token: 500ms}";
    let bench = Bench::start(1, keys).await;
    let mut held = bench.fill(1).await;
    let mut client = Client::connect(bench.proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("waiting")).await;
    assert_eq!(client.head().await.unwrap().second_word(), "200");
    assert_eq!(client.event().await.unwrap().as_deref(), Some(": waiting\n\n"));
    bench.answer(2);
    let answer = client.event().await.unwrap().unwrap();
    assert!(answer.contains("waiting") && !answer.contains("error"), "{answer}");
    held.pop().unwrap().served().await;
    assert_eq!(bench.proxy.metric("time_limits_total", "").await, 0.0);
}
