//! The connection against recorded bytes, against the sockets of the `zeromq` crate, and against everything else.

use proptest::prelude::*;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::codec::{put_frame, take_frame};
use super::*;
use crate::kv_events::fixtures;
use crate::testing::config;

/// Generous ones: what is late has failed.
const LIMITS: Limits = Limits { connect: Duration::from_secs(20), silence: Duration::from_secs(20) };

/// As short as it may be where something is waited for in vain.
const SHORT: Limits = Limits { connect: Duration::from_millis(50), silence: Duration::from_millis(50) };

const RECORDING: &str = "int-sha256_cbor";

/// Greeting and READY command of a subscriber.
const HELLO_BYTES: usize = 64 + 27;

/// Serves one connection: sends `bytes` and gives what it received of `length` bytes, then closes.
async fn serve(bytes: Vec<u8>, length: usize) -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut received = vec![0; length];
        timeout(LIMITS.connect, stream.read_exact(&mut received)).await.unwrap().unwrap();
        received
    });
    (port, task)
}

async fn open(port: u16, kind: Kind) -> Result<Connection, Error> {
    Connection::open("127.0.0.1", port, kind, LIMITS).await
}

/// What a peer of version 3.`minor` and of this type says first.
fn hello(minor: u8, socket: &str) -> Vec<u8> {
    let mut bytes = Greeting::OURS.bytes().to_vec();
    bytes[11] = minor;
    let mut properties = Vec::new();
    put_property(&mut properties, "Socket-Type", socket);
    let mut output = BytesMut::new();
    put_command(&mut output, "READY", &properties);
    bytes.extend_from_slice(&output);
    bytes
}

