//! A second attempt beside the first: made when the first token takes long, cancelled or won, and paid from a budget.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::CHAT;
use crate::common::backend::{Exchange, Fleet};
use crate::common::client::{Client, Response};
use crate::common::proxy::{Proxy, Setup};
use crate::common::{chat, eventually, streamed_chat};

const KEYS: &str = "policy: round_robin, ejection: {failures: 1000}";

/// What the first attempt of each request does; others answer at once.
#[derive(Debug, Clone, Copy)]
enum First {
    /// It sends the header, and no token while anybody listens.
    Silent,
    /// It has its token when it is let.
    Late,
    /// It breaks off when it is let, and the second one has its token when that is let.
    Breaks,
}

struct Stage {
    fleet: Fleet,
    proxy: Proxy,
    /// Lets a first attempt go on.
    go_on: Arc<Semaphore>,
    /// First attempts whose connection was closed, from either side.
    closed: Arc<Semaphore>,
}

// === impl Stage ===

impl Stage {
    async fn start(first: First, hedging: &str) -> Self {
        Self::start_of(2, first, hedging).await
    }

    async fn start_of(backends: usize, first: First, hedging: &str) -> Self {
        Self::start_with(Setup::new(), backends, first, hedging).await
    }

    async fn start_with(setup: Setup, backends: usize, first: First, hedging: &str) -> Self {
        let (go_on, closed) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let shared = (Arc::clone(&go_on), Arc::clone(&closed));
        let fleet = Fleet::start(backends, move |exchange: &mut Exchange| {
            let (go_on, closed) = shared.clone();
            Box::pin(async move {
                exchange.begin_stream().await?;
                if exchange.attempt == 1 {
                    match first {
                        First::Silent => {
                            exchange.until_closed().await;
                            closed.add_permits(1);
                            return Ok(());
                        }
                        First::Late => go_on.acquire().await.unwrap().forget(),
                        First::Breaks => {
                            go_on.acquire().await.unwrap().forget();
                            closed.add_permits(1);
                            return exchange.reset();
                        }
                    }
                } else if matches!(first, First::Breaks) {
                    go_on.acquire().await.unwrap().forget();
                }
                exchange.event(&format!("{{\"choices\":[{{\"text\":\"{}\"}}]}}", exchange.backend)).await?;
                exchange.end_stream().await
            })
        })
        .await;
        let setup = setup.pool("p", &fleet, &format!("{KEYS}, hedging: {{{hedging}}}"));
        let proxy = setup.section("retry", "max_attempts: 1").start().await;
        Self { fleet, proxy, go_on, closed }
    }

    async fn ask(&self, body: &[u8]) -> Response {
        let mut client = Client::connect(self.proxy.http).await;
        client.send("POST", CHAT, "", body).await;
        client.response("POST").await.unwrap()
    }

    async fn hedges(&self, outcome: &str) -> f64 {
        self.proxy.metric("hedges_total", &format!("outcome=\"{outcome}\"")).await
    }

    async fn until_received(&self, requests: usize) {
        let what = format!("backends have {requests} requests");
        eventually(&what, async || self.fleet.received().len() == requests).await;
    }
}

