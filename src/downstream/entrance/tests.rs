use std::task::Waker;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::config;
use crate::downstream::{Body, Downstream};

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
    match &downstream.way_in.lock().entrance {
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

/// The body of the request whose header was read, to its end.
async fn body_of(downstream: &Downstream) -> io::Result<Vec<u8>> {
    let mut body = BytesMut::new();
    while Body(downstream).read(&mut body, 1 << 20).await? > 0 {}
    Ok(body.to_vec())
}

fn sized(length: &str) -> String {
    format!("{HEADER}content-length: {length}\r\n\r\n")
}

fn chunked() -> String {
    format!("{HEADER}transfer-encoding: chunked\r\n\r\n")
}

#[tokio::test]
async fn headers_come_out_whole_with_stand_ins_and_bodies_to_those_who_ask() {
    let state = state("");
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    let plain = format!("{HEADER}\r\n");
    let sent = format!("\r\n{}hello\r\n{}5\r\nhello\r\n0\r\n\r\n{plain}{}", sized("5"), chunked(), &sized("10")[..9]);
    client.write_all(sent.as_bytes()).await.unwrap();
    let stood_in = [format!("{}.", sized("1")), format!("{}1\r\n.\r\n0\r\n\r\n", chunked())];
    for expected in &stood_in {
        assert_eq!(String::from_utf8(read(&mut downstream).await.unwrap()).unwrap(), *expected);
        assert_eq!(body_of(&downstream).await.unwrap(), b"hello");
        assert_eq!(body_of(&downstream).await.unwrap(), b"", "it has an end");
    }
    assert_eq!(read(&mut downstream).await.unwrap(), plain.as_bytes());
    assert_eq!(read(&mut downstream).await, None, "a part of a header is not handed on");
    client.write_all(&sized("10").as_bytes()[9..]).await.unwrap();
    assert_eq!(read(&mut downstream).await.unwrap(), format!("{}.", sized("01")).as_bytes(), "as long as it was");
    assert_eq!(Body(&downstream).left(), Some(10));
    client.write_all(b"01234").await.unwrap();
    drop(client);
    assert_eq!(body_of(&downstream).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(read(&mut downstream).await.unwrap(), b"error: unexpected end of file");
    assert_eq!(fault_of(&downstream), None);
}

#[tokio::test]
async fn bytes_one_by_one_make_the_same_messages() {
    let state = state("");
    let (mut client, mut downstream) = connection(&state, 1);
    let in_chunks = format!("{}5\r\nhello\r\n2;x\r\n, \r\n0\r\nx: y\r\n\r\n", chunked());
    let sent = format!("{in_chunks}{}ab{in_chunks}", sized("2"));
    tokio::spawn(async move { client.write_all(sent.as_bytes()).await });
    for (header, stand_in, body) in [
        (chunked(), "1\r\n.\r\n0\r\n\r\n", "hello, "),
        (sized("1"), ".", "ab"),
        (chunked(), "1\r\n.\r\n0\r\n\r\n", "hello, "),
    ] {
        // A reader that takes little at a time gets the same.
        let mut received = vec![0; header.len() + stand_in.len()];
        for byte in received.chunks_mut(7) {
            downstream.read_exact(byte).await.unwrap();
        }
        assert_eq!(String::from_utf8(received).unwrap(), header + stand_in);
        assert_eq!(body_of(&downstream).await.unwrap(), body.as_bytes());
    }
    assert_eq!(downstream.read(&mut [0; 16]).await.unwrap(), 0, "the end comes through");
}

#[tokio::test]
async fn a_body_that_nobody_asks_for_is_passed_over_unless_it_is_long() {
    let state = state("");
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    for (header, body) in [
        (sized("200000"), "x".repeat(200_000)),
        (chunked(), format!("{}0\r\n\r\n", chunk.repeat(6))),
        (sized("300000"), "x".repeat(300_000)),
        (chunked(), format!("{}0\r\n\r\n", chunk.repeat(9))),
    ] {
        let (mut client, mut downstream) = connection(&state, 1 << 20);
        let next = format!("{HEADER}\r\n");
        client.write_all(format!("{header}{body}{next}").as_bytes()).await.unwrap();
        assert!(read(&mut downstream).await.is_some());
        let expected = if body.len() < 256 * 1024 { next.as_bytes() } else { b"" };
        assert_eq!(read(&mut downstream).await.unwrap(), expected, "behind {} bytes", body.len());
    }
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(format!("{}x", sized("100000000000000000")).as_bytes()).await.unwrap();
    assert!(read(&mut downstream).await.is_some());
    assert_eq!(read(&mut downstream).await, None, "no room is taken for what was only said");
}

#[tokio::test]
async fn memory_is_taken_at_once_for_a_usual_body_and_by_and_by_for_a_long_one() {
    let state = state("");
    for (length, first, then) in [(1_500_000, 1_500_000, 1_500_000), (64 << 20, 1 << 20, 2 << 20)] {
        let (mut client, mut downstream) = connection(&state, 4 << 20);
        client.write_all(format!("{}x", sized(&length.to_string())).as_bytes()).await.unwrap();
        assert!(read(&mut downstream).await.is_some());
        let mut body = BytesMut::new();
        Body(&downstream).read(&mut body, length).await.unwrap();
        assert!((first..first + 4096).contains(&body.capacity()), "{} of {length}", body.capacity());
        client.write_all(&vec![b'x'; 1_400_000]).await.unwrap();
        while body.len() < 1_400_000 {
            Body(&downstream).read(&mut body, length).await.unwrap();
        }
        assert!((then..then + 4096).contains(&body.capacity()), "{} of {length}", body.capacity());
    }
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
    let mut body = BytesMut::new();
    assert_eq!(Body(&downstream).read(&mut body, 1 << 20).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
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

#[tokio::test(start_paused = true)]
async fn a_line_end_behind_a_body_begins_no_header_though_it_comes_in_pieces() {
    let state = state("");
    let (mut client, mut downstream) = connection(&state, 1 << 20);
    client.write_all(format!("{}x\r", sized("1")).as_bytes()).await.unwrap();
    assert!(read(&mut downstream).await.is_some());
    assert_eq!(body_of(&downstream).await.unwrap(), b"x");
    let sending = tokio::spawn(async move {
        sleep(Duration::from_secs(1)).await;
        client.write_all(b"\n").await.unwrap();
        sleep(Duration::from_secs(600)).await;
        client.write_all(format!("{HEADER}\r\n").as_bytes()).await.unwrap();
        client
    });
    let mut space = [0; 1024];
    let length = downstream.read(&mut space).await.unwrap();
    assert_eq!(&space[..length], format!("{HEADER}\r\n").as_bytes());
    assert_eq!(fault_of(&downstream), None);
    drop(sending.await.unwrap());
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

// === any messages, in any pieces ===

#[derive(Debug, Clone)]
struct Message {
    body: Vec<u8>,
    framing: Framing,
    /// Whether its body is read, or left to be passed over.
    is_asked_for: bool,
}

#[derive(Debug, Clone)]
enum Framing {
    None,
    Sized,
    /// The sizes of chunks, again and again, and what stands behind the first size and in front of the end.
    Chunks(Vec<usize>, &'static str, &'static str),
}

fn message() -> impl Strategy<Value = Message> {
    let extra = || prop_oneof![Just(""), Just(";x=\"1\"")];
    let trailer = || prop_oneof![Just(""), Just("x-sum: 1\r\n")];
    let framing = prop_oneof![
        Just(Framing::None),
        Just(Framing::Sized),
        (prop::collection::vec(1..900_usize, 1..5), extra(), trailer())
            .prop_map(|(sizes, extra, trailer)| Framing::Chunks(sizes, extra, trailer)),
    ];
    // Bodies that look like messages.
    let body = prop_oneof![prop::collection::vec(any::<u8>(), 0..3000), Just(sized("3").into_bytes())];
    (body, framing, any::<bool>()).prop_map(|(body, framing, is_asked_for)| {
        let body = if matches!(framing, Framing::None) { Vec::new() } else { body };
        Message { body, framing, is_asked_for }
    })
}

impl Message {
    /// What a client sends.
    fn sent(&self) -> Vec<u8> {
        match &self.framing {
            Framing::None => format!("{HEADER}\r\n").into_bytes(),
            Framing::Sized => [sized(&self.body.len().to_string()).as_bytes(), &self.body].concat(),
            Framing::Chunks(sizes, extra, trailer) => {
                let (mut sent, mut rest, mut sizes) = (chunked().into_bytes(), &self.body[..], sizes.iter().cycle());
                while !rest.is_empty() {
                    let (chunk, behind) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                    sent.extend_from_slice(format!("{:x}{extra}\r\n", chunk.len()).as_bytes());
                    sent.extend_from_slice(&[chunk, b"\r\n"].concat());
                    rest = behind;
                }
                sent.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
                sent
            }
        }
    }

    /// What Pingora is given.
    fn handed_on(&self) -> String {
        match &self.framing {
            Framing::None => format!("{HEADER}\r\n"),
            Framing::Sized if self.body.is_empty() => sized("0"),
            Framing::Sized => {
                format!("{}.", sized(&format!("{:0width$}", 1, width = self.body.len().to_string().len())))
            }
            Framing::Chunks(..) => format!("{}1\r\n.\r\n0\r\n\r\n", chunked()),
        }
    }
}

proptest! {
    #![proptest_config(crate::testing::config(128))]

    #[test]
    fn any_messages_come_out_as_they_were_sent(
        messages in prop::collection::vec(message(), 1..6),
        pieces in prop::collection::vec(1..2000_usize, 1..6),
        room in prop_oneof![1..100_usize, 1000..70_000_usize],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut client, mut downstream) = connection(&state(""), room);
            let sent: Vec<u8> = messages.iter().flat_map(Message::sent).collect();
            let sending = async move {
                let (mut rest, mut pieces) = (&sent[..], pieces.iter().cycle());
                while !rest.is_empty() {
                    let (piece, behind) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                    rest = behind;
                }
            };
            let receiving = async {
                for message in &messages {
                    let expected = message.handed_on();
                    let mut received = vec![0; expected.len()];
                    downstream.read_exact(&mut received).await.unwrap();
                    assert_eq!(String::from_utf8_lossy(&received), expected);
                    if message.is_asked_for {
                        assert_eq!(body_of(&downstream).await.unwrap(), message.body);
                    }
                }
                assert_eq!(downstream.read(&mut [0; 16]).await.unwrap(), 0, "nothing is left over");
            };
            tokio::join!(sending, receiving);
        });
    }
}
