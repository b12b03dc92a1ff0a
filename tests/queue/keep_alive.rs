//! A streamed request that waits is given signs of life, if that is configured, and what comes of it is part of its stream.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;

use crate::common::backend::{Exchange, Fleet};
use crate::common::client::Client;
use crate::common::h2c::{H2, Length};
use crate::common::proxy::{Proxy, Setup};
use crate::common::{chat, eventually, streamed_chat, within};
use crate::{Asked, Bench, CHAT};

const KEYS: &str = "max_in_flight: 1, ejection: {failures: 1000}, queue: {keep_alive: 1s";

/// One backend that keeps the request `held` until it is told to go on, and does with others what their `x-kind` says.
struct Stage {
    fleet: Fleet,
    proxy: Proxy,
    held: Asked,
    go_on: Arc<Semaphore>,
}

// === impl Stage ===

impl Stage {
    /// With the backend busy. `more` ends the pool's section `queue`.
    async fn start(more: &str) -> Self {
        let go_on = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&go_on);
        let fleet = Fleet::start(1, move |exchange: &mut Exchange| {
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                let kind = exchange.head.header("x-kind").unwrap_or_default().to_owned();
                match kind.as_str() {
                    "held" => gate.acquire().await.unwrap().forget(),
                    "error" => {
                        exchange.body().await?;
                        return exchange
                            .respond(400, "{\"error\": {\"message\": \"too long\",\n \"type\": \"x\"}}")
                            .await;
                    }
                    "page" => {
                        exchange.body().await?;
                        return exchange.respond(500, "<html>").await;
                    }
                    "empty" => {
                        exchange.body().await?;
                        return exchange.respond(500, "").await;
                    }
                    "whole" => {
                        exchange.body().await?;
                        return exchange.respond(200, "{\"choices\":[{\"text\":\"a\"}]}").await;
                    }
                    "half" => {
                        exchange.body().await?;
                        exchange.raw(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\n{\"error\"").await?;
                        return exchange.reset();
                    }
                    "given up" => {
                        exchange.begin_stream().await?;
                        return exchange.end_stream().await;
                    }
                    "broken" => {
                        exchange.body().await?;
                        return exchange.reset();
                    }
                    _ => {}
                }
                exchange.begin_stream().await?;
                exchange.event("{\"choices\":[{\"text\":\"a\"}]}").await?;
                exchange.end_stream().await
            })
        })
        .await;
        let setup = Setup::new().pool("p", &fleet, &format!("{KEYS}{more}}}"));
        let proxy = setup.section("retry", "max_attempts: 1").start().await;
        let bench = Bench { fleet, proxy, answers: Arc::clone(&go_on) };
        let held = bench.ask("held", "x-kind: held\r\n");
        bench.until_received(1).await;
        let Bench { fleet, proxy, .. } = bench;
        Self { fleet, proxy, held, go_on }
    }

    /// A streamed request of this kind that has been given a sign of life.
    async fn kept_alive(&self, kind: &str) -> Client {
        let mut client = Client::connect(self.proxy.http).await;
        client.send("POST", CHAT, &format!("x-kind: {kind}\r\n"), &streamed_chat("waiting")).await;
        let head = client.head().await.unwrap();
        assert_eq!(head.second_word(), "200");
        assert!(head.header("content-type").unwrap().starts_with("text/event-stream"));
        assert!(head.header("x-request-id").is_some());
        assert_eq!(client.event().await.unwrap().as_deref(), Some(": waiting\n\n"));
        client
    }

    /// The events that follow once there is room, without `data: `.
    async fn rest(&self, client: &mut Client) -> Vec<String> {
        self.go_on.add_permits(1);
        events(client).await
    }

    /// What the header of the stream has said of the connection holds behind it.
    async fn goes_on(&self, client: &mut Client) {
        self.go_on.add_permits(1);
        client.send("POST", CHAT, "x-kind: stream\r\n", &chat("again")).await;
        assert_eq!(client.response("POST").await.unwrap().status, 200);
    }

    async fn end(self) {
        self.held.served().await;
        self.proxy.let_go().await;
        drop(self.fleet);
    }
}

/// The events to the end of a stream, however they are cut into chunks; comments are none.
async fn events(client: &mut Client) -> Vec<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = client.wire.chunk().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(bytes).unwrap();
    text.split_terminator("\n\n")
        .filter_map(|event| event.trim_start().strip_prefix("data: "))
        .map(str::to_owned)
        .collect()
}

