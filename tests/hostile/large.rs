//! Clients that send much.

use std::time::Duration;

use serde_json::Value;

use super::CHAT;
use crate::common::backend::Fleet;
use crate::common::client::{self, Client};
use crate::common::h2c::{self, Length};
use crate::common::proxy::Setup;
use crate::common::{chat, chat_of, hash, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_of_a_megabyte_gets_431_and_a_long_path_414_in_our_form_and_a_line_in_the_log() {
    let fleet = Fleet::echo(1).await;
    let log = std::env::temp_dir().join(format!("warmgate-hostile-{}.log", std::process::id()));
    let proxy = Setup::of(&fleet).access_log(&log).start().await;
    let one = format!("GET / HTTP/1.1\r\nhost: test\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\nhost: test\r\n{}\r\n", format!("x: {}\r\n", "y".repeat(8000)).repeat(130));
    let path = format!("GET /{} HTTP/1.1\r\nhost: test\r\n\r\n", "p".repeat(100_000));
    for (bytes, status, code) in
        [(&one, 431, "header_too_large"), (&many, 431, "header_too_large"), (&path, 414, "target_too_long")]
    {
        let mut client = Client::connect(proxy.http).await;
        client.send_bytes(bytes.as_bytes()).await;
        let response = client.response("GET").await.expect("the answer is not lost to a reset");
        assert_eq!((response.status, response.error_code().as_str()), (status, code));
        assert!(client.wire.ends().await);
    }
    assert!(fleet.received().is_empty());
    proxy.let_go().await;
    proxy.server.state().flush_logs();
    let lines = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    let statuses: Vec<_> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone()).collect();
    assert_eq!(statuses, [431, 431, 414]);
    assert!(lines.len() < 3000, "the log holds nothing of what was sent: {} bytes", lines.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_without_end_are_refused() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for body in [format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "x".repeat(20_000)), "1;aaaaaaaaaaaaaaaa\r\nx\r\n".repeat(2000)] {
        let mut client = Client::connect(proxy.http).await;
        client.send_head("POST", CHAT, "transfer-encoding: chunked\r\n").await;
        client.send_bytes(body.as_bytes()).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_body"));
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_in_chunks_of_one_byte_arrives() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let body = chat_of(200_000, 1);
    let mut bytes = Vec::with_capacity(body.len() * 6);
    for &byte in &body {
        bytes.extend_from_slice(&[b'1', b'\r', b'\n', byte, b'\r', b'\n']);
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    let mut client = Client::connect(proxy.http).await;
    client.send_head("POST", CHAT, "transfer-encoding: chunked\r\n").await;
    client.send_bytes(&bytes).await;
    let response = client.response("POST").await.unwrap();
    assert_eq!(response.json::<Value>()["hash"], hash(&body));
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_beyond_the_budget_wait_or_get_503_and_never_hold_more_than_it() {
    const BUDGET: f64 = (8 << 20) as f64;
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.body().await?;
            exchange.respond(200, "{}").await
        })
    })
    .await;
    let limits = "max_body_bytes: 4MiB, max_buffered_bytes: 8MiB, buffer_wait: 200ms";
    let proxy = Setup::of(&fleet).section("limits", limits).start().await;
    // Each holds half a body, and goes on only when all have their part or were refused.
    let body = chat_of(2 << 20, 7);
    let half = body.len() / 2;
    let mut clients = Vec::new();
    for at in 0..24 {
        let mut client = Client::connect(proxy.http).await;
        match at % 2 {
            0 => client.send_head("POST", CHAT, &format!("content-length: {}\r\n", body.len())).await,
            _ => {
                client.send_head("POST", CHAT, "transfer-encoding: chunked\r\n").await;
                client.send_bytes(format!("{:x}\r\n", body.len()).as_bytes()).await;
            }
        }
        clients.push((at, client));
    }
    let part = |range: std::ops::Range<usize>| body[range].to_vec();
    let (first, rest) = (part(0..half), part(half..body.len()));
    let sending = clients.into_iter().map(|(at, mut client)| {
        let (first, mut rest) = (first.clone(), rest.clone());
        if at % 2 == 1 {
            rest.extend_from_slice(b"\r\n0\r\n\r\n");
        }
        tokio::spawn(async move {
            client.send_bytes(&first).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            client.send_bytes(&rest).await;
            client.response("POST").await.map(|response| response.status)
        })
    });
    let sending: Vec<_> = sending.collect();
    while !sending.iter().all(tokio::task::JoinHandle::is_finished) {
        let held = proxy.held().await.body_bytes;
        assert!(held <= BUDGET, "{held} bytes are held");
    }
    let mut served = 0;
    for sent in sending {
        let status = within("an answer", sent).await.unwrap().expect("there is an answer");
        assert!(matches!(status, 200 | 503), "{status}");
        served += usize::from(status == 200);
    }
    assert!(served >= 1, "those that fit are served");
    proxy.let_go().await;
    assert_eq!(client::post(proxy.http, CHAT, "", &chat("x")).await.status, 200, "and afterwards there is room again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_without_measure_is_passed_on_or_refused_and_never_ends_the_process() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let deep = |open: &str, close: &str| {
        format!("{{\"model\":\"m\",\"prompt\":{}1{}}}", open.repeat(200_000), close.repeat(200_000))
    };
    let cases = [
        ("deep lists", deep("[", "]"), 200),
        ("deep objects", deep("{\"a\":", "}"), 200),
        // Nesting beyond a bound is not followed, so that nothing is wrong with it.
        ("deep and cut", "[".repeat(500_000), 200),
        ("a long key", format!("{{\"model\":\"m\",\"{}\":1}}", "k".repeat(1 << 20)), 200),
        ("many keys", format!("{{\"model\":\"m\"{}}}", ",\"k\":1".repeat(200_000)), 200),
        ("a long number", format!("{{\"model\":\"m\",\"max_tokens\":{}}}", "9".repeat(1 << 20)), 200),
        ("NaN", "{\"model\":\"m\",\"max_tokens\":NaN}".to_owned(), 400),
        ("Infinity", "{\"model\":\"m\",\"max_tokens\":-Infinity}".to_owned(), 400),
        ("a large exponent", "{\"model\":\"m\",\"max_tokens\":1e999999999}".to_owned(), 200),
        ("lone surrogates", format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "\\ud800".repeat(100_000)), 200),
        (
            "many messages",
            format!(
                "{{\"model\":\"m\",\"messages\":[{}{{}}]}}",
                "{\"role\":\"user\",\"content\":\"\"},".repeat(50_000)
            ),
            200,
        ),
    ];
    for (name, body, status) in cases {
        for path in [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"] {
            let response = client::post(proxy.http, path, "", body.as_bytes()).await;
            assert_eq!(response.status, status, "{name} to {path}: {}", response.text());
        }
        let response = h2c::post(proxy.h2c, CHAT, &[], body.as_bytes(), Length::Unstated).await;
        assert_eq!(response.status, status, "{name} over HTTP/2");
    }
    proxy.let_go().await;
}
