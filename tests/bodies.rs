//! Request bodies: what the client sends is what the backend gets, whatever the size and framing, within the limits.

mod common;

use std::time::Duration;

use common::backend::Fleet;
use common::client::{self, Client, Response, chunked};
use common::h2c::{self, H2, Length};
use common::proxy::Setup;
use common::{chat_of, hash, within};
use serde_json::Value;

const CHAT: &str = "/v1/chat/completions";
const SIZES: [usize; 6] = [0, 10, 64 * 1024, 64 * 1024 + 1, 1024 * 1024, 16 * 1024 * 1024];

/// That the backend got exactly `body`, with its length stated.
#[track_caller]
fn assert_arrived(what: &str, body: &[u8], response: &Response) {
    assert_eq!(response.status, 200, "{what} of {} bytes is served: {}", body.len(), response.text());
    let got: Value = response.json();
    assert_eq!(got["length"], body.len(), "the length of {what} arrives");
    assert_eq!(got["hash"], hash(body), "the bytes of {what} arrive");
    if !body.is_empty() {
        assert_eq!(got["framing"], "content-length", "{what} goes upstream with its length");
    }
}

fn body_of(size: usize) -> Vec<u8> {
    if size == 0 { Vec::new() } else { chat_of(size, size as u64) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_with_a_content_length_arrives_unchanged() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for body in SIZES.map(body_of) {
        assert_arrived("a body with a length", &body, &client::post(proxy.http, CHAT, "", &body).await);
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_comes_with_its_header() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async {
            let (ahead, length) = (exchange.ahead(), exchange.body().await?.len());
            exchange.respond(200, &format!("{ahead} of {length}")).await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).start().await;
    let body = body_of(4 * 1024);
    let whole = format!("{0} of {0}", body.len());
    let mut client = Client::connect(proxy.http).await;
    for turn in 0..100 {
        client.send("POST", CHAT, "", &body).await;
        assert_eq!(client.response("POST").await.unwrap().text(), whole, "in request {turn}");
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunked_body_arrives_unchanged_and_with_its_length() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for body in SIZES.map(body_of) {
        let mut client = Client::connect(proxy.http).await;
        client.send_chunked(CHAT, "", &body).await;
        assert_arrived("a chunked body", &body, &client.response("POST").await.unwrap());
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_expects_100_continue_is_told_to_and_its_body_arrives_unchanged() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for body in SIZES.map(body_of).into_iter().filter(|body| !body.is_empty()) {
        for is_chunked in [false, true] {
            let mut client = Client::connect(proxy.http).await;
            let framing = match is_chunked {
                true => "transfer-encoding: chunked\r\n".to_owned(),
                false => format!("content-length: {}\r\n", body.len()),
            };
            client.send_head("POST", CHAT, &format!("{framing}expect: 100-continue\r\n")).await;
            assert!(client.continued().await, "100 Continue comes before any byte of the body is sent");
            client.send_bytes(&if is_chunked { chunked(&body) } else { body.clone() }).await;
            let response = client.response("POST").await.unwrap();
            assert_arrived("an expected body", &body, &response);
            assert_eq!(response.head.header("connection"), Some("keep-alive"), "the 100 does not end the connection");
        }
    }
    let received = fleet.received();
    assert!(received.iter().all(|request| request.head.header("expect").is_none()), "`Expect` is ours alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_http_2_arrives_unchanged_with_and_without_its_length() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for body in SIZES.map(body_of) {
        for length in [Length::Stated, Length::Unstated] {
            let response = h2c::post(proxy.h2c, CHAT, &[], &body, length).await;
            assert_arrived("an HTTP/2 body", &body, &response);
        }
        let response = h2c::post(proxy.h2c, CHAT, &[("expect", "100-continue")], &body, Length::Stated).await;
        assert_arrived("an expected HTTP/2 body", &body, &response);
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_json_arrive_where_the_endpoint_carries_no_prompt() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let mut rng = fastrand::Rng::with_seed(7);
    let body: Vec<u8> = (0..200_000).map(|_| rng.u8(..)).collect();
    assert_arrived("a binary body", &body, &client::post(proxy.http, "/v1/audio/transcriptions", "", &body).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_limit_gets_413_in_every_framing_and_reaches_no_backend() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "max_body_bytes: 64KiB").start().await;
    for size in [64 * 1024 + 1, 300_000, 2_000_000] {
        let body = chat_of(size, 1);
        let sized = client::post(proxy.http, CHAT, "", &body).await;
        let mut client = Client::connect(proxy.http).await;
        client.send_chunked(CHAT, "", &body).await;
        let in_chunks = client.response("POST").await.expect("the reply is not lost in a reset");
        let stated = h2c::post(proxy.h2c, CHAT, &[], &body, Length::Stated).await;
        let unstated = h2c::post(proxy.h2c, CHAT, &[], &body, Length::Unstated).await;
        for (what, response) in
            [("content-length", sized), ("chunked", in_chunks), ("h2 with length", stated), ("h2 without", unstated)]
        {
            assert_eq!(response.status, 413, "{what}, {size} bytes: {}", response.text());
            assert_eq!(response.error_code(), "request_too_large", "{what}: the error has OpenAI's form");
        }
    }
    assert!(fleet.received().is_empty(), "no backend is bothered");
    let body = chat_of(64 * 1024, 1);
    assert_arrived("a body of the limit's size", &body, &client::post(proxy.http, CHAT, "", &body).await);
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_2_connection_goes_on_after_a_413_on_one_of_its_streams() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "max_body_bytes: 64KiB").start().await;
    let h2 = H2::connect(proxy.h2c).await;
    for _ in 0..3 {
        let body = chat_of(400_000, 1);
        let mut stream = h2.post(CHAT, &[], body.len(), Length::Unstated).await;
        let _ = stream.send(&body, true).await;
        assert_eq!(stream.response().await.expect("the 413 comes through").status, 413);
    }
    let body = chat_of(60_000, 2);
    let mut stream = h2.post(CHAT, &[], body.len(), Length::Stated).await;
    stream.send(&body, true).await.expect("the window is whole again");
    assert_arrived("the next stream's body", &body, &stream.response().await.unwrap());
}

/// A client that has sent all of its body but the last byte, which holds a budget of 1 MiB; and that body.
async fn holder_of_the_budget(proxy: &common::proxy::Proxy) -> (Vec<u8>, Client) {
    let whole = chat_of(1024 * 1024, 1);
    let mut holder = Client::connect(proxy.http).await;
    holder.send_head("POST", CHAT, &format!("content-length: {}\r\n", whole.len())).await;
    holder.send_bytes(&whole[..whole.len() - 1]).await;
    common::eventually("the first body holds the budget", || async { proxy.held().await.body_bytes == 1048576.0 })
        .await;
    (whole, holder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_room_for_its_body_waits_then_gets_503_and_retry_after() {
    let fleet = Fleet::echo(1).await;
    let limits = "max_body_bytes: 1MiB, max_buffered_bytes: 1MiB, buffer_wait: 300ms";
    let proxy = Setup::of(&fleet).section("limits", limits).start().await;
    let (whole, mut holder) = holder_of_the_budget(&proxy).await;

    let refused = client::post(proxy.http, CHAT, "", &chat_of(100_000, 2)).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "overloaded"));
    assert_eq!(refused.header("retry-after"), Some("1"), "shedding says when to come back");
    let refused = h2c::post(proxy.h2c, CHAT, &[], &chat_of(100_000, 2), Length::Unstated).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "the same over HTTP/2");

    holder.send_bytes(&whole[whole.len() - 1..]).await;
    assert_arrived("the body that held the budget", &whole, &holder.response("POST").await.unwrap());
    proxy.let_go().await;
    assert_eq!(proxy.metric("requests_total", "reason=\"no_room\"").await, 2.0, "and is counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_room_gets_through_when_there_is_some() {
    let fleet = Fleet::echo(1).await;
    let limits = "max_body_bytes: 1MiB, max_buffered_bytes: 1MiB, buffer_wait: 20s";
    let proxy = Setup::of(&fleet).section("limits", limits).start().await;
    let (whole, mut holder) = holder_of_the_budget(&proxy).await;

    let body = chat_of(100_000, 2);
    let waiting = tokio::spawn({
        let (address, body) = (proxy.http, body.clone());
        async move { client::post(address, CHAT, "", &body).await }
    });
    common::eventually("the second request is being served", || async { proxy.held().await.requests == 2.0 }).await;
    holder.send_bytes(&whole[whole.len() - 1..]).await;
    assert_arrived("the body that held the budget", &whole, &holder.response("POST").await.unwrap());
    assert_arrived("the body that waited", &body, &waiting.await.unwrap());
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stalls_in_its_body_gets_408() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "body_timeout: 1s").start().await;
    let mut sized = Client::connect(proxy.http).await;
    sized.send_head("POST", CHAT, "content-length: 100000\r\n").await;
    sized.send_bytes(&[b'x'; 1000]).await;
    let mut in_chunks = Client::connect(proxy.http).await;
    in_chunks.send_head("POST", CHAT, "transfer-encoding: chunked\r\n").await;
    in_chunks.send_bytes(b"5\r\nhello\r\n").await;
    let h2 = H2::connect(proxy.h2c).await;
    let mut stream = h2.post(CHAT, &[], 100_000, Length::Stated).await;
    stream.send(b"hello", false).await.unwrap();
    for (what, response) in [
        ("content-length", sized.response("POST").await.unwrap()),
        ("chunked", in_chunks.response("POST").await.unwrap()),
        ("h2", stream.response().await.unwrap()),
    ] {
        assert_eq!((response.status, response.error_code().as_str()), (408, "body_timeout"), "{what}");
    }
    assert!(sized.wire.ends().await, "the connection is closed: the rest of the body may still come");
    assert!(fleet.received().is_empty(), "a body that is not whole reaches no backend");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_serves_requests_of_any_size_one_after_another() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::new().pool("p", &fleet, "models: [m]").start().await;
    let mut client = Client::connect(proxy.http).await;
    for (turn, size) in [70, 100_000, 64 * 1024, 200, 3_000_000, 70, 65_537].into_iter().enumerate() {
        let body = chat_of(size, turn as u64);
        client.send("POST", CHAT, "", &body).await;
        assert_arrived("a body on a kept connection", &body, &client.response("POST").await.unwrap());
        // After our own errors as well.
        client.send("POST", CHAT, "", b"{\"model\": nonsense").await;
        assert_eq!(client.response("POST").await.unwrap().status, 400, "turn {turn}: bad JSON");
        client.send("POST", CHAT, "", br#"{"model": "no-such", "messages": []}"#).await;
        assert_eq!(client.response("POST").await.unwrap().status, 404, "turn {turn}: unknown model");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_are_all_answered_in_order() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let bodies: Vec<_> = (0..4).map(|number| chat_of(500 + number, number as u64)).collect();
    let mut bytes = Vec::new();
    for body in &bodies {
        bytes.extend_from_slice(
            format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(),
        );
        bytes.extend_from_slice(body);
    }
    let mut client = Client::connect(proxy.http).await;
    client.send_bytes(&bytes).await;
    for body in &bodies {
        assert_arrived("a pipelined body", body, &client.response("POST").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_pipelined_behind_one_that_is_refused_is_answered() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let body = chat_of(500, 1);
    let mut bytes = format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: 7\r\n\r\nno json").into_bytes();
    bytes.extend_from_slice(
        format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(),
    );
    bytes.extend_from_slice(&body);
    let mut client = Client::connect(proxy.http).await;
    client.send_bytes(&bytes).await;
    assert_eq!(client.response("POST").await.unwrap().status, 400);
    assert_arrived("the body behind it", &body, &client.response("POST").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_nobody_wants_is_passed_over_before_an_answer_of_our_own() {
    let (a, b) = (Fleet::echo(1).await, Fleet::echo(1).await);
    let proxy = Setup::new().pool("a", &a, "models: [a]").pool("b", &b, "models: [b]").start().await;
    let mut client = Client::connect(proxy.http).await;
    for body in [vec![b'x'; 10], vec![b'x'; 200_000]] {
        client.send("GET", "/v1/models", "", &body).await;
        let response = client.response("GET").await.unwrap();
        assert_eq!((response.status, response.header("connection")), (200, Some("keep-alive")), "{}", body.len());
    }
    client.send("GET", "/v1/models", "", &vec![b'x'; 2_000_000]).await;
    let response = client.response("GET").await.expect("the reply is not lost in a reset");
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    let mut client = Client::connect(proxy.http).await;
    client.send_head("GET", "/v1/models", "content-length: 5\r\nexpect: 100-continue\r\n").await;
    let response = within("an answer", client.response("GET")).await.unwrap();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")), "nobody is asked for it");
    assert!(a.received().is_empty() && b.received().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_pipelined_behind_a_chunked_one_is_served() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let bodies = [chat_of(3000, 1), chat_of(300_000, 2), chat_of(10, 3)];
    let mut bytes = Vec::new();
    for body in &bodies {
        bytes.extend_from_slice(
            format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes(),
        );
        bytes.extend_from_slice(&chunked(body));
    }
    let mut client = Client::connect(proxy.http).await;
    client.send_bytes(&bytes).await;
    for body in &bodies {
        assert_arrived("a chunked body", body, &client.response("POST").await.unwrap());
    }
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_chunks_get_400_and_reach_no_backend() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    for broken in [
        "xyz\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloworld\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n",
    ] {
        let mut client = Client::connect(proxy.http).await;
        client.send_head("POST", CHAT, "transfer-encoding: chunked\r\n").await;
        client.send_bytes(broken.as_bytes()).await;
        let response = client.response("POST").await.unwrap_or_else(|error| panic!("{broken:?}: {error}"));
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_body"), "{broken:?}");
        assert!(client.wire.ends().await, "{broken:?}: nobody knows where the next request would begin");
    }
    assert!(fleet.received().is_empty());
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_uploads_leaves_nothing_behind() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let part = vec![b'x'; 200_000];
    for round in 0..3 {
        let (mut sized, mut in_chunks) = (Client::connect(proxy.http).await, Client::connect(proxy.http).await);
        sized.send_head("POST", CHAT, "content-length: 1000000\r\n").await;
        in_chunks.send_head("POST", CHAT, "transfer-encoding: chunked\r\n").await;
        in_chunks.send_bytes(b"100000\r\n").await;
        sized.send_bytes(&part).await;
        in_chunks.send_bytes(&part).await;
        let h2 = H2::connect(proxy.h2c).await;
        let mut stream = h2.post(CHAT, &[], 1_000_000, Length::Unstated).await;
        stream.send(&part, false).await.unwrap();
        common::eventually("three bodies are being read", || async { proxy.held().await.requests == 3.0 }).await;
        if round == 0 {
            drop((sized, in_chunks));
            drop((stream, h2));
        } else {
            sized.wire.reset();
            in_chunks.wire.reset();
            stream.reset();
        }
        proxy.let_go().await;
    }
    assert!(fleet.received().is_empty(), "a body that is not whole reaches no backend");
    assert_eq!(proxy.metric("requests_total", "reason=\"client_gone\"").await, 9.0, "each is counted as one that left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_comes_slowly_arrives_whole() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let body = chat_of(70_000, 1);
    let mut client = Client::connect(proxy.http).await;
    client.send_head("POST", CHAT, &format!("content-length: {}\r\n", body.len())).await;
    let mut h2 = H2::connect(proxy.h2c).await.post(CHAT, &[], body.len(), Length::Stated).await;
    let mut parts = body.chunks(7919).peekable();
    while let Some(part) = parts.next() {
        client.send_bytes(part).await;
        h2.send(part, parts.peek().is_none()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_arrived("a slow body", &body, &client.response("POST").await.unwrap());
    assert_arrived("a slow HTTP/2 body", &body, &within("the answer", h2.response()).await.unwrap());
}
