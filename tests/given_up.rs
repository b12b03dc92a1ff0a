//! Answers that an engine gives up before their first token go to another backend, and clients see nothing of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io;

use common::backend::{Exchange, Fleet};
use common::client::{self, Client};
use common::h2c::{H2, Length};
use common::proxy::Setup;
use common::{chat, streamed_chat, within};
use tokio::sync::Semaphore;
use warmgate::sim::{EngineOptions, Fault, SimEngine};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const NO_EJECTION: &str = "ejection: {failures: 1000}";
const FREE_RETRIES: &str = "max_attempts: 2, budget: 1.0";

const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":"good"},"finish_reason":null}]}"#;
const GONE: &str = r#"{"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}"#;
const ABORT: &str = r#"{"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"abort"}],"usage":{"prompt_tokens":32,"completion_tokens":0}}"#;

/// The ways in which an engine gives a stream up.
const STREAMS: [&str; 8] = ["nothing", "done", "role", "abort", "error", "notice", "reset", "close"];

async fn give_up(exchange: &mut Exchange, way: &str) -> io::Result<()> {
    exchange.body().await?;
    if way == "plain" {
        return exchange.respond(200, ABORT).await;
    }
    exchange.raw(STREAM.as_bytes()).await?;
    match way {
        "nothing" => return exchange.raw(b"0\r\n\r\n").await,
        "role" => exchange.event(ROLE).await?,
        "abort" => exchange.event(ABORT).await?,
        "error" => exchange.event(GONE).await?,
        "notice" => exchange.raw(b"20\r\nevent: response.created\ndata: {\n\r\n4\r\n}\n\n\n\r\n").await?,
        "reset" => return exchange.reset(),
        "close" => {
            exchange.close();
            return Ok(());
        }
        _ => {}
    }
    exchange.end_stream().await
}

/// The first attempt is given up as the request's `x-way` says, the second is served.
async fn second_serves(exchange: &mut Exchange) -> io::Result<()> {
    let way = exchange.head.header("x-way").unwrap().to_owned();
    if exchange.attempt == 1 {
        return give_up(exchange, &way).await;
    }
    if way == "plain" {
        return exchange.echo().await;
    }
    exchange.begin_stream().await?;
    exchange.event(ROLE).await?;
    exchange.event(TOKEN).await?;
    exchange.end_stream().await
}