fn error_code(event: &str) -> String {
    let value: Value = serde_json::from_str(event).unwrap_or_else(|_| panic!("{event}"));
    value["error"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_come_while_it_waits_and_the_answer_follows_them() {
    let stage = Stage::start("").await;
    let mut client = stage.kept_alive("stream").await;
    assert_eq!(client.event().await.unwrap().as_deref(), Some(": waiting\n\n"), "and again");
    let events = stage.rest(&mut client).await;
    assert_eq!(events, ["{\"choices\":[{\"text\":\"a\"}]}", "[DONE]"]);
    stage.goes_on(&mut client).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_stream_is_kept_alive_as_well() {
    let stage = Stage::start("").await;
    let (h2, body) = (H2::connect(stage.proxy.h2c).await, streamed_chat("waiting"));
    let mut stream = h2.post(CHAT, &[("x-kind", "stream")], body.len(), Length::Stated).await;
    stream.send(&body, true).await.unwrap();
    let (head, mut receive, _send) = stream.head().await.unwrap();
    assert_eq!(head.second_word(), "200");
    let first = within("a comment", receive.data()).await.unwrap().unwrap();
    assert_eq!(&first[..], b": waiting\n\n");
    stage.go_on.add_permits(1);
    let mut text = String::new();
    while let Some(data) = within("a part of the stream", receive.data()).await {
        let data = data.unwrap();
        receive.flow_control().release_capacity(data.len()).unwrap();
        text.push_str(std::str::from_utf8(&data).unwrap());
    }
    assert!(text.ends_with("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n"), "{text}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_engine_is_an_event() {
    for (kind, expected) in [("error", None), ("page", Some("upstream_status")), ("empty", Some("upstream_status"))] {
        let stage = Stage::start("").await;
        let mut client = stage.kept_alive(kind).await;
        let events = stage.rest(&mut client).await;
        assert_eq!(events.len(), 1, "{kind}: {events:?}");
        match expected {
            Some(code) => assert_eq!(error_code(&events[0]), code, "{kind}"),
            None => assert!(events[0].contains("too long"), "the engine's own words: {events:?}"),
        }
        stage.goes_on(&mut client).await;
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_an_answer_is_an_event() {
    for (kind, code) in [("broken", "upstream_failed"), ("given up", "upstream_failed"), ("half", "upstream_broke_off")]
    {
        let stage = Stage::start("").await;
        let mut client = stage.kept_alive(kind).await;
        let events = stage.rest(&mut client).await;
        assert_eq!(events.iter().map(|event| error_code(event)).collect::<Vec<_>>(), [code], "{kind}");
        stage.goes_on(&mut client).await;
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_one_piece_is_an_event() {
    let stage = Stage::start("").await;
    let mut client = stage.kept_alive("whole").await;
    assert_eq!(stage.rest(&mut client).await, ["{\"choices\":[{\"text\":\"a\"}]}"]);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_gives_up_on_an_opened_stream_is_served_by_another() {
    let go_on = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go_on);
    let fleet = Fleet::start(2, move |exchange: &mut Exchange| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            if exchange.head.header("x-kind") == Some("held") {
                gate.acquire().await.unwrap().forget();
                exchange.body().await?;
                return exchange.respond(200, "{\"held\":true}").await;
            }
            exchange.begin_stream().await?;
            if exchange.attempt > 1 {
                exchange.event("{\"choices\":[{\"text\":\"a\"}]}").await?;
            }
            exchange.end_stream().await
        })
    })
    .await;
    let setup = Setup::new().pool("p", &fleet, &format!("policy: round_robin, {KEYS}}}"));
    let proxy = setup.section("retry", "max_attempts: 2, budget: 1.0").start().await;
    let bench = Bench { fleet, proxy, answers: go_on };
    let held = [bench.ask("held", "x-kind: held\r\n"), bench.ask("held too", "x-kind: held\r\n")];
    bench.until_received(2).await;
    let mut client = Client::connect(bench.proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("waiting")).await;
    assert_eq!(client.head().await.unwrap().second_word(), "200");
    assert_eq!(client.event().await.unwrap().as_deref(), Some(": waiting\n\n"));
    bench.answer(2);
    assert_eq!(events(&mut client).await, ["{\"choices\":[{\"text\":\"a\"}]}", "[DONE]"]);
    let received = bench.fleet.received();
    assert_ne!(received[2].backend, received[3].backend, "one gave it up, the other has served it");
    assert_eq!(bench.proxy.metric("retries_total", "cause=\"aborted\"").await, 1.0);
    for asked in held {
        asked.served().await;
    }
    bench.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_its_time_is_an_event() {
    let stage = Stage::start(", max_wait: 4s").await;
    let mut client = stage.kept_alive("stream").await;
    assert_eq!(error_code(events(&mut client).await.last().unwrap()), "queue_timed_out");
    stage.goes_on(&mut client).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_an_opened_stream_leaves_the_queue() {
    let stage = Stage::start("").await;
    let client = stage.kept_alive("stream").await;
    drop(client);
    eventually("it has left", async || stage.proxy.metric("queued_requests", "").await == 0.0).await;
    stage.go_on.add_permits(1);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_streamed_gets_its_status_and_no_comments() {
    let stage = Stage::start(", max_wait: 2500ms").await;
    let mut client = Client::connect(stage.proxy.http).await;
    client.send("POST", CHAT, "", &chat("waiting")).await;
    let response = client.response("POST").await.unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (429, "queue_timed_out"));
    stage.go_on.add_permits(1);
    stage.end().await;
}
