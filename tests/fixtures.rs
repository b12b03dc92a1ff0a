//! Recorded exchanges with real engines, replayed byte for byte through the proxy.
//!
//! The recordings are not part of the project: they lie in `../shared` beside the checkout, or where the environment
//! variable `WARMGATE_SHARED` points. Where neither exists the tests say so and pass.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, one that is skipped says so"
)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use common::backend::Fleet;
use common::client::{Client, Response};
use common::h2c::{H2, Length};
use common::proxy::{Proxy, Setup};
use common::streamed_chat;
use common::wire::{Framing, Head};
use parking_lot::Mutex;

/// What a proxy may change: fields of one hop, and what it adds.
const NOT_COMPARED: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "te"];

/// Files below `folder` with this suffix, by name without it; the tails of streams, which begin without a head, left
/// out.
fn recordings(folder: &str, suffix: &str) -> BTreeMap<String, Vec<u8>> {
    let shared = std::env::var_os("WARMGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")), PathBuf::from);
    let folder = shared.join("fixtures/vllm").join(folder);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no recordings at {}", folder.display());
        return BTreeMap::new();
    };
    let found = entries.map(|entry| entry.unwrap().path()).filter_map(|path| {
        let name = path.file_name()?.to_str()?.strip_suffix(suffix)?.to_owned();
        Some((name, std::fs::read(&path).unwrap()))
    });
    found.filter(|(_, bytes)| suffix != ".resp" || bytes.starts_with(b"HTTP/")).collect()
}

/// The responses in `bytes`, each from its status line on.
fn responses(bytes: &[u8]) -> Vec<Vec<u8>> {
    let starts: Vec<usize> = memchr::memmem::find_iter(bytes, b"HTTP/1.1 ").collect();
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    starts.iter().zip(ends).map(|(&start, end)| bytes[start..end].to_vec()).collect()
}

/// A recorded message taken apart: head, body without chunk framing, and whether the body is whole.
fn decode(bytes: &[u8], method: &str) -> (Head, Vec<u8>, bool) {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n").expect("a recording has a head") + 4;
    let head = Head::parse(bytes[..end].to_vec());
    let framing =
        if head.start_line.starts_with("HTTP/") { head.response_framing(method) } else { head.request_framing() };
    let rest = &bytes[end..];
    match framing {
        Framing::Chunked => {
            let (body, is_whole) = unchunk(rest);
            (head, body, is_whole)
        }
        Framing::Length(length) => (head, rest[..length.min(rest.len())].to_vec(), rest.len() >= length),
        Framing::None => (head, Vec::new(), true),
        Framing::UntilClose => (head, rest.to_vec(), true),
    }
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(line) = memchr::memmem::find(rest, b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
    }
    (body, false)
}

fn compared(head: &Head) -> BTreeMap<&str, &str> {
    let is_compared = |name: &str| !NOT_COMPARED.contains(&name) && !name.starts_with("x-warmgate-");
    head.headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(name, _)| is_compared(name))
        .collect()
}

/// A backend that gives its next request the next of `answers`, and closes after the last one.
async fn replaying(answers: &Arc<Mutex<Vec<Vec<u8>>>>) -> Fleet {
    let answers = Arc::clone(answers);
    Fleet::start(1, move |exchange| {
        let answers = Arc::clone(&answers);
        Box::pin(async move {
            exchange.body().await?;
            let (answer, is_last) = {
                let mut answers = answers.lock();
                (answers.remove(0), answers.is_empty())
            };
            exchange.raw(&answer).await?;
            if is_last {
                exchange.close();
            }
            Ok(())
        })
    })
    .await
}

fn assert_same(name: &str, recorded: &[u8], method: &str, response: &Response) {
    let (head, body, _) = decode(recorded, method);
    assert_same_but(&[], name, (&head, &body), response);
    let received = lines(&response.head);
    for line in lines(&head) {
        assert!(received.contains(&line), "{name}: {line:?} arrives byte for byte: {received:?}");
    }
}

/// The header lines as they are on the wire, for those that are compared.
fn lines(head: &Head) -> Vec<String> {
    let fields = compared(head);
    let text = String::from_utf8_lossy(&head.raw);
    let is_compared =
        |line: &&str| line.split_once(':').is_some_and(|(name, _)| fields.contains_key(&*name.to_lowercase()));
    text.split("\r\n").filter(is_compared).map(str::to_owned).collect()
}

/// The same, for HTTP/2: Pingora overwrites the date there, and nothing that is public keeps it from that.
fn assert_same_h2(name: &str, recorded: &[u8], response: &Response) {
    let (head, body, _) = decode(recorded, "POST");
    assert_same_but(&["date"], &format!("{name} over HTTP/2"), (&head, &body), response);
}

