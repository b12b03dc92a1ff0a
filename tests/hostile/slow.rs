//! Clients that take their time.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use super::CHAT;
use crate::common::backend::Fleet;
use crate::common::client::{self, Client};
use crate::common::h2c::{self, Length};
use crate::common::proxy::Setup;
use crate::common::{chat, within};

const PAUSE: Duration = Duration::from_millis(50);

/// Sends a header without end, a byte at a time, until the other side has had enough.
async fn trickle(client: &mut Client) {
    let bytes = b"POST / HTTP/1.1\r\nhost: test\r\nx: ".iter().copied().chain(std::iter::repeat(b'x'));
    for byte in bytes {
        if client.wire.stream.write_all(&[byte]).await.is_err() {
            return;
        }
        let mut ready = [0];
        tokio::select! {
            peeked = client.wire.stream.peek(&mut ready) => {
                peeked.unwrap();
                return;
            }
            () = sleep(PAUSE) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_trickles_in_gets_408_on_a_new_connection_and_on_a_kept_one() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "header_timeout: 1s").start().await;
    for before in [0, 1] {
        let mut client = Client::connect(proxy.http).await;
        for _ in 0..before {
            client.send("POST", CHAT, "", &chat("first")).await;
            assert_eq!(client.response("POST").await.unwrap().status, 200);
            // Longer than the limit: the pause between requests is not a part of the next one's header.
            sleep(Duration::from_millis(1100)).await;
        }
        let begun = Instant::now();
        trickle(&mut client).await;
        let response = client.response("POST").await.unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (408, "header_timeout"));
        assert!(begun.elapsed() >= Duration::from_millis(900), "not before its time: {:?}", begun.elapsed());
        assert!(client.wire.ends().await);
    }
    proxy.let_go().await;
    assert_eq!(proxy.metric("malformed_messages_total", "slow_header").await, 2.0);
    assert_eq!(proxy.metric("requests_total", "reason=\"header_timeout\"").await, 2.0);
    assert_eq!(fleet.received().len(), 1, "only the good one reached a backend");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_ends_a_connection_without_an_answer() {
    let fleet = Fleet::echo(1).await;
    let keys = "header_timeout: 200ms";
    let proxy = Setup::of(&fleet).section("limits", keys).section("server", "keepalive_timeout: 1s").start().await;
    let mut silent = Client::connect(proxy.http).await;
    assert!(silent.wire.ends().await, "a new connection");
    assert_eq!(proxy.metric("malformed_messages_total", "silent").await, 1.0);
    let mut kept = Client::connect(proxy.http).await;
    kept.send("POST", CHAT, "", &chat("x")).await;
    assert_eq!(kept.response("POST").await.unwrap().status, 200);
    assert!(kept.wire.ends().await, "a kept one, after its pause");
    let mut operator = Client::connect(proxy.admin).await;
    assert!(operator.wire.ends().await, "one of the operators' listener");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_header_behind_a_request_does_not_disturb_its_answer() {
    let fleet = Fleet::start(1, |exchange| {
        Box::pin(async move {
            exchange.begin_stream().await?;
            for _ in 0..6 {
                exchange.event("one").await?;
                sleep(Duration::from_millis(100)).await;
            }
            exchange.end_stream().await
        })
    })
    .await;
    let proxy = Setup::of(&fleet).section("limits", "header_timeout: 200ms").start().await;
    let mut client = Client::connect(proxy.http).await;
    let body = crate::common::streamed_chat("x");
    client.send("POST", CHAT, "", &body).await;
    client.send_bytes(b"POST / HTTP/1.1\r\nhost").await;
    let response = client.response("POST").await.unwrap();
    assert_eq!((response.status, response.text().matches("one").count()), (200, 6), "it is whole");
    assert_eq!(client.response("POST").await.unwrap().status, 408, "and then comes the other's");
    assert!(client.wire.ends().await);
    proxy.let_go().await;
}

/// The parts of an HTTP/2 connection that are no request yet, however long they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_over_http_2_has_its_time_as_a_whole() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "header_timeout: 500ms").start().await;
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]].concat();
    // HEADERS whose payload does not come, and HEADERS without their end.
    let halves: [&[u8]; 2] = [&[0, 0, 9, 1, 4, 0, 0, 0, 1, 0x82], &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]];
    for half in halves {
        let mut client = Client::connect(proxy.h2c).await;
        client.send_bytes(&begin).await;
        // Longer than the limit: a connection that waits for its next request is none that is slow.
        sleep(Duration::from_millis(700)).await;
        assert_eq!(proxy.metric("connections", "").await, 1.0);
        client.send_bytes(half).await;
        let mut rest = Vec::new();
        let ended = within("its end", client.wire.stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok() || !rest.is_empty(), "it is closed: {ended:?}");
    }
    proxy.let_go().await;
    assert_eq!(proxy.metric("malformed_messages_total", "slow_header").await, 2.0);
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("x"), Length::Stated).await;
    assert_eq!(response.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_listener_has_the_same_limits() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).section("limits", "header_timeout: 1s").start().await;
    let mut client = Client::connect(proxy.admin).await;
    trickle(&mut client).await;
    assert_eq!(client.response("POST").await.unwrap().status, 408);
    assert!(client.wire.ends().await);
    let mut client = Client::connect(proxy.admin).await;
    client.send_bytes(b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").await;
    assert_eq!(client.response("GET").await.unwrap().status, 400);
    assert_eq!(client::get(proxy.admin, "/healthz").await.status, 200);
}
