use super::*;
use crate::config;
use crate::io::COPIED_BYTES;

fn around(io: tokio::io::DuplexStream) -> Downstream {
    let text =
        "listeners: [{address: '127.0.0.1:0'}]\nlogging: {access_log: 'off'}\npools: [{name: p, backends: []}]\n";
    let state = Arc::new(State::new(config::parse(text, "test").unwrap()).unwrap());
    Downstream::new(Box::new(io), state, SocketAddr::from(([127, 0, 0, 1], 1)), false)
}

#[tokio::test]
async fn a_header_goes_out_with_what_follows_however_little_is_taken_at_once() {
    let header = b"HTTP/1.1 200 OK\r\n\r\n";
    let long = [b'x'; COPIED_BYTES];
    let bodies = [[&b"9\r\n"[..], b"data: 1\n\n", b"\r\n"], [b"1000\r\n", &long, b"\r\n"]];
    for (most_bytes, body) in (1..40).chain([4096, 8192]).flat_map(|most| bodies.map(|body| (most, body))) {
        let (io, mut client) = tokio::io::duplex(most_bytes);
        let mut downstream = around(io);
        downstream.held.extend(header);
        let writing = async move {
            let (mut pieces, mut first) = (body.map(IoSlice::new), 0);
            let mut pieces = &mut pieces[..];
            while !pieces.is_empty() {
                let written = downstream.write_vectored(pieces).await.unwrap();
                first = if first == 0 { written } else { first };
                IoSlice::advance_slices(&mut pieces, written);
            }
            downstream.flush().await.unwrap();
            drop(downstream);
            first
        };
        let mut received = Vec::new();
        let reading = tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received);
        let (first, _) = tokio::join!(writing, reading);
        let expected = [&header[..], &body.concat()].concat();
        assert_eq!(received, expected, "at most {most_bytes}");
        assert!(first > 0 && (most_bytes < expected.len() || first == body.concat().len()), "in one piece if it goes");
    }
}

#[tokio::test]
async fn the_beginning_of_a_body_goes_with_its_header_and_does_not_wait_for_a_flush() {
    let (io, mut client) = tokio::io::duplex(64);
    let mut downstream = around(io);
    downstream.held.extend(b"HTTP/1.1 200 OK\r\n\r\n");
    downstream.write_all(b"first").await.unwrap();
    let mut received = [0; 64];
    let length = tokio::io::AsyncReadExt::read(&mut client, &mut received).await.unwrap();
    assert_eq!(&received[..length], b"HTTP/1.1 200 OK\r\n\r\nfirst");
    downstream.write_all(b"second").await.unwrap();
    let length = tokio::io::AsyncReadExt::read(&mut client, &mut received).await.unwrap();
    assert_eq!(&received[..length], b"second");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_has_its_time_for_headers_too() {
    let (io, mut client) = tokio::io::duplex(16);
    let mut downstream = around(io);
    let begun = tokio::time::Instant::now();
    let writing = tokio::spawn(async move {
        let written = downstream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        (written, begun.elapsed().as_secs())
    });
    sleep(std::time::Duration::from_secs(50)).await;
    tokio::io::AsyncReadExt::read_exact(&mut client, &mut [0; 2]).await.unwrap();
    let (written, seconds) = writing.await.unwrap();
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(seconds, 110, "a minute from where it took something");
}

#[tokio::test]
async fn an_informational_header_in_between_is_not_rewritten() {
    let (io, mut client) = tokio::io::duplex(1024);
    let mut downstream = around(io);
    let rewrite = downstream.rewrite.get_mut().insert(Rewrite::default());
    rewrite.add("x-added", "yes").unwrap();
    let hints = b"HTTP/1.1 103 Early Hints\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\n\r\n";
    let answer = b"HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\ncontent-length: 2\r\n\r\n";
    for part in [&hints[..], answer, b"ok"] {
        downstream.write_all(part).await.unwrap();
    }
    downstream.flush().await.unwrap();
    drop(downstream);
    let mut received = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received).await.unwrap();
    let changed =
        b"HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\ncontent-length: 2\r\nx-added: yes\r\n\r\nok";
    assert_eq!(received, [&hints[..], changed].concat());
}
