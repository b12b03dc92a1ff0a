//! Forms of requests: the answer to each, what the backend saw, and whether the connection goes on.

use super::CHAT;
use crate::common::backend::Fleet;
use crate::common::client::Client;
use crate::common::proxy::Setup;
use crate::common::{chat, chat_of, hash};

/// What every form is followed by: a request that nobody must take for one.
const BEHIND: &str = "GET /smuggled HTTP/1.1\r\nhost: test\r\n\r\n";

fn post(fields: &str, body: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\n{fields}\r\n{body}")
}

/// Forms of a header, with their status and the error's code.
fn refused_headers() -> Vec<(&'static str, String, u16, &'static str)> {
    let chunked = "5\r\n{}   \r\n0\r\n\r\n";
    let fields = |fields: &str| post(fields, "{}");
    let many = "x: y\r\n".repeat(300);
    let mut forms = vec![
        ("a length and chunks", post("content-length: 4\r\ntransfer-encoding: chunked\r\n", chunked)),
        ("chunks and a length", post("transfer-encoding: chunked\r\ncontent-length: 4\r\n", chunked)),
        ("two lengths", fields("content-length: 2\r\ncontent-length: 3\r\n")),
        ("one length twice", fields("content-length: 2\r\ncontent-length: 2\r\n")),
        ("a list of lengths", fields("content-length: 2, 2\r\n")),
        ("a signed length", fields("content-length: +2\r\n")),
        ("a negative length", fields("content-length: -2\r\n")),
        ("a hexadecimal length", fields("content-length: 0x2\r\n")),
        ("a length without digits", fields("content-length:\r\n")),
        ("a length with a space", fields("content-length: 0 2\r\n")),
        ("a length beyond 64 bits", fields("content-length: 18446744073709551618\r\n")),
        ("a space before the colon", post("transfer-encoding : chunked\r\n", chunked)),
        ("a tab before the colon", fields("content-length\t: 2\r\n")),
        ("a folded field", post("x: a\r\n transfer-encoding: chunked\r\n", "")),
        ("a folded coding", post("transfer-encoding:\r\n chunked\r\n", chunked)),
        ("a control character before a coding", post("transfer-encoding: \x0bchunked\r\n", chunked)),
        ("a coding that only ends so", post("transfer-encoding: xchunked\r\n", chunked)),
        ("a coding in quotes", post("transfer-encoding: \"chunked\"\r\n", chunked)),
        ("two codings", post("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", chunked)),
        ("a list of codings", post("transfer-encoding: identity, chunked\r\n", chunked)),
        ("a bare LF behind a field", fields("x: a\ncontent-length: 2\r\n")),
        ("a bare CR within a field", fields("x: a\rcontent-length: 2\r\n")),
        ("a NUL within a field", fields("x: a\0b\r\ncontent-length: 2\r\n")),
        ("a line without a colon", fields("content-length 2\r\n")),
        ("a field without a name", fields(": 2\r\n")),
        ("bare LFs", format!("GET {CHAT} HTTP/1.1\nhost: test\n\n")),
        ("no Host", format!("GET {CHAT} HTTP/1.1\r\n\r\n")),
        ("two Hosts", fields("host: other\r\ncontent-length: 2\r\n")),
        (
            "chunks in HTTP/1.0",
            format!("POST {CHAT} HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
        ),
        ("HTTP/0.9", format!("GET {CHAT}\r\n\r\n")),
        ("HTTP/2.0 by name", format!("GET {CHAT} HTTP/2.0\r\nhost: test\r\n\r\n")),
        ("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("a space in the target", format!("GET {CHAT} x HTTP/1.1\r\nhost: test\r\n\r\n")),
        ("a tab for a space", format!("GET\t{CHAT}\tHTTP/1.1\r\nhost: test\r\n\r\n")),
        ("two spaces", format!("GET  {CHAT} HTTP/1.1\r\nhost: test\r\n\r\n")),
        ("a target without a slash", format!("GET {} HTTP/1.1\r\nhost: test\r\n\r\n", &CHAT[1..])),
        ("a target that is no path", "GET mailto:a@b HTTP/1.1\r\nhost: test\r\n\r\n".to_owned()),
        ("a target that is not encoded", format!("GET {CHAT}?<x> HTTP/1.1\r\nhost: test\r\n\r\n")),
        ("an asterisk for a path", "GET * HTTP/1.1\r\nhost: test\r\n\r\n".to_owned()),
        ("a URL of another host", format!("GET http://other{CHAT} HTTP/1.1\r\nhost: test\r\n\r\n")),
        ("a URL with a user", format!("GET http://a@test{CHAT} HTTP/1.1\r\nhost: test\r\n\r\n")),
        ("a tunnel", "CONNECT test:443 HTTP/1.1\r\nhost: test:443\r\n\r\n".to_owned()),
        ("a user in Host", format!("GET {CHAT} HTTP/1.1\r\nhost: a@test\r\n\r\n")),
        ("TLS", "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03".to_owned()),
        ("JSON", "{\"model\": \"m\"}\r\n\r\n".to_owned()),
    ]
    .into_iter()
    .map(|(name, bytes)| (name, bytes, 400, "invalid_request"))
    .collect::<Vec<_>>();
    forms.push(("300 fields", fields(&many), 431, "too_many_fields"));
    forms
}

/// Forms of a chunked body.
const REFUSED_BODIES: [(&str, &str); 14] = [
    ("a signed size", "+2\r\n{}\r\n0\r\n\r\n"),
    ("a negative size", "-2\r\n{}\r\n0\r\n\r\n"),
    ("a size with 0x", "0x2\r\n{}\r\n0\r\n\r\n"),
    ("a size with an underscore", "0_2\r\n{}\r\n0\r\n\r\n"),
    ("a space before a size", " 2\r\n{}\r\n0\r\n\r\n"),
    ("a space behind a size", "2 \r\n{}\r\n0\r\n\r\n"),
    ("no size", "\r\n{}\r\n0\r\n\r\n"),
    ("a size beyond 64 bits", "10000000000000002\r\n{}\r\n0\r\n\r\n"),
    ("a bare LF behind a size", "2\n{}\r\n0\r\n\r\n"),
    ("a bare LF behind a chunk", "2\r\n{}\n0\r\n\r\n"),
    ("more bytes than the size", "2\r\n{}x\r\n0\r\n\r\n"),
    ("a bare LF within an extension", "2;a\nb\r\n{}\r\n0\r\n\r\n"),
    ("a folded trailer", "2\r\n{}\r\n0\r\n x: y\r\n\r\n"),
    ("a bare CR at the end", "2\r\n{}\r\n0\r\n\rX"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_read_in_two_ways_is_answered_reaches_no_backend_and_ends_the_connection() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let bodies =
        REFUSED_BODIES.map(|(name, body)| (name, post("transfer-encoding: chunked\r\n", body), 400, "invalid_body"));
    let forms = [refused_headers(), bodies.to_vec()].concat();
    // The first request on a connection, and one behind another.
    for before in [0, 1] {
        for (name, bytes, status, code) in &forms {
            let mut client = Client::connect(proxy.http).await;
            for _ in 0..before {
                client.send("POST", CHAT, "", &chat("first")).await;
                assert_eq!(client.response("POST").await.unwrap().status, 200);
            }
            client.send_bytes(format!("{bytes}{BEHIND}").as_bytes()).await;
            let response = client.response("POST").await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((response.status, response.error_code().as_str()), (*status, *code), "{name}");
            assert_eq!(response.header("connection"), Some("close"), "{name}");
            assert!(client.wire.ends().await, "{name}: nothing is answered behind it");
        }
        let received = fleet.received();
        assert_eq!(received.len(), before * forms.len(), "only what was good came through: {received:?}");
    }
    proxy.let_go().await;
    let counted = proxy.metric("malformed_messages_total", "").await;
    assert_eq!(counted, 2.0 * forms.len() as f64, "each is counted");
    assert_eq!(proxy.metric("requests_total", "status=\"200\"").await, forms.len() as f64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unusual_but_clear_is_one_request_and_the_connection_goes_on() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let body = chat("x");
    let text = std::str::from_utf8(&body).unwrap();
    let length = body.len();
    let chunks = |extension: &str, trailer: &str| format!("{length:X}{extension}\r\n{text}\r\n00\r\n{trailer}\r\n");
    let forms = [
        ("an empty line in front", format!("\r\n\r\n{}", post(&format!("content-length: {length}\r\n"), text)), true),
        ("odd letters", post(&format!("CONTENT-length:\t00{length} \t\r\nX-Empty:\r\n"), text), true),
        (
            "a whole URL",
            format!("POST http://test{CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{text}"),
            true,
        ),
        (
            "an expectation in HTTP/1.0, which has no answer to it",
            format!("POST {CHAT} HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n{text}"),
            false,
        ),
        // The connection ends, as behind every chunked body.
        ("an extension and a trailer", post("transfer-encoding: CHUNKED\r\n", &chunks(";a=\"b\"", "x: y\r\n")), false),
    ];
    for (at, (name, bytes, goes_on)) in forms.iter().enumerate() {
        let mut client = Client::connect(proxy.http).await;
        client.send_bytes(bytes.as_bytes()).await;
        let response = client.response("POST").await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (response.status, response.json::<serde_json::Value>()["hash"].clone()),
            (200, hash(&body).into()),
            "{name}"
        );
        let mut received = fleet.received();
        received.retain(|request| request.head.method() == "POST");
        assert_eq!(received.len(), at + 1, "{name}");
        let head = &received[at].head;
        let framing = (head.header("content-length"), head.header("transfer-encoding"));
        assert_eq!(framing, (Some(length.to_string().as_str()), None), "{name}: it is framed anew");
        assert_eq!(head.second_word(), CHAT, "{name}: backends are asked for a path");
        if *goes_on {
            client.send("GET", "/v1/models", "", b"").await;
            assert_eq!(client.response("GET").await.unwrap().status, 200, "{name}: the connection goes on");
        }
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_come_one_by_one_are_the_same_requests() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let body = chat_of(300, 1);
    let mut client = Client::connect(proxy.http).await;
    for _ in 0..2 {
        let head = post(&format!("content-length: {}\r\n", body.len()), "");
        for byte in head.bytes().chain(body.iter().copied()) {
            client.send_bytes(&[byte]).await;
        }
        let response = client.response("POST").await.unwrap();
        assert_eq!(response.json::<serde_json::Value>()["hash"], hash(&body));
    }
    let both = format!("{BEHIND}{BEHIND}");
    client.send_bytes(both.as_bytes()).await;
    for _ in 0..2 {
        assert_eq!(client.response("GET").await.unwrap().status, 200, "two in one piece are two");
    }
    proxy.let_go().await;
}
