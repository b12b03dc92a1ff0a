//! One replay: a DEALER connection of its own to the engine's ROUTER socket, one request, many replies.
//!
//! The request is an empty frame and the first number wanted; without the empty frame an engine does not answer. Replies
//! are read from their end, since releases differ in what comes before: the payload is last, its number before it, and the
//! number -1 is the end. A task reads them, so that a connection in the making is not given up at every live message.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::zmtp::{Connection, Error, Kind, Limits, Message};
use super::{Endpoint, Replay};

/// How long a whole replay may take: 10,000 messages take seconds.
const MAX_DURATION: Duration = Duration::from_secs(60);

/// Replies that may wait. A message has at most 32 MiB, so this is few.
const QUEUE: usize = 8;

/// A replay under way. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Exchange {
    replies: mpsc::Receiver<Reply>,
    task: AbortHandle,
}

/// What comes of a replay; [`Reply::Message`]s, then one of the others.
#[derive(Debug)]
pub(super) enum Reply {
    Message(u64, Bytes),
    End,
    Failed(Error),
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn start(endpoint: Endpoint, replay: Replay, limits: Limits) -> Self {
        let (sender, replies) = mpsc::channel(QUEUE);
        let task = tokio::spawn(async move {
            let end = match ask(&endpoint, replay, limits, &sender).await {
                Ok(()) => Reply::End,
                Err(error) => Reply::Failed(error),
            };
            // Whoever asked may no longer want to know.
            let _ = sender.send(end).await;
        });
        Self { replies, task: task.abort_handle() }
    }

    /// The next reply. Nothing is lost if this is dropped before it is ready.
    pub(super) async fn next(&mut self) -> Reply {
        self.replies.recv().await.unwrap_or(Reply::Failed(Error::Closed))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ask(endpoint: &Endpoint, replay: Replay, limits: Limits, replies: &mpsc::Sender<Reply>) -> Result<(), Error> {
    let end = Instant::now() + MAX_DURATION;
    let mut connection = Connection::open(&endpoint.host, endpoint.port, Kind::Dealer, limits).await?;
    connection.send(&[b"", &replay.from.to_be_bytes()]).await?;
    loop {
        // An engine replies between two batches, within 100 ms when idle.
        let next = timeout(limits.silence, timeout_at(end, connection.next()));
        let message = match next.await {
            Ok(Ok(message)) => message?,
            Ok(Err(_)) => return Err(Error::TimedOut(MAX_DURATION)),
            Err(_) => return Err(Error::Silent(limits.silence)),
        };
        let (seq, payload) =
            numbered(message).ok_or(Error::Protocol("a reply does not end in a number and a payload"))?;
        let Ok(seq) = u64::try_from(seq.cast_signed()) else { return Ok(()) };
        if replies.send(Reply::Message(seq, payload)).await.is_err() {
            return Ok(());
        }
    }
}

/// The number and the payload at a message's end.
pub(super) fn numbered(mut message: Message) -> Option<(u64, Bytes)> {
    let payload = message.pop()?;
    let seq = message.pop()?;
    Some((u64::from_be_bytes(seq[..].try_into().ok()?), payload))
}
