//! Against servers that send prepared bytes: recordings, and what is none.

use std::collections::VecDeque;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;
use crate::kv_events::Decoder;
use crate::kv_events::fixtures;

const RECORDING: &str = "int-sha256_cbor";

/// Greeting and READY command of the recorded PUB socket.
const HELLO_BYTES: usize = 64 + 27;

/// What a server does with a connection.
enum Script {
    /// Sends this and closes.
    SendAndClose(Vec<u8>),
    /// Sends this and stays.
    Send(Vec<u8>),
}

/// A server that follows one script a connection, in turn, and then accepts no more.
async fn server(scripts: Vec<Script>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut scripts = VecDeque::from(scripts);
        let mut open = Vec::new();
        while let Some(script) = scripts.pop_front() {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (Script::Send(bytes) | Script::SendAndClose(bytes)) = &script;
            // A client that has seen enough may close before all is sent.
            let _ = stream.write_all(bytes).await;
            match script {
                // Not dropped with unread bytes, which would be a reset that takes with it what was sent.
                Script::SendAndClose(_) => drop(tokio::spawn(async move {
                    let _ = stream.shutdown().await;
                    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                })),
                Script::Send(_) => open.push(stream),
            }
        }
        std::future::pending::<()>().await;
    });
    port
}

fn recorded(name: &str) -> Option<Vec<u8>> {
    fixtures::bytes(&format!("{RECORDING}/zmtp-{name}.server-to-client.bin"))
}

/// The marks of all recorded batches; those that only clear have none.
fn expected() -> Vec<u64> {
    let mut batch = Batch::default();
    let first = |message: &fixtures::Recorded| {
        Decoder::default().decode(&message.payload, &mut batch).unwrap();
        batch.hashes.first().map(|hash| hash.0)
    };
    fixtures::live(RECORDING).unwrap().iter().filter_map(first).collect()
}

fn source(port: u16, replay_port: Option<u16>) -> Source {
    Source { endpoint: at(port), replay_endpoint: replay_port.map(at), topic: "".into() }
}

#[tokio::test]
async fn all_recorded_batches_arrive_in_order() {
    let Some(live) = recorded("sub") else { return };
    let port = server(vec![Script::Send(live)]).await;
    let mut test = Test::follow(source(port, None));
    test.holds(&expected()).await;
    let status = test.is("live", |status| status.counts.last_seq == Some(13)).await;
    assert_eq!((status.state, status.counts.messages), (SourceState::Live, 14));
    assert_eq!((status.counts.undecodable, status.counts.unknown_events, status.counts.broken_events), (0, 0, 0));
}

#[tokio::test]
async fn a_recorded_replay_and_the_live_messages_make_one_stream() {
    let (Some(live), Some(replay)) = (recorded("sub"), recorded("replay")) else { return };
    // The recording has three replays: from 12, from a million, and from 0.
    let end_mark = [&b"\x01\0\x01\0\x01\x08"[..], &[0xff; 8], b"\0\0"].concat();
    let ends: Vec<usize> = memchr::memmem::find_iter(&replay, &end_mark).map(|at| at + end_mark.len()).collect();
    let hello = 64 + 2 + 0x29;
    let from_0 = [&replay[..hello], &replay[ends[1]..]].concat();
    let (port, replay_port) = (server(vec![Script::Send(live)]).await, server(vec![Script::Send(from_0)]).await);
    let mut test = Test::follow(source(port, Some(replay_port)));
    test.holds(&expected()).await;
    let status = test.is("done", |status| status.state == SourceState::Live && status.counts.messages == 14).await;
    assert_eq!((status.counts.replays, status.counts.gaps, status.counts.clears), (1, 0, 0));
    assert_eq!(*test.marks.borrow(), expected(), "nothing is applied twice");
}

#[tokio::test]
async fn a_topic_that_only_begins_the_same_is_anothers() {
    let Some(live) = recorded("sub") else { return };
    let port = server(vec![Script::SendAndClose(live.clone()), Script::Send(live)]).await;
    let test = Test::follow(Source { topic: "kv@127.0.0.1".into(), ..source(port, None) });
    let status = test.is("connected again", |status| status.connections == 2).await;
    assert_eq!((status.counts.messages, test.marks.borrow().len()), (0, 0));
}

#[tokio::test]
async fn a_closed_connection_is_made_again() {
    let Some(live) = recorded("sub") else { return };
    let port =
        server(vec![Script::SendAndClose(live.clone()), Script::SendAndClose(live.clone()), Script::Send(live)]).await;
    let mut test = Test::follow(source(port, None));
    let status = test.is("connected three times", |status| status.counts.messages == 3 * 14).await;
    assert_eq!((status.connections, status.counts.clears), (3, 2), "without replay, each time means to begin anew");
    test.holds(&expected()).await;
}

/// Messages alone do not make a connection a good one.
#[tokio::test]
async fn a_connection_that_brings_messages_and_breaks_is_tried_less_and_less_often() {
    let Some(live) = recorded("sub") else { return };
    let port = server((0..5).map(|_| Script::SendAndClose(live.clone())).collect()).await;
    let started = Instant::now();
    let test = Test::follow(source(port, None));
    test.is("connected five times", |status| status.counts.messages == 5 * 14).await;
    // Half of each wait before an attempt is left to chance.
    let least = (FIRST_WAIT + 2 * FIRST_WAIT + 4 * FIRST_WAIT + 8 * FIRST_WAIT) / 2;
    assert!(started.elapsed() >= least, "{:?} for waits of at least {least:?}", started.elapsed());
}

#[tokio::test]
async fn garbage_and_silence_are_told_and_tried_again() {
    let Some(live) = recorded("sub") else { return };
    let hello = &live[..HELLO_BYTES];
    let huge = [hello, b"\x02\x40\0\0\0\0\0\0\0"].concat();
    let one_frame = [hello, b"\0\x01x"].concat();
    let port = server(vec![
        Script::SendAndClose(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        Script::Send(huge),
        Script::Send(one_frame),
        // Nothing at all.
        Script::Send(Vec::new()),
        Script::Send(live.clone()),
    ])
    .await;
    let mut test = Test::follow(source(port, None));
    for part in ["does not speak ZMTP", "larger than", "is not [topic, number, payload]", "no connection within"] {
        let is_told = |status: &SourceStatus| status.reason.as_ref().is_some_and(|reason| reason.contains(part));
        test.is(part, is_told).await;
    }
    test.holds(&expected()).await;
}

#[tokio::test]
async fn a_source_that_is_dropped_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let test = Test::follow(source(listener.local_addr().unwrap().port(), None));
    let (mut stream, _) = listener.accept().await.unwrap();
    drop(test);
    let closed = within(tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
    assert!(closed.is_ok(), "the connection ends");
}
