//! Time limits of their own: each ends what it is about, says which it was, and blames who is to blame.

mod common;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use common::backend::{Exchange, Fleet};
use common::client::{self, Client};
use common::h2c::{H2, Length};
use common::proxy::{Proxy, Setup};
use common::{chat, eventually, streamed_chat, within};
use serde_json::Value;

const CHAT: &str = "/v1/chat/completions";

/// Failures take no backend out, and retries are as many as attempts allow.
const NO_EJECTION: &str = "ejection: {failures: 1000}";
const FREE_RETRIES: &str = "max_attempts: 2, budget: 1.0";

const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;

/// A header, and nothing behind it.
async fn silent_stream(exchange: &mut Exchange) -> io::Result<()> {
    exchange.begin_stream().await?;
    exchange.until_closed().await;
    Ok(())
}

/// One token, then comments for longer than any limit here.
async fn only_comments_after_a_token(exchange: &mut Exchange) -> io::Result<()> {
    exchange.begin_stream().await?;
    exchange.event(TOKEN).await?;
    for _ in 0..100 {
        exchange.raw(b"e\r\n: keep-alive\n\n\r\n").await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    exchange.end_stream().await
}

/// Tokens for longer than any limit here.
async fn endless(exchange: &mut Exchange) -> io::Result<()> {
    exchange.begin_stream().await?;
    for _ in 0..300 {
        exchange.event(TOKEN).await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    exchange.end_stream().await
}

async fn start(fleet: &Fleet, timeouts: &str, more: &str) -> Proxy {
    let keys = format!("{NO_EJECTION}, timeouts: {{{timeouts}}}{more}");
    Setup::new().pool("p", fleet, &keys).section("retry", FREE_RETRIES).start().await
}

/// The data of the last event, and how many there are.
fn last_event(text: &str) -> (Value, usize) {
    let events: Vec<_> = text.split("\n\n").filter_map(|event| event.rsplit_once("data: ")).collect();
    (serde_json::from_str(events.last().map_or("", |(_, data)| data)).unwrap_or_default(), events.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_first_token_another_backend_is_tried_and_then_the_client_is_told() {
    let fleet = Fleet::start(2, |exchange| Box::pin(silent_stream(exchange))).await;
    let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("limits-{}.log", std::process::id()));
    let keys = format!("{NO_EJECTION}, timeouts: {{first_token: 200ms}}");
    let proxy = Setup::new().pool("p", &fleet, &keys).section("retry", FREE_RETRIES).access_log(&log).start().await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    assert_eq!((response.status, response.error_code().as_str()), (504, "first_token_timeout"));
    assert_eq!(fleet.received().len(), 2, "the other backend was tried before");
    proxy.let_go().await;
    assert_eq!(proxy.metric("time_limits_total", "limit=\"first_token\"").await, 2.0);
    assert_eq!(proxy.metric("retries_total", "cause=\"time_limit\"").await, 1.0);
    assert_eq!(proxy.metric("requests_total", "reason=\"upstream_timeout\"").await, 1.0);
    let line = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the request has its line", || async { line().ends_with('\n') }).await;
    let line: Value = serde_json::from_str(line().trim()).unwrap();
    assert_eq!((&line["limit"], &line["status"]), (&"first_token".into(), &504.into()), "{line}");
    std::fs::remove_file(&log).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_backend_serves_what_the_first_left_without_a_token() {
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            if exchange.attempt == 1 {
                return silent_stream(exchange).await;
            }
            exchange.begin_stream().await?;
            exchange.event(TOKEN).await?;
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = start(&fleet, "first_token: 200ms", "").await;
    for body in [streamed_chat("x"), streamed_chat(&"long ".repeat(40_000))] {
        let response = client::post(proxy.http, CHAT, "", &body).await;
        assert_eq!((response.status, response.attempts()), (200, 2), "{}", response.text());
        assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_goes_silent_ends_with_an_error_event() {
    let fleet = Fleet::start(1, |exchange| Box::pin(only_comments_after_a_token(exchange))).await;
    let proxy = start(&fleet, "between_tokens: 300ms", "").await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    let (last, _) = last_event(&response.text());
    assert_eq!((response.status, &last["error"]["code"]), (200, &"between_tokens_timeout".into()));
    assert!(response.text().contains(": keep-alive"), "comments are passed on, but are no tokens");

    let body = streamed_chat("x");
    let mut stream = H2::connect(proxy.h2c).await.post(CHAT, &[], body.len(), Length::Stated).await;
    stream.send(&body, true).await.unwrap();
    let (_, mut receive, _send) = stream.head().await.unwrap();
    let mut text = Vec::new();
    while let Some(data) = within("data or the end", receive.data()).await {
        let data = data.expect("the stream ends, and is not reset");
        receive.flow_control().release_capacity(data.len()).unwrap();
        text.extend_from_slice(&data);
    }
    let (last, _) = last_event(&String::from_utf8(text).unwrap());
    assert_eq!(last["error"]["code"], "between_tokens_timeout", "over HTTP/2 as well");

    let messages = r#"{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}"#;
    let response = client::post(proxy.http, "/v1/messages", "", messages.as_bytes()).await;
    assert!(response.text().contains("\nevent: error\ndata: "), "Anthropic's clients go by the event's name");
    assert_eq!(last_event(&response.text()).0["error"]["type"], "api_error");
    proxy.let_go().await;
    assert_eq!(proxy.metric("time_limits_total", "limit=\"between_tokens\"").await, 3.0);
    assert_eq!(proxy.metric("requests_total", "reason=\"truncated\"").await, 3.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_counts_against_the_backend() {
    let fleet = Fleet::start(1, |exchange| Box::pin(only_comments_after_a_token(exchange))).await;
    let keys = "ejection: {failures: 2, base: 1h, max: 1h}, timeouts: {between_tokens: 200ms}";
    let proxy = Setup::new().pool("p", &fleet, keys).start().await;
    client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    assert_eq!(proxy.state_of(&fleet.name(0)).await, "ejected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_total_covers_all_attempts_and_the_stream() {
    let fleet = Fleet::start(2, |exchange| Box::pin(silent_stream(exchange))).await;
    let proxy = start(&fleet, "first_token: 400ms, total: 600ms", "").await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    assert_eq!((response.status, response.error_code().as_str()), (504, "total_timeout"));
    assert_eq!(fleet.received().len(), 2, "the second attempt had less time than its own limit");

    let fleet = Fleet::start(1, |exchange| Box::pin(endless(exchange))).await;
    let proxy = start(&fleet, "total: 500ms", "").await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    let (last, events) = last_event(&response.text());
    assert_eq!((response.status, &last["error"]["code"]), (200, &"total_timeout".into()));
    assert!(events > 2, "tokens came until then: {events}");
    assert_eq!(proxy.metric("time_limits_total", "limit=\"total\"").await, 1.0);
    let failures = proxy.backends().await[0]["state"].clone();
    assert_eq!(failures, "healthy", "nobody is to blame for it");
}

/// Tokens without a pause, for as long as anybody takes them.
async fn torrent(exchange: &mut Exchange) -> io::Result<()> {
    exchange.begin_stream().await?;
    let event = format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}}}}]}}", "x".repeat(64 * 1024));
    loop {
        exchange.event(&event).await?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_total_ends_what_never_pauses() {
    let fleet = Fleet::start(1, |exchange| Box::pin(torrent(exchange))).await;
    let proxy = start(&fleet, "total: 300ms", "").await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("x")).await;
    let head = client.head().await.unwrap();
    // Whether the client can be told depends on where the answer was cut.
    let _ = within("the end", client.wire.body(head.response_framing("POST"))).await;
    proxy.let_go().await;
    assert_eq!(proxy.metric("time_limits_total", "limit=\"total\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_total_frees_a_backend_whose_client_takes_nothing() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let fleet = Fleet::start(1, move |exchange| {
        let tell = tell.clone();
        Box::pin(async move {
            let ended = torrent(exchange).await;
            tell.send(()).unwrap();
            ended
        })
    })
    .await;
    let proxy = start(&fleet, "total: 300ms", "").await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("x")).await;
    let head = client.head().await.unwrap();
    within("the backend's connection ends, and nobody has read", told.recv()).await.unwrap();
    let _ = client.wire.body(head.response_framing("POST")).await;
    proxy.let_go().await;
    assert_eq!(proxy.metric("time_limits_total", "limit=\"total\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_does_not_take_the_body_in_time_is_given_up_unless_it_has_answered() {
    // More than all sockets in between can hold.
    let body = chat(&"x".repeat(16 * 1024 * 1024));
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            if exchange.attempt > 1 {
                return exchange.echo().await;
            }
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(())
        })
    })
    .await;
    let proxy = start(&fleet, "write: 300ms, read: 1h", "").await;
    let response = client::post(proxy.http, CHAT, "", &body).await;
    assert_eq!((response.status, response.attempts()), (200, 2));
    assert_eq!(proxy.metric("time_limits_total", "limit=\"write\"").await, 1.0);
    proxy.let_go().await;

    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.raw(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 9\r\n\r\ntoo large").await?;
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(())
        })
    })
    .await;
    let proxy = start(&fleet, "write: 300ms, read: 1h", "").await;
    let response = client::post(proxy.http, CHAT, "", &body).await;
    assert_eq!((response.status, response.text().as_str()), (413, "too large"));
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_not_made_in_time_has_a_code_of_its_own() {
    let mut fleet = Fleet::echo(1).await;
    let proxy = start(&fleet, "connect: 200ms", "").await;
    let _listener = fleet.ignore(0).await;
    let response = client::post(proxy.http, CHAT, "", &chat("x")).await;
    assert_eq!((response.status, response.error_code().as_str()), (504, "connect_timeout"), "{}", response.text());
    assert_eq!(proxy.metric("time_limits_total", "limit=\"connect\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_length_that_goes_silent_is_not_taken_for_whole() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n").await?;
            exchange.raw(format!("data: {TOKEN}\n\n").as_bytes()).await?;
            exchange.until_closed().await;
            Ok(())
        })
    })
    .await;
    let proxy = start(&fleet, "between_tokens: 200ms", "").await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    assert_eq!(last_event(&response.text()).0["error"]["code"], "between_tokens_timeout", "{}", response.text());
    proxy.let_go().await;
    assert_eq!(proxy.metric("requests_total", "reason=\"truncated\"").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_on_one_connection_have_limits_of_their_own() {
    const REQUESTS: u32 = 5;
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            // A fifth of the limit: all requests together take longer than one may.
            tokio::time::sleep(Duration::from_millis(300)).await;
            exchange.event(&format!("{{\"turn\":{}}}", exchange.turn)).await?;
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = start(&fleet, "first_token: 1s, between_tokens: 1s", "").await;
    for turn in 1..=REQUESTS {
        let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
        let wanted = format!("data: {{\"turn\":{turn}}}\n\ndata: [DONE]\n\n");
        assert_eq!((response.status, response.text()), (200, wanted), "on the same connection");
        proxy.let_go().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_slowly_is_no_silent_backend() {
    // More than all sockets and buffers in between can hold.
    const EVENTS: usize = 600;
    let event = format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}}}}]}}", "x".repeat(64 * 1024));
    let fleet = Fleet::start(1, move |exchange| {
        let event = event.clone();
        Box::pin(async move {
            exchange.begin_stream().await?;
            for _ in 0..EVENTS {
                exchange.event(&event).await?;
            }
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = start(&fleet, "between_tokens: 300ms", "").await;
    let mut client = Client::connect(proxy.http).await;
    client.send("POST", CHAT, "", &streamed_chat("x")).await;
    let head = client.head().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let body = client.wire.body(head.response_framing("POST")).await.unwrap();
    assert!(body.ends_with(b"data: [DONE]\n\n"), "it is whole: {}", String::from_utf8_lossy(&body[body.len() - 200..]));
    assert_eq!(proxy.metric("time_limits_total", "").await, 0.0);
}
