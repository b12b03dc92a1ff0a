//! The sockets of a publisher. They close when the engine restarts, and listen at the same ports again when it is back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::{KvEventOptions, Message, Publisher, QUEUE};
use crate::sim::http::Port;
use crate::sim::shared::Gate;

/// How long to wait after a failure that will not go away at once.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one message of a replay may wait for its client to read.
const PATIENCE: Duration = Duration::from_secs(10);
/// What ends a replay in place of a number: -1.
const END_SEQ: [u8; 8] = [0xff; 8];

/// Ports that listen, before anything is sent.
#[derive(Debug)]
pub(in crate::sim) struct Sockets {
    publish: Port,
    replay: Option<Port>,
    publisher: Arc<Publisher>,
    live: mpsc::Receiver<Message>,
}

/// Sockets at work; they close when this is dropped, and have closed when [`Serving::stop`] returns.
#[derive(Debug)]
pub(in crate::sim) struct Serving {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

// === impl Sockets ===

impl Sockets {
    /// Takes the ports.
    pub(in crate::sim) fn open(options: &KvEventOptions) -> io::Result<Self> {
        let publish = Port::open(options.publish)?;
        let replay = options.replay.map(Port::open).transpose()?;
        let (sender, live) = mpsc::channel(QUEUE);
        let options = KvEventOptions {
            publish: publish.address(),
            replay: replay.as_ref().map(Port::address),
            ..options.clone()
        };
        Ok(Self { publish, replay, publisher: Publisher::new(options, sender), live })
    }

    /// Who publishes here.
    pub(in crate::sim) fn publisher(&self) -> Arc<Publisher> {
        Arc::clone(&self.publisher)
    }

    /// Serves on the current runtime, while the gate says that the engine is up.
    pub(in crate::sim) fn serve(self, gate: watch::Receiver<Gate>) -> Serving {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut sockets = self;
            sockets.run(gate, stopped).await;
        });
        Serving { task, stop }
    }

    async fn run(&mut self, mut gate: watch::Receiver<Gate>, mut stopped: oneshot::Receiver<()>) {
        loop {
            let restarts = tokio::select! {
                // The sender lives as long as the engine.
                Ok(open) = gate.wait_for(|gate| gate.is_open) => open.restarts,
                _ = &mut stopped => return,
            };
            let Some((mut publish, mut replay)) = self.listen().await else {
                sleep(PAUSE).await;
                continue;
            };
            let topic = Bytes::from(self.publisher.options.topic.clone());
            let is_over = tokio::select! {
                () = send_live(&mut publish, &mut self.live, &topic) => true,
                () = answer_replays(replay.as_mut(), &self.publisher, &topic) => true,
                Ok(_) = gate.wait_for(|gate| gate.restarts != restarts) => false,
                _ = &mut stopped => true,
            };
            // Only now are the ports free to listen at again.
            publish.close().await;
            if let Some(replay) = replay {
                replay.close().await;
            }
            if is_over {
                return;
            }
        }
    }

    async fn listen(&mut self) -> Option<(PubSocket, Option<RouterSocket>)> {
        let mut publish = PubSocket::new();
        let listener = self.publish.take_listener()?.into_std().ok()?;
        publish.bind_listener(listener).await.ok()?;
        let Some(port) = &mut self.replay else { return Some((publish, None)) };
        let mut replay = RouterSocket::new();
        let listener = port.take_listener()?.into_std().ok()?;
        replay.bind_listener(listener).await.ok()?;
        Some((publish, Some(replay)))
    }
}

// === impl Serving ===

impl Serving {
    /// Returns when the ports are closed.
    pub(in crate::sim) async fn stop(mut self) {
        let (stop, _) = oneshot::channel();
        let _ = std::mem::replace(&mut self.stop, stop).send(());
        let _ = (&mut self.task).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send_live(publish: &mut PubSocket, live: &mut mpsc::Receiver<Message>, topic: &Bytes) {
    while let Some(Message { seq, payload }) = live.recv().await {
        let frames = vec![topic.clone(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        send(publish, frames).await;
    }
}

/// One replay after the other, as in vLLM.
async fn answer_replays(replay: Option<&mut RouterSocket>, publisher: &Publisher, topic: &Bytes) {
    let Some(replay) = replay else { return std::future::pending().await };
    loop {
        match replay.recv().await {
            Ok(request) => answer(replay, request.into_vec(), publisher, topic).await,
            Err(error) => {
                log::debug!("a replay was asked for badly: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// `[client, "", start]` -> `[client, "", topic, seq, payload]` for each message from `start` on, then the end mark.
async fn answer(replay: &mut RouterSocket, request: Vec<Bytes>, publisher: &Publisher, topic: &Bytes) {
    let [client, empty, start] = &request[..] else {
        return log::warn!("a replay was asked for with {} frames instead of 3; no answer", request.len());
    };
    let Some(start) = start.as_ref().try_into().ok().filter(|_| empty.is_empty()).map(u64::from_be_bytes) else {
        return log::warn!("a replay was asked for without a number of 8 bytes behind an empty frame; no answer");
    };
    for Message { seq, payload } in publisher.kept_from(start) {
        let seq = Bytes::copy_from_slice(&seq.to_be_bytes());
        let frames = vec![client.clone(), Bytes::new(), topic.clone(), seq, payload];
        if !send(replay, frames).await {
            return;
        }
    }
    let end = Bytes::from_static(&END_SEQ);
    send(replay, vec![client.clone(), Bytes::new(), Bytes::new(), end, Bytes::new()]).await;
}

/// False if it could not be sent.
async fn send(socket: &mut impl SocketSend, frames: Vec<Bytes>) -> bool {
    let Ok(message) = ZmqMessage::try_from(frames) else { return false };
    match timeout(PATIENCE, socket.send(message)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            log::debug!("KV events were not sent: {error}");
            false
        }
        Err(_) => {
            log::debug!("KV events were not read in {PATIENCE:?}");
            false
        }
    }
}
