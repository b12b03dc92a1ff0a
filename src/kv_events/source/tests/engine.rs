//! An engine's publisher, of the `zeromq` crate's sockets: a PUB socket, and a ROUTER that replays.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::{Source, at};

type Buffer = Arc<Mutex<Vec<(u64, Bytes)>>>;

/// Which frames come before the number in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As up to vLLM 0.25.
    Short,
    /// As since vLLM 0.26.
    WithTopic,
}

/// One process of an engine. Dropping it ends it.
pub(super) struct Engine {
    process: u64,
    next: u64,
    publisher: PubSocket,
    ports: [u16; 2],
    buffer: Buffer,
    replaying: JoinHandle<()>,
}

impl Engine {
    pub(super) async fn start(process: u64, form: Form) -> Self {
        Self::start_at([0, 0], process, form).await
    }

    /// At the ports of its predecessor.
    pub(super) async fn start_at(ports: [u16; 2], process: u64, form: Form) -> Self {
        let mut publisher = PubSocket::new();
        let events = bind(&mut publisher, ports[0]).await;
        let mut router = RouterSocket::new();
        let replays = bind(&mut router, ports[1]).await;
        let buffer = Buffer::default();
        let replaying = tokio::spawn(replay(router, Arc::clone(&buffer), form));
        Self { process, next: 0, publisher, ports: [events, replays], buffer, replaying }
    }

    pub(super) fn source(&self) -> Source {
        Source { endpoint: at(self.ports[0]), replay_endpoint: Some(at(self.ports[1])), topic: "kv".into() }
    }

    /// Publishes so many batches; each is marked with `1000 * process` plus its number.
    pub(super) async fn publish(&mut self, count: u64) {
        for _ in 0..count {
            let (seq, payload) = self.make();
            let frames = vec![Bytes::from("kv"), seq.to_be_bytes().to_vec().into(), payload];
            self.publisher.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
        }
    }

    /// Publishes so many batches that its PUB socket drops.
    pub(super) fn publish_in_vain(&mut self, count: u64) {
        (0..count).for_each(|_| drop(self.make()));
    }

    /// How many batches that are.
    pub(super) fn published(&self) -> u64 {
        self.next
    }

    /// Forgets what it could replay.
    pub(super) fn empty_buffer(&self) {
        self.buffer.lock().clear();
    }

    pub(super) async fn end(self) -> [u16; 2] {
        self.replaying.abort();
        let _ = self.replaying.await;
        let _ = self.publisher.close().await;
        self.ports
    }

    fn make(&mut self) -> (u64, Bytes) {
        let seq = self.next;
        let event = json!([1.0, [["BlockRemoved", [1000 * self.process + seq]]], 0]);
        let payload = Bytes::from(rmp_serde::to_vec(&event).unwrap());
        self.buffer.lock().push((seq, payload.clone()));
        self.next += 1;
        (seq, payload)
    }
}

async fn bind(socket: &mut impl Socket, port: u16) -> u16 {
    loop {
        // What its predecessor had open may take a moment to close.
        match socket.bind(&format!("tcp://127.0.0.1:{port}")).await {
            Ok(zeromq::Endpoint::Tcp(_, port)) => return port,
            Ok(endpoint) => panic!("{endpoint} is not TCP"),
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn replay(mut router: RouterSocket, buffer: Buffer, form: Form) {
    while let Ok(request) = router.recv().await {
        let [client, empty, from] = &request.into_vec()[..] else { continue };
        assert!(empty.is_empty(), "without the empty frame an engine does not answer");
        let from = u64::from_be_bytes(from[..].try_into().unwrap());
        let mut replies = buffer.lock().clone();
        replies.retain(|(seq, _)| *seq >= from);
        replies.push((u64::MAX, Bytes::new()));
        for (seq, payload) in replies {
            let topic = if payload.is_empty() { "" } else { "kv" };
            let mut frames = vec![client.clone(), Bytes::new()];
            if form == Form::WithTopic {
                frames.push(Bytes::from(topic));
            }
            frames.extend([seq.to_be_bytes().to_vec().into(), payload]);
            router.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
        }
    }
}