fn assert_same_but(exceptions: &[&str], name: &str, (head, body): (&Head, &[u8]), response: &Response) {
    let compared = |head| {
        let mut fields = compared(head);
        fields.retain(|field, _| !exceptions.contains(field));
        fields
    };
    assert_eq!(response.status.to_string(), head.second_word(), "{name}: the status");
    assert_eq!(compared(&response.head), compared(head), "{name}: the header fields");
    assert!(response.body == body, "{name}: the body; {} bytes for {}", response.body.len(), body.len());
}

async fn fetch_h2(proxy: &Proxy, body: &[u8]) -> Result<Response, h2::Error> {
    let mut stream = H2::connect(proxy.h2c).await.post("/v1/chat/completions", &[], body.len(), Length::Stated).await;
    stream.send(body, true).await?;
    stream.response().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_response_comes_out_as_the_engine_sent_it() {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let fleet = replaying(&answers).await;
    // With held headers, those that an engine gives up are no answers: they go elsewhere.
    let settings = "ejection: {failures: 1000}, hold_header: false";
    let proxy = Setup::new().pool("p", &fleet, settings).start().await;
    let mut recordings = recordings("http", ".resp");
    recordings.append(&mut self::recordings("behaviour", ".resp"));
    // A response to HEAD is compared with its request, below.
    recordings.remove("health-head");
    assert!(recordings.is_empty() || recordings.len() > 100, "all the recordings are found: {}", recordings.len());
    for (name, bytes) in &recordings {
        for recorded in responses(bytes).iter().filter(|response| !response.starts_with(b"HTTP/1.1 100")) {
            let (_, partial, is_whole) = decode(recorded, "POST");
            answers.lock().push(recorded.clone());
            let mut client = Client::connect(proxy.http).await;
            client.send("POST", "/v1/chat/completions", "", &streamed_chat(name)).await;
            if is_whole {
                assert_same(name, recorded, "POST", &client.response("POST").await.unwrap());
                answers.lock().push(recorded.clone());
                let response = fetch_h2(&proxy, &streamed_chat(name)).await;
                assert_same_h2(name, recorded, &response.unwrap());
                continue;
            }
            let head = client.head().await.unwrap();
            let (recorded_head, ..) = decode(recorded, "POST");
            assert_eq!(compared(&head), compared(&recorded_head), "{name}: the header fields");
            let body = client.wire.body(head.response_framing("POST")).await;
            // A stream says so in an event; what is no stream ends in the middle.
            let is_told = |body: &[u8]| {
                body.starts_with(&partial) && body[partial.len()..].trim_ascii_start().starts_with(b"data: {\"error\"")
            };
            let is_right = body.as_ref().map_or(true, |body| is_told(body));
            assert!(is_right, "{name}: an answer that was cut off is not made whole: {body:?}");
        }
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_request_is_served_as_the_engine_served_it() {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let fleet = replaying(&answers).await;
    let proxy = Setup::new().pool("p", &fleet, "ejection: {failures: 1000}").start().await;
    let recorded_answers = recordings("http", ".resp");
    for (name, request) in recordings("http", ".req") {
        let mut client = Client::connect(proxy.http).await;
        if name == "err-bad-json" || name == "err-garbage" {
            client.send_bytes(&request).await;
            let response = client.response("POST").await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(response.status, 400, "{name}: what is no JSON, or no HTTP, is refused here");
            assert!(name != "err-bad-json" || response.error_code() == "invalid_json", "{name}: {}", response.text());
            continue;
        }
        // Nobody asked for it: `Expect` is answered here.
        let mut expected = responses(&recorded_answers[&name]);
        expected.retain(|response| !response.starts_with(b"HTTP/1.1 100"));
        answers.lock().clone_from(&expected);
        let before = fleet.received().len();
        client.send_bytes(&request).await;
        let (sent, ..) = decode(&request, "");
        for recorded in &expected {
            let response = client.response(sent.method()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_same(&name, recorded, sent.method(), &response);
        }
        let received = &fleet.received()[before];
        let target = |head: &Head| (head.method().to_owned(), head.second_word().to_owned());
        assert_eq!(target(&received.head), target(&sent), "{name}: method and target arrive as they were sent");
        assert_request_fields(&name, &sent, &received.head);
    }
    proxy.let_go().await;
}

/// That the header fields of a request arrived, those of one hop and of framing aside.
fn assert_request_fields(name: &str, sent: &Head, received: &Head) {
    let ours = ["x-request-id", "content-length", "expect"];
    let fields = |head| {
        let mut fields = compared(head);
        fields.retain(|field, _| !ours.contains(field));
        fields
    };
    assert_eq!(fields(received), fields(sent), "{name}: the request's header fields");
    if let Some(id) = sent.header("x-request-id") {
        assert_eq!(received.header("x-request-id"), Some(id), "{name}: the client's request id");
    }
}
