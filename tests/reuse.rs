//! A client's connection behind an exchange that failed: what the header said of it holds, and no request on it is lost.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use common::backend::{Exchange, Fleet};
use common::client::{Client, Response};
use common::proxy::{Proxy, Setup};
use common::{chat, eventually, hash, streamed_chat};
use serde_json::Value;
use tokio::sync::Semaphore;

const CHAT: &str = "/v1/chat/completions";

/// Failures take no backend out.
const NO_EJECTION: &str = "ejection: {failures: 1000}";

const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;

/// The ways in which an engine leaves a stream after its first token, and what the client is told.
const WAYS: [(&str, &str); 4] = [
    ("reset", "upstream_broke_off"),
    ("close", "upstream_broke_off"),
    ("garbage", "upstream_broke_off"),
    ("silence", "between_tokens_timeout"),
];

/// Backends that break off streams as the request's `x-way` says, each when it is told to, and answer everything else.
struct Stage {
    proxy: Proxy,
    fleet: Fleet,
    breaks: Arc<Semaphore>,
}

async fn act(exchange: &mut Exchange, breaks: &Semaphore) -> io::Result<()> {
    let Some(way) = exchange.head.header("x-way").map(str::to_owned) else { return exchange.echo().await };
    match way.as_str() {
        "broken" => {
            exchange.body().await?;
            return exchange.reset();
        }
        "error" => {
            exchange.body().await?;
            return exchange.respond(500, r#"{"error":{"message":"no","type":"x","code":500}}"#).await;
        }
        "half" => {
            exchange.body().await?;
            exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{").await?;
        }
        _ => exchange.begin_stream().await?,
    }
    if way == "mute" {
        exchange.until_closed().await;
        return Ok(());
    }
    if way != "half" {
        exchange.event(TOKEN).await?;
    }
    match way.as_str() {
        "half a line" => exchange.raw(b"6\r\ndata: \r\n").await?,
        "half a chunk" => exchange.raw(b"20\r\ndata: ").await?,
        _ => {}
    }
    breaks.acquire().await.unwrap().forget();
    match way.as_str() {
        "reset" => exchange.reset(),
        "garbage" => exchange.raw(b"no chunk\r\n").await,
        "silence" => {
            exchange.until_closed().await;
            Ok(())
        }
        _ => {
            exchange.close();
            Ok(())
        }
    }
}

// === impl Stage ===

impl Stage {
    async fn start(setup: Setup, keys: &str) -> Self {
        let breaks = Arc::new(Semaphore::new(0));
        let given = Arc::clone(&breaks);
        let fleet = Fleet::start(1, move |exchange| {
            let given = Arc::clone(&given);
            Box::pin(async move { act(exchange, &given).await })
        })
        .await;
        let keys = format!("{NO_EJECTION}, timeouts: {{first_token: 300ms, between_tokens: 300ms}}{keys}");
        let proxy = setup.pool("p", &fleet, &keys).section("retry", "max_attempts: 1").start().await;
        Self { proxy, fleet, breaks }
    }

    async fn client(&self) -> Client {
        Client::connect(self.proxy.http).await
    }

    /// Waits until so many requests are over and nothing is held for them.
    async fn until_over(&self, requests: f64) {
        eventually("they are over", async || self.proxy.metric("requests_total", "").await == requests).await;
        self.proxy.let_go().await;
    }
}

/// Asks for a stream that its engine will leave, and reads its first token.
async fn begin(client: &mut Client, way: &str) {
    client.send("POST", CHAT, &format!("x-way: {way}\r\n"), &streamed_chat("x")).await;
    first_token(client).await;
}

async fn first_token(client: &mut Client) {
    let head = client.head().await.unwrap();
    assert_eq!((head.second_word(), head.header("connection")), ("200", Some("keep-alive")), "it says that it goes on");
    assert_eq!(client.event().await.unwrap().as_deref(), Some(TOKEN));
}

/// The code of the error event that ends the stream.
async fn error_code(client: &mut Client) -> String {
    let event = client.event().await.unwrap().expect("an error event");
    assert_eq!(client.event().await.unwrap(), None, "and nothing behind it");
    let value: Value = serde_json::from_str(event.trim_start().trim_start_matches("data: ")).expect(&event);
    value["error"]["code"].as_str().unwrap().to_owned()
}

async fn send(client: &mut Client, text: &str) {
    client.send("POST", CHAT, "", &chat(text)).await;
}

/// The answer to the request that says `text`.
async fn is_answered(client: &mut Client, text: &str) -> Response {
    let response = client.response("POST").await.unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(response.status, 200, "{text}: {}", response.text());
    assert_eq!(response.json::<Value>()["hash"], hash(&chat(text)), "{text}");
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_request_is_answered_behind_every_error_event() {
    for keys in [", hold_header: true", ", hold_header: false"] {
        let stage = Stage::start(Setup::new(), keys).await;
        let (mut client, mut requests) = (stage.client().await, 0.0);
        for (way, code) in WAYS {
            begin(&mut client, way).await;
            stage.breaks.add_permits(1);
            assert_eq!(error_code(&mut client).await, code, "{way}");
            send(&mut client, way).await;
            is_answered(&mut client, way).await;

            begin(&mut client, way).await;
            stage.breaks.add_permits(1);
            assert_eq!(error_code(&mut client).await, code, "{way}");
            requests += 3.0;
            stage.until_over(requests).await;
            let later = format!("{way}, later");
            send(&mut client, &later).await;
            is_answered(&mut client, &later).await;
            requests += 1.0;
            stage.until_over(requests).await;
        }
        assert_eq!(stage.proxy.metric("requests_total", "reason=\"truncated\"").await, 8.0);
        assert_eq!(stage.proxy.metric("requests_total", "reason=\"served\"").await, 8.0);
        assert_eq!(stage.proxy.metric("connections", "").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_pipelined_behind_a_stream_is_answered_after_its_error_event() {
    let stage = Stage::start(Setup::new(), "").await;
    let body = chat("whole");
    let whole = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    let whole = [whole, body].concat();
    let mut client = stage.client().await;
    for (way, code) in WAYS {
        // Pingora takes one byte of it while the stream goes on, of a header that is whole.
        for sent in [1, 40, whole.len() - 10, whole.len()] {
            begin(&mut client, way).await;
            client.send_bytes(&whole[..sent]).await;
            stage.breaks.add_permits(1);
            assert_eq!(error_code(&mut client).await, code, "{way}, {sent}");
            client.send_bytes(&whole[sent..]).await;
            is_answered(&mut client, "whole").await;
        }
        // In one write with the request before it, and two more behind it.
        let first = streamed_chat("x");
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\nx-way: {way}\r\ncontent-length: {}\r\n\r\n", first.len());
        client.send_bytes(&[head.as_bytes(), &first, &whole, &whole, &whole].concat()).await;
        stage.breaks.add_permits(1);
        first_token(&mut client).await;
        assert_eq!(error_code(&mut client).await, code, "{way}");
        for _ in 0..3 {
            is_answered(&mut client, "whole").await;
        }
    }
    stage.proxy.let_go().await;
    // Without its first byte a request is one as well, of another method.
    assert!(stage.fleet.received().iter().all(|received| received.head.method() == "POST"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_may_break_off_on_one_connection() {
    let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("reuse-hundred.log");
    // What an earlier run wrote.
    let _ = std::fs::remove_file(&log);
    let stage = Stage::start(Setup::new().section("server", "keepalive_timeout: 1s").access_log(&log), "").await;
    let mut client = stage.client().await;
    send(&mut client, "first").await;
    is_answered(&mut client, "first").await;
    stage.breaks.add_permits(99);
    for number in 1..100 {
        let id = format!("x-request-id: r{number}\r\n");
        client.send("POST", CHAT, &format!("{id}x-way: reset\r\n"), &streamed_chat("x")).await;
        first_token(&mut client).await;
        assert_eq!(error_code(&mut client).await, "upstream_broke_off", "{number}");
    }
    stage.until_over(100.0).await;
    assert_eq!(stage.proxy.metric("connections", "").await, 1.0, "it is one connection");
    // The client's side stays open: the limit of time is that of a kept connection, and nobody else holds it.
    assert!(client.wire.ends().await);
    eventually("it has given its place back", async || stage.proxy.metric("connections", "").await == 0.0).await;

    stage.proxy.server.state().flush_logs();
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 100, "each has one line");
    assert_eq!((&lines[0]["reason"], &lines[0]["attempts"]), (&"served".into(), &1.into()));
    for (number, line) in lines.iter().enumerate().skip(1) {
        let told = (&line["request_id"], &line["reason"], &line["status"]);
        assert_eq!(told, (&format!("r{number}").into(), &"truncated".into(), &200.into()), "{line}");
        assert_eq!(line["client"], lines[0]["client"], "the client is known as before");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_wants_its_connection_closed_gets_that_behind_an_error_event() {
    let stage = Stage::start(Setup::new(), "").await;
    stage.breaks.add_permits(100);
    let (body, mut client) = (streamed_chat("x"), stage.client().await);
    client.send("POST", CHAT, "connection: close\r\nx-way: reset\r\n", &body).await;
    assert_eq!(client.head().await.unwrap().header("connection"), Some("close"));
    assert_eq!(client.event().await.unwrap().as_deref(), Some(TOKEN));
    assert_eq!(error_code(&mut client).await, "upstream_broke_off");
    assert!(client.wire.ends().await);

    // HTTP/1.0 has no chunks: the end of the connection is that of the stream.
    let head = format!(
        "POST {CHAT} HTTP/1.0\r\nhost: test\r\nconnection: keep-alive\r\nx-way: reset\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut client = stage.client().await;
    client.send_bytes(&[head.as_bytes(), &body].concat()).await;
    let response = client.response("POST").await.unwrap();
    assert!(response.text().contains("upstream_broke_off"), "{}", response.text());
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_in_the_middle_of_it_is_gone() {
    let stage = Stage::start(Setup::new(), "").await;
    let mut client = stage.client().await;
    begin(&mut client, "reset").await;
    drop(client);
    eventually("it is", async || stage.proxy.metric("requests_total", "reason=\"client_gone\"").await == 1.0).await;
    stage.breaks.add_permits(1);

    let mut client = stage.client().await;
    begin(&mut client, "reset").await;
    stage.breaks.add_permits(1);
    assert_eq!(error_code(&mut client).await, "upstream_broke_off");
    drop(client);
    eventually("its connection is", async || stage.proxy.metric("connections", "").await == 0.0).await;
    stage.proxy.let_go().await;
}

/// Requests that fail, however far they come, and the status of each.
const FAILURES: [(&str, &str, &str, u16); 7] = [
    ("x-way: broken\r\n", CHAT, r#"{"model":"m","messages":[]}"#, 502),
    ("x-way: mute\r\n", CHAT, r#"{"model":"m","messages":[],"stream":true}"#, 504),
    ("x-way: error\r\n", CHAT, r#"{"model":"m","messages":[]}"#, 500),
    ("", CHAT, "no JSON", 400),
    ("", CHAT, r#"{"model":"unknown","messages":[]}"#, 404),
    ("transfer-encoding: gzip\r\n", CHAT, "x", 400),
    ("expect: 100-continue\r\n", CHAT, "no JSON", 400),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_header_of_an_error_says_of_the_connection_holds() {
    let stage = Stage::start(Setup::new(), ", models: [m]").await;
    let mut kept = 0;
    for (headers, path, body, status) in FAILURES {
        let mut client = stage.client().await;
        client.send("POST", path, headers, body.as_bytes()).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!(response.status, status, "{headers}{body}: {}", response.text());
        if response.header("connection") == Some("close") {
            assert!(client.wire.ends().await, "{status}: what it says, it does");
            continue;
        }
        kept += 1;
        send(&mut client, "next").await;
        is_answered(&mut client, "next").await;
    }
    assert_eq!(kept, FAILURES.len() - 1, "all but the one of which nobody knows where it ends");
    stage.proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_made_whole_ends_with_its_connection() {
    let stage = Stage::start(Setup::new(), "").await;
    for way in ["half", "half a line", "half a chunk"] {
        let mut client = stage.client().await;
        client.send("POST", CHAT, &format!("x-way: {way}\r\n"), &streamed_chat("x")).await;
        send(&mut client, "lost, as anyone can see").await;
        let head = client.head().await.unwrap();
        stage.breaks.add_permits(1);
        assert!(client.wire.body(head.response_framing("POST")).await.is_err(), "{way}: it has no end");
    }
    stage.proxy.let_go().await;
}
