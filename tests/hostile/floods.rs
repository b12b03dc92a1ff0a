//! Floods over HTTP/2: frames that cost the sender nothing.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::CHAT;
use crate::common::backend::Fleet;
use crate::common::h2c::{self, H2, Length};
use crate::common::proxy::{Proxy, Setup};
use crate::common::wire::Wire;
use crate::common::{chat, within};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Sends such frames until the proxy ends the connection; how many were taken at most.
async fn flood(proxy: &Proxy, name: &str, mut next: impl FnMut(u32) -> Vec<u8>) -> u32 {
    let mut wire = Wire::connect(proxy.h2c).await;
    wire.write(&[PREFACE, &frame(4, 0, 0, &[])].concat()).await.unwrap();
    let (mut read, mut write) = wire.stream.split();
    let reading = async {
        let mut space = [0; 4096];
        while read.read(&mut space).await.is_ok_and(|length| length > 0) {}
    };
    let mut sent = 0;
    let writing = async {
        while write.write_all(&next(sent)).await.is_ok() {
            sent += 1;
        }
    };
    within(name, async {
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
    })
    .await;
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_end_their_connection_and_nobody_elses() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let other = H2::connect(proxy.h2c).await;
    let mut floods = 0.0;
    // PING, SETTINGS, PRIORITY.
    for (name, kind, payload) in [("PING", 6, 8), ("SETTINGS", 4, 0), ("PRIORITY", 2, 5)] {
        let stream = if kind == 2 { 1 } else { 0 };
        flood(&proxy, name, |_| frame(kind, 0, stream, &vec![0; payload])).await;
        floods += 1.0;
    }
    assert_eq!(proxy.metric("malformed_messages_total", "flood").await, floods);
    let mut stream = other.post(CHAT, &[], chat("x").len(), Length::Stated).await;
    stream.send(&chat("x"), true).await.unwrap();
    assert_eq!(stream.response().await.unwrap().status, 200, "another connection goes on");
    proxy.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_opened_only_to_be_reset_end_the_connection_and_leave_nothing_behind() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    // POST / of http://a, as HPACK's static table has it: a request whose body never comes.
    let fields = [&[0x83, 0x86, 0x84, 0x41, 0x01][..], b"a"].concat();
    flood(&proxy, "rapid resets", |count| {
        let stream = count * 2 + 1;
        [frame(1, 4, stream, &fields), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
    })
    .await;
    proxy.let_go().await;
    assert!(fleet.received().is_empty(), "none of them was sent on");
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("x"), Length::Stated).await;
    assert_eq!(response.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_goes_on_and_on_ends_the_connection() {
    let fleet = Fleet::echo(1).await;
    let proxy = Setup::of(&fleet).start().await;
    let begun = frame(1, 0, 1, &[0x83, 0x86, 0x84, 0x41, 0x01, b'a']);
    // CONTINUATION, each with a field of its own.
    let field = [&[0x00, 0x01][..], b"x", &[0x7e], &[b'y'; 0x7e]].concat();
    flood(&proxy, "CONTINUATION", |count| if count == 0 { begun.clone() } else { frame(9, 0, 1, &field) }).await;
    proxy.let_go().await;
    assert!(fleet.received().is_empty());
    let response = h2c::post(proxy.h2c, CHAT, &[], &chat("x"), Length::Stated).await;
    assert_eq!(response.status, 200);
}