#[tokio::test]
async fn a_subscriber_says_and_reads_what_was_recorded_of_one() {
    let Some(theirs) = fixtures::bytes(&format!("{RECORDING}/zmtp-sub.server-to-client.bin")) else { return };
    let ours = fixtures::bytes(&format!("{RECORDING}/zmtp-sub.client-to-server.bin")).unwrap();
    let (port, said) = serve(theirs, ours.len()).await;
    let mut connection = open(port, Kind::Sub).await.unwrap();
    connection.subscribe("").await.unwrap();
    for expected in fixtures::live(RECORDING).unwrap() {
        let message = connection.next().await.unwrap();
        let seq = expected.seq.to_be_bytes();
        assert_eq!(message[..], [expected.topic.as_bytes(), &seq[..], &expected.payload[..]], "{}", expected.seq);
    }
    assert_eq!(said.await.unwrap(), ours, "byte for byte what libzmq says");
    assert!(matches!(connection.next().await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_dealer_says_and_reads_what_was_recorded_of_one() {
    let Some(theirs) = fixtures::bytes(&format!("{RECORDING}/zmtp-replay.server-to-client.bin")) else { return };
    let ours = fixtures::bytes(&format!("{RECORDING}/zmtp-replay.client-to-server.bin")).unwrap();
    // The fourth request was made without the empty frame.
    let first_three = ours.len() - 10;
    let (port, said) = serve(theirs, first_three).await;
    let mut connection = open(port, Kind::Dealer).await.unwrap();
    for from in [12_u64, 1_000_000, 0] {
        connection.send(&[b"", &from.to_be_bytes()]).await.unwrap();
    }
    let live = fixtures::live(RECORDING).unwrap();
    let end = &[&b""[..], b"", &[0xff; 8], b""];
    for part in [&live[12..], &[], &live[..]] {
        for expected in part {
            let seq = expected.seq.to_be_bytes();
            let frames = [b"", expected.topic.as_bytes(), &seq[..], &expected.payload[..]];
            assert_eq!(connection.next().await.unwrap()[..], frames);
        }
        assert_eq!(connection.next().await.unwrap()[..], end[..]);
    }
    assert_eq!(said.await.unwrap(), ours[..first_three]);
}

#[tokio::test]
async fn messages_come_from_another_implementation_by_topic() {
    let mut publisher = PubSocket::new();
    let endpoint = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    let mut connection = open(port_of(&endpoint), Kind::Sub).await.unwrap();
    connection.subscribe("kv").await.unwrap();
    let large = Bytes::from(vec![7; 300_000]);
    let message = |topic: &'static str| ZmqMessage::try_from(vec![Bytes::from(topic), large.clone()]).unwrap();
    // The subscription takes effect when the publisher has read it.
    let first = loop {
        publisher.send(message("load")).await.unwrap();
        publisher.send(message("kv@x")).await.unwrap();
        if let Ok(message) = timeout(Duration::from_millis(10), connection.next()).await {
            break message.unwrap();
        }
    };
    assert_eq!(first[..], [&b"kv@x"[..], &large]);
}

#[tokio::test]
async fn requests_and_replies_go_to_and_fro_with_another_implementation() {
    let mut router = RouterSocket::new();
    let endpoint = router.bind("tcp://127.0.0.1:0").await.unwrap();
    let mut connection = open(port_of(&endpoint), Kind::Dealer).await.unwrap();
    connection.send(&[b"", b"request"]).await.unwrap();
    let mut request = router.recv().await.unwrap().into_vec();
    assert_eq!(request[1..], [&b""[..], b"request"]);
    request[2] = Bytes::from_static(b"reply");
    router.send(ZmqMessage::try_from(request).unwrap()).await.unwrap();
    assert_eq!(connection.next().await.unwrap()[..], [&b""[..], b"reply"]);
}

#[tokio::test]
async fn another_kind_of_socket_is_named() {
    let mut router = RouterSocket::new();
    let endpoint = router.bind("tcp://127.0.0.1:0").await.unwrap();
    let error = open(port_of(&endpoint), Kind::Sub).await.unwrap_err();
    let expected = "the endpoint is that of a ROUTER socket; this one is for events, which a PUB socket sends";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn what_does_not_speak_zmtp_is_told_by_its_first_byte() {
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\x15", &[0; 64]] {
        let (port, _peer) = serve(bytes.to_vec(), 1000).await;
        assert!(matches!(open(port, Kind::Sub).await, Err(Error::Protocol(_))), "{bytes:?}");
    }
}

#[tokio::test]
async fn handshakes_that_lead_nowhere_are_refused() {
    let mut curve = hello(1, "PUB");
    curve[12..17].copy_from_slice(b"CURVE");
    let mut old = hello(1, "PUB");
    old[10] = 2;
    let mut refusal = Greeting::OURS.bytes().to_vec();
    refusal.extend_from_slice(b"\x04\x0c\x05ERROR\x05oh no");
    let mut early = Greeting::OURS.bytes().to_vec();
    early.extend_from_slice(b"\x00\x01x");
    let mut unnamed = Greeting::OURS.bytes().to_vec();
    unnamed.extend_from_slice(b"\x04\x06\x05READY");
    for bytes in [curve, old, refusal, early, unnamed] {
        let (port, _peer) = serve(bytes, 1000).await;
        assert!(matches!(open(port, Kind::Sub).await, Err(Error::Protocol(_))));
    }
}

#[tokio::test]
async fn claimed_lengths_and_numbers_of_frames_are_bounded() {
    let claims: [&[u8]; 4] = [
        b"\x02\x40\0\0\0\0\0\0\0",
        b"\x02\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x06\0\0\0\0\0\x02\0\0",
        &[1, 0].repeat(100),
    ];
    for claim in claims {
        let (port, _peer) = serve([&hello(1, "PUB"), claim].concat(), 1000).await;
        let mut connection = open(port, Kind::Sub).await.unwrap();
        assert!(matches!(connection.next().await, Err(Error::Protocol(_))), "{claim:?}");
        assert!(connection.input.capacity() < 4 * READ_BYTES, "nothing is allocated for what is only claimed");
    }
}

#[tokio::test]
async fn a_sign_of_life_is_given_with_the_peers_context() {
    let ping = b"\x04\x0a\x04PING\x00\x10abc";
    let message = b"\x00\x01x";
    let (port, said) = serve([&hello(1, "PUB"), &ping[..], message].concat(), HELLO_BYTES + 10).await;
    let mut connection = open(port, Kind::Sub).await.unwrap();
    connection.next().await.unwrap();
    // The answer goes out before the next read, which ends as the peer closes.
    let _ = connection.next().await;
    assert!(said.await.unwrap().ends_with(b"\x04\x08\x04PONGabc"));
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_given_up_with_and_without_a_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = Connection::open("127.0.0.1", port, Kind::Sub, SHORT).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut(_)));

    // Asked for a sign of life, a peer of 3.1 has to give one.
    let limits = Limits { silence: SHORT.silence, ..LIMITS };
    let (port, peer) = serve(hello(1, "PUB"), HELLO_BYTES + 9).await;
    let mut connection = Connection::open("127.0.0.1", port, Kind::Sub, limits).await.unwrap();
    // Being asked is what this one waits for before it closes.
    let _ = connection.next().await;
    assert!(peer.await.unwrap().ends_with(b"\x04\x07\x04PING\x00\x00"), "it was asked");

    let (port, _peer) = serve(hello(1, "PUB"), 1000).await;
    let mut connection = Connection::open("127.0.0.1", port, Kind::Sub, limits).await.unwrap();
    assert!(matches!(connection.next().await, Err(Error::Silent(_))));
}

#[tokio::test]
async fn a_peer_of_before_signs_of_life_may_be_silent() {
    let limits = Limits { silence: SHORT.silence, ..LIMITS };
    let (port, _peer) = serve(hello(0, "PUB"), 1000).await;
    let mut connection = Connection::open("127.0.0.1", port, Kind::Sub, limits).await.unwrap();
    let waited = timeout(4 * SHORT.silence, connection.next()).await;
    assert!(waited.is_err(), "an idle engine is not given up: {waited:?}");
}

fn port_of(endpoint: &zeromq::Endpoint) -> u16 {
    let zeromq::Endpoint::Tcp(_, port) = endpoint else { panic!("{endpoint} is not TCP") };
    *port
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn frames_are_read_as_they_were_written_however_they_are_cut(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..600), any::<bool>()), 0..20),
        cuts in prop::collection::vec(1..300_usize, 1..50),
    ) {
        let mut wire = BytesMut::new();
        frames.iter().for_each(|(body, has_more)| put_frame(&mut wire, body, *has_more));
        let (mut input, mut read) = (BytesMut::new(), Vec::new());
        for cut in cuts.into_iter().cycle() {
            if wire.is_empty() {
                break;
            }
            input.extend_from_slice(&wire.split_to(cut.min(wire.len())));
            while let Some(frame) = take_frame(&mut input, 1000, 0).unwrap() {
                read.push((frame.body.to_vec(), frame.has_more));
            }
        }
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut input = BytesMut::from(&bytes[..]);
        while let Ok(Some(frame)) = take_frame(&mut input, 100, 50) {
            prop_assert!(frame.body.len() <= 100);
            let _ = command(&frame.body).map(|(_, rest)| property(rest, b"Socket-Type"));
        }
        let _ = (Greeting::read(&bytes), property(&bytes, b"x"));
    }
}