#[track_caller]
fn assert_whole(response: &Response, stage: &Stage, backend: usize) {
    assert_eq!(response.status, 200, "{}", response.text());
    let expected = format!("data: {{\"choices\":[{{\"text\":\"{backend}\"}}]}}\n\ndata: [DONE]\n\n");
    assert_eq!(response.text(), expected);
    assert_eq!(response.header("x-warmgate-backend"), Some(&*stage.fleet.name(backend)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_attempt_wins_and_the_first_is_cancelled_at_once() {
    let stage = Stage::start(First::Silent, "after: 50ms, budget: 1.0").await;
    let response = stage.ask(&streamed_chat("hedged")).await;
    let received = stage.fleet.received();
    assert_eq!(received.len(), 2, "two attempts");
    assert_ne!(received[0].backend, received[1].backend, "at two backends");
    assert_eq!(received[0].head.header("content-length"), received[1].head.header("content-length"));
    assert_whole(&response, &stage, received[1].backend);
    stage.closed.acquire().await.unwrap().forget();
    assert_eq!(stage.hedges("second_won").await, 1.0);
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_attempt_wins_where_no_second_can_be_made() {
    for (backends, budget, outcome) in [(2, "0.0", "denied"), (1, "1.0", "no_room")] {
        let stage = Stage::start_of(backends, First::Late, &format!("after: 10ms, budget: {budget}")).await;
        let asking = async { stage.ask(&streamed_chat("not hedged")).await };
        let letting = async {
            eventually("it was due", async || stage.hedges(outcome).await == 1.0).await;
            stage.go_on.add_permits(1);
        };
        let (response, ()) = tokio::join!(asking, letting);
        assert_whole(&response, &stage, stage.fleet.received()[0].backend);
        assert_eq!(stage.fleet.received().len(), 1, "{outcome}");
        stage.proxy.let_go().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quick_answer_has_no_second_attempt() {
    let stage = Stage::start(First::Late, "after: 10m, budget: 1.0").await;
    stage.go_on.add_permits(1);
    let response = stage.ask(&streamed_chat("quick")).await;
    assert_whole(&response, &stage, stage.fleet.received()[0].backend);
    assert_eq!(stage.proxy.metric("hedges_total", "").await, 0.0);
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_breaks_leaves_the_field_to_the_other() {
    let stage = Stage::start(First::Breaks, "after: 10ms, budget: 1.0").await;
    let asking = async { stage.ask(&streamed_chat("broken")).await };
    let letting = async {
        // Semaphores are fair: the first attempt is let go first.
        stage.until_received(1).await;
        stage.until_received(2).await;
        stage.go_on.add_permits(1);
        stage.closed.acquire().await.unwrap().forget();
        stage.go_on.add_permits(1);
    };
    let (response, ()) = tokio::join!(asking, letting);
    assert_whole(&response, &stage, stage.fleet.received()[1].backend);
    assert_eq!(stage.hedges("second_won").await, 1.0);
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_both() {
    let stage = Stage::start(First::Silent, "after: 10m, budget: 1.0").await;
    let mut client = Client::connect(stage.proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("leaving")).await;
    stage.until_received(1).await;
    drop(client);
    stage.closed.acquire().await.unwrap().forget();
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_streamed_is_not_hedged() {
    let stage = Stage::start(First::Late, "after: 10ms, budget: 1.0").await;
    let asking = async { stage.ask(&chat("whole")).await };
    let letting = async {
        stage.until_received(1).await;
        stage.go_on.add_permits(1);
    };
    let (response, ()) = tokio::join!(asking, letting);
    assert_eq!((response.status, stage.fleet.received().len()), (200, 1));
    assert_eq!(stage.proxy.metric("hedges_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_reaches_both_attempts_whole() {
    let stage = Stage::start(First::Silent, "after: 50ms, budget: 1.0").await;
    let response = stage.ask(&streamed_chat(&"many words ".repeat(60_000))).await;
    assert_whole(&response, &stage, stage.fleet.received()[1].backend);
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_no_room_for_twice_is_not_hedged() {
    let (small, large) = (streamed_chat(&"many words ".repeat(60_000)), streamed_chat(&"many words ".repeat(100_000)));
    for (room, body) in [("1MiB", small), ("64MiB", large)] {
        let setup = Setup::new().section("limits", &format!("max_body_bytes: 1MiB, max_buffered_bytes: {room}"));
        let setup = if room == "1MiB" { setup } else { Setup::new() };
        let stage = Stage::start_with(setup, 2, First::Late, "after: 10ms, budget: 1.0").await;
        let asking = async { stage.ask(&body).await };
        let letting = async {
            stage.until_received(1).await;
            stage.go_on.add_permits(1);
        };
        let (response, ()) = tokio::join!(asking, letting);
        assert_whole(&response, &stage, stage.fleet.received()[0].backend);
        assert_eq!(stage.proxy.metric("hedges_total", "").await, 0.0, "{room}");
        stage.proxy.let_go().await;
    }
}