fn served() -> String {
    format!("data: {ROLE}\n\ndata: {TOKEN}\n\ndata: [DONE]\n\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_before_a_token_is_served_by_another() {
    let fleet = Fleet::start(2, |exchange| Box::pin(second_serves(exchange))).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", FREE_RETRIES).start().await;
    for text in ["x".to_owned(), "long ".repeat(40_000)] {
        for way in STREAMS {
            let body = streamed_chat(&text);
            let response = client::post(proxy.http, CHAT, &format!("x-way: {way}\r\n"), &body).await;
            assert_eq!((response.status, response.attempts(), response.text()), (200, 2, served()), "{way}");
            assert_eq!(response.header("content-type"), Some("text/event-stream"), "{way}: of the second answer");

            let mut stream =
                H2::connect(proxy.h2c).await.post(CHAT, &[("x-way", way)], body.len(), Length::Stated).await;
            stream.send(&body, true).await.unwrap();
            let (head, mut receive, _send) = stream.head().await.unwrap();
            assert_eq!((head.second_word(), head.header("x-warmgate-attempts")), ("200", Some("2")), "{way} on HTTP/2");
            let mut received = Vec::new();
            while let Some(data) = within("data", receive.data()).await {
                received.extend_from_slice(&data.unwrap());
            }
            assert_eq!(String::from_utf8(received).unwrap(), served(), "{way} on HTTP/2");
        }
        let response = client::post(proxy.http, CHAT, "x-way: plain\r\n", &chat(&text)).await;
        assert_eq!((response.status, response.attempts()), (200, 2), "{}", response.text());
        assert_eq!(response.json::<serde_json::Value>()["hash"], common::hash(&chat(&text)), "the same body");
    }
    proxy.let_go().await;
    // Resets and closes are failures of the connection, and counted as such.
    let aborted = 2.0 * (2.0 * (STREAMS.len() - 2) as f64 + 1.0);
    assert_eq!(proxy.metric("aborted_answers_total", "").await, aborted);
    assert_eq!(proxy.metric("retries_total", "cause=\"aborted\"").await, aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_give_up_the_client_gets_one_clear_error() {
    let fleet = Fleet::start(2, |exchange| {
        Box::pin(async move {
            let way = exchange.head.header("x-way").unwrap().to_owned();
            give_up(exchange, &way).await
        })
    })
    .await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", FREE_RETRIES).start().await;
    for way in ["nothing", "done", "role", "abort", "plain", "reset", "close"] {
        let mut client = Client::connect(proxy.http).await;
        client.send("POST", CHAT, &format!("x-way: {way}\r\n"), &streamed_chat("x")).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_failed"), "{way}");
    }
    let response = client::post(proxy.http, CHAT, "x-way: error\r\n", &streamed_chat("x")).await;
    let told = format!("data: {GONE}\n\ndata: [DONE]\n\n");
    assert_eq!((response.status, response.text()), (200, told), "what the engine says of itself is passed on");
    assert_eq!(fleet.received().len(), 16, "two attempts each");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_gives_up_is_ejected() {
    let fleet = Fleet::start(1, |exchange| Box::pin(async move { give_up(exchange, "done").await })).await;
    let keys = "ejection: {failures: 4, base: 1h, max: 1h}";
    let proxy = Setup::new().pool("p", &fleet, keys).start().await;
    for (number, state) in [(1, "healthy"), (2, "ejected")] {
        client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
        assert_eq!(proxy.state_of(&fleet.name(0)).await, state, "after {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_request_is_not_tried_elsewhere() {
    let fault = r#"{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}"#;
    let fleet = Fleet::start(2, move |exchange| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            exchange.event(fault).await?;
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", FREE_RETRIES).start().await;
    let response = client::post(proxy.http, CHAT, "", &streamed_chat("x")).await;
    assert_eq!((response.status, response.attempts()), (200, 1));
    assert_eq!(response.text(), format!("data: {fault}\n\ndata: [DONE]\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comment_is_passed_on_at_once_and_so_is_a_header_that_is_not_held() {
    for (keys, first) in [("", ": waiting\n\n"), ("hold_header: false", "")] {
        let gate = std::sync::Arc::new(Semaphore::new(0));
        let fleet = Fleet::start(1, {
            let gate = std::sync::Arc::clone(&gate);
            move |exchange| {
                let gate = std::sync::Arc::clone(&gate);
                Box::pin(async move {
                    exchange.begin_stream().await?;
                    if !first.is_empty() {
                        exchange.raw(format!("{:x}\r\n{first}\r\n", first.len()).as_bytes()).await?;
                    }
                    gate.acquire().await.unwrap().forget();
                    exchange.event(TOKEN).await?;
                    exchange.end_stream().await
                })
            }
        })
        .await;
        let proxy = Setup::new().pool("p", &fleet, keys).start().await;
        let mut client = Client::connect(proxy.http).await;
        client.send("POST", CHAT, "", &streamed_chat("x")).await;
        let head = client.head().await.expect("the engine has not sent a token yet");
        if !first.is_empty() {
            assert_eq!(client.wire.chunk().await.unwrap().unwrap(), first.as_bytes());
        }
        gate.add_permits(1);
        let rest = client.wire.body(head.response_framing("POST")).await.unwrap();
        assert_eq!(String::from_utf8(rest).unwrap(), format!("data: {TOKEN}\n\ndata: [DONE]\n\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_kept_after_an_answer_that_was_held() {
    let fleet = Fleet::start(2, |exchange| Box::pin(second_serves(exchange))).await;
    let proxy = Setup::new().pool("p", &fleet, NO_EJECTION).section("retry", FREE_RETRIES).start().await;
    let mut client = Client::connect(proxy.http).await;
    for way in ["done", "plain", "reset", "error"] {
        let body = if way == "plain" { chat("x") } else { streamed_chat("x") };
        client.send("POST", CHAT, &format!("x-way: {way}\r\n"), &body).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!((response.status, response.attempts()), (200, 2), "{way}");
        let head = String::from_utf8_lossy(&response.head.raw).to_ascii_lowercase();
        assert_eq!(head.matches("\r\ndate:").count(), 1, "{way}: one header was written, {head}");
    }
}

/// The proxy before two simulated engines, as a test of the two together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_nothing_of_a_vllm_that_is_told_to_stop() {
    let engines: Vec<_> = (0..2).map(|_| SimEngine::start(EngineOptions::default()).unwrap()).collect();
    let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: 'http://{}'}}", engine.address())).collect();
    let text = format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
         logging: {{access_log: 'off', level: 'off'}}\nretry: {{{FREE_RETRIES}, statuses: [502, 503, 504]}}\n\
         pools:\n  - {{name: p, engine: vllm, policy: round_robin, backends: [{}], {NO_EJECTION}, timeouts: {{between_tokens: 500ms}}}}\n",
        backends.join(", ")
    );
    let config = warmgate::config::parse(&text, "test").unwrap();
    let server = warmgate::server::Server::start(config, None).await.unwrap();
    let address = server.addresses()[0];
    let prompt = |stream| serde_json::json!({"model": "sim-model", "prompt": "Hi", "max_tokens": 4, "stream": stream});
    common::eventually("both serve", || async {
        let response = client::get(server.admin_address(), "/backends").await.text();
        response.matches("\"state\": \"healthy\"").count() == 2
    })
    .await;
    engines[0].inject(Fault::Sigterm, None).unwrap();
    for number in 0..6 {
        let body = prompt(number % 2 == 0).to_string();
        let response = client::post(address, COMPLETIONS, "content-type: application/json\r\n", body.as_bytes()).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.text().contains("\"finish_reason\":\"length\""), "request {number}: {}", response.text());
    }
    assert!(engines[0].state().requests.faulted >= 2, "it was asked, and gave up");

    // What it had begun goes silent, and the client is told instead of waiting.
    engines[0].clear_faults();
    engines.iter().for_each(|engine| engine.inject(Fault::Slow { factor: 5.0 }, None).unwrap());
    let mut body = prompt(true);
    body["max_tokens"] = 1_000.into();
    let mut client = Client::connect(address).await;
    client.send("POST", COMPLETIONS, "content-type: application/json\r\n", body.to_string().as_bytes()).await;
    let head = client.head().await.unwrap();
    let serving =
        engines.iter().find(|engine| head.header("x-warmgate-backend") == Some(&engine.address().to_string()));
    serving.unwrap().inject(Fault::Sigterm, None).unwrap();
    let rest = within("the end of the stream", client.wire.body(head.response_framing("POST"))).await.unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("between_tokens_timeout") && !rest.contains("[DONE]"), "{rest}");
}
