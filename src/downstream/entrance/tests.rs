use std::task::Waker;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::config;
use crate::downstream::Downstream;

const HEADER: &str = "POST /v1/x HTTP/1.1\r\nhost: a\r\n";

fn state(keys: &str) -> Arc<State> {
    let text = format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\nlogging: {{access_log: 'off'}}\n{keys}\npools: [{{name: p, backends: []}}]\n"
    );
    Arc::new(State::new(config::parse(&text, "test").unwrap()).unwrap())
}

/// A connection with room for `bytes` in one direction, and what comes out of it.
fn connection(state: &Arc<State>, bytes: usize) -> (DuplexStream, Downstream) {
    let (client, io) = duplex(bytes);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    (client, Downstream::new(Box::new(io), Arc::clone(state), peer, false))
}

fn fault_of(downstream: &Downstream) -> Option<Fault> {
    match &downstream.entrance {
        crate::downstream::Entrance::Http1(http1) => http1.fault(),
        crate::downstream::Entrance::Http2(_) => None,
    }
}

/// One read, if it does not have to wait.
async fn read(downstream: &mut Downstream) -> Option<Vec<u8>> {
    let mut space = [0; 64 * 1024];
    let mut buf = ReadBuf::new(&mut space);
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(downstream).poll_read(&mut cx, &mut buf) {
        Poll::Ready(Ok(())) => Some(buf.filled().to_vec()),
        Poll::Ready(Err(error)) => Some(format!("error: {}", error.kind()).into_bytes()),
        Poll::Pending => None,
    }
}

#[tokio::test]
async fn messages_come_out_one_by_one_and_headers_whole() {
    let state = state("");
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    let sized = format!("{HEADER}content-length: 5\r\n\r\n");
    let chunked = format!("{HEADER}transfer-encoding: chunked\r\n\r\n");
    let body = "5\r\nhello\r\n0\r\n\r\n";
    let plain = format!("{HEADER}\r\n");
    client.write_all(format!("\r\n{sized}hello\r\n{chunked}{body}{plain}{}", &sized[..9]).as_bytes()).await.unwrap();
    for expected in [&sized, "hello", &chunked, body, &plain] {
        assert_eq!(
            read(&mut downstream).await.unwrap().escape_ascii().to_string(),
            expected.escape_default().to_string()
        );
    }
    assert_eq!(read(&mut downstream).await, None, "a part of a header is not handed on");
    client.write_all(&sized.as_bytes()[9..]).await.unwrap();
    assert_eq!(read(&mut downstream).await.unwrap(), sized.as_bytes());
    drop(client);
    assert_eq!(read(&mut downstream).await.unwrap(), b"", "the end comes through");
    assert_eq!(fault_of(&downstream), None);
}

#[tokio::test]
async fn bytes_one_by_one_make_the_same_messages() {
    let state = state("");
    let (mut client, mut downstream) = connection(&state, 1);
    let chunked = format!("{HEADER}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let sent = format!("{chunked}{HEADER}content-length: 2\r\n\r\nab{chunked}");
    let bytes = sent.clone().into_bytes();
    tokio::spawn(async move { client.write_all(&bytes).await });
    let mut received = Vec::new();
    downstream.read_to_end(&mut received).await.unwrap();
    assert_eq!(String::from_utf8(received).unwrap(), sent);
}

#[tokio::test]
async fn a_request_of_ours_stands_in_for_a_refused_one_and_nothing_follows() {
    let state = state("");
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(format!("{HEADER}\r\n{HEADER}content-length: +1\r\n\r\nx{HEADER}\r\n").as_bytes()).await.unwrap();
    assert_eq!(read(&mut downstream).await.unwrap(), format!("{HEADER}\r\n").as_bytes());
    assert_eq!(fault_of(&downstream), None, "the first one is good");
    assert_eq!(read(&mut downstream).await.unwrap(), STAND_IN);
    assert_eq!(fault_of(&downstream), Some(Fault::Framing));
    assert_eq!(read(&mut downstream).await.unwrap(), b"");
    assert_eq!(state.faults.count(Fault::Framing), 1);

    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(format!("{HEADER}transfer-encoding: chunked\r\n\r\n5\r\nhelloX").as_bytes()).await.unwrap();
    read(&mut downstream).await.unwrap();
    for _ in 0..2 {
        assert!(read(&mut downstream).await.unwrap().starts_with(b"error: "), "a body breaks off");
    }
    assert_eq!(fault_of(&downstream), Some(Fault::Chunk));
}

#[tokio::test(start_paused = true)]
async fn a_header_has_its_time_as_a_whole_and_a_pause_between_requests_does_not_count() {
    let state = state("limits: {header_timeout: 10s}");
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(format!("{HEADER}\r\n").as_bytes()).await.unwrap();
    let mut space = [0; 1024];
    assert!(downstream.read(&mut space).await.unwrap() > 0);
    // As a kept connection that is used again after a minute.
    let begun = Instant::now();
    let slow = tokio::spawn(async move {
        sleep(Duration::from_secs(60)).await;
        for byte in HEADER.bytes() {
            client.write_all(&[byte]).await.unwrap();
            sleep(Duration::from_secs(1)).await;
        }
        client
    });
    let length = downstream.read(&mut space).await.unwrap();
    assert_eq!(&space[..length], STAND_IN);
    assert_eq!((fault_of(&downstream), begun.elapsed().as_secs()), (Some(Fault::SlowHeader), 70));
    drop(slow.await.unwrap());

    let begun = Instant::now();
    let (client, mut downstream) = connection(&state, 1 << 20);
    assert_eq!(downstream.read(&mut space).await.unwrap(), 0, "silence is left without an answer");
    assert_eq!((state.faults.count(Fault::Silent), begun.elapsed().as_secs()), (1, 10));
    drop(client);
}

#[tokio::test]
async fn a_header_is_bounded_and_a_large_one_takes_room_in_the_budget() {
    let state = state("server: {max_header_bytes: 32KiB}\nlimits: {max_buffered_bytes: 1MiB, max_body_bytes: 1MiB}");
    let large = format!("{HEADER}x: {}", "x".repeat(20_000));
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(large.as_bytes()).await.unwrap();
    assert_eq!(read(&mut downstream).await, None);
    let used = state.bodies.used_bytes();
    assert!((12_000..=20_000).contains(&used), "{used} bytes are reserved for what is beyond a piece");
    client.write_all(&[b'x'; 20_000]).await.unwrap();
    assert_eq!(read(&mut downstream).await.unwrap(), STAND_IN);
    assert_eq!((fault_of(&downstream), state.bodies.used_bytes()), (Some(Fault::LargeHeader), 0));

    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(format!("GET /{}", "x".repeat(40_000)).as_bytes()).await.unwrap();
    assert_eq!(read(&mut downstream).await.unwrap(), STAND_IN);
    assert_eq!(fault_of(&downstream), Some(Fault::LongTarget));

    let mut all = Reservation::default();
    state.bodies.reserve_now(&mut all, 1 << 20).unwrap();
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(large.as_bytes()).await.unwrap();
    assert_eq!(read(&mut downstream).await.unwrap(), STAND_IN);
    assert_eq!(fault_of(&downstream), Some(Fault::NoRoom));
}
