//! A source of events: a task that follows one engine's stream for as long as it is wanted.
//!
//! It reads as fast as the sink takes, and queues nothing but what waits for a replay. A slow sink thus makes the system's
//! socket buffers fill; a PUB socket then drops messages and goes on, so no engine ever waits, and the gap is found by
//! the numbers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::replay::{Exchange, Reply, numbered};
use super::status::SourceWatch;
use super::zmtp::{Connection, Error, Kind, Limits};
use super::{Counts, Endpoint, Replay, Sink, SourceState, SourceStatus, Stream};
use crate::time;

#[cfg(test)]
mod tests;

/// The wait before the second attempt, and the longest one. An engine takes half a minute to start.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A connection that lasted so long was good for something: after it, waits and the log begin anew. One that brings
/// messages and breaks at once is not.
const GOOD_TIME: Duration = Duration::from_secs(10);

/// Where one engine process, or one of its data-parallel ranks, tells of its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its PUB socket.
    pub endpoint: Endpoint,
    /// Its ROUTER socket for replays, if it has one.
    pub replay_endpoint: Option<Endpoint>,
    /// The topic of its messages. With an empty one all are taken.
    pub topic: Arc<str>,
}

/// A source that is followed. Dropping it ends that; what the sink holds stays.
#[derive(Debug)]
pub struct Following {
    status: SourceWatch,
    task: AbortHandle,
}

struct Follower<S> {
    name: Arc<str>,
    source: Source,
    sink: S,
    stream: Stream,
    status: SourceWatch,
    limits: Limits,
    wait: Duration,
    /// Connections in a row that failed.
    failures: u32,
}

// === impl Source ===

impl Source {
    /// Follows it from now on. `name` is for the log; `sink` holds nothing of it yet, and is called from a task.
    pub fn follow<S: Sink + Send + 'static>(self, name: Arc<str>, sink: S) -> Following {
        self.follow_within(Limits::default(), name, sink)
    }

    fn follow_within<S: Sink + Send + 'static>(self, limits: Limits, name: Arc<str>, sink: S) -> Following {
        let status = SourceWatch::default();
        let stream = Stream::new(self.replay_endpoint.is_some());
        let follower = Follower {
            name,
            source: self,
            sink,
            stream,
            status: status.clone(),
            limits,
            wait: FIRST_WAIT,
            failures: 0,
        };
        Following { status, task: tokio::spawn(follower.run()).abort_handle() }
    }
}

// === impl Following ===

impl Following {
    /// How it is.
    pub fn status(&self) -> SourceStatus {
        self.status.get()
    }

    /// The same for whoever may outlive it.
    pub fn watch(&self) -> SourceWatch {
        self.status.clone()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Follower ===

impl<S: Sink> Follower<S> {
    async fn run(mut self) {
        loop {
            self.status.change(|status| status.state = SourceState::Connecting);
            let started = Instant::now();
            let Err(error) = self.connect_and_follow().await;
            self.stream.lost(&mut self.sink);
            self.sink.set_live(false);
            if started.elapsed() >= GOOD_TIME {
                (self.wait, self.failures) = (FIRST_WAIT, 0);
            }
            self.failed(&error);
            sleep(self.wait.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            self.wait = (self.wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn connect_and_follow(&mut self) -> Result<std::convert::Infallible, Error> {
        let Endpoint { host, port } = self.source.endpoint.clone();
        let mut live = Connection::open(&host, port, Kind::Sub, self.limits).await?;
        live.subscribe(&self.source.topic).await?;
        let level = if self.failures < 2 { log::Level::Info } else { log::Level::Debug };
        log::log!(level, "{}: KV events: connected to {}", self.name, self.source.endpoint);
        self.status.change(|status| {
            status.connections += 1;
            status.reason = None;
        });
        let first = self.stream.connected();
        let mut exchange = self.start(first);
        loop {
            self.report();
            let replay = tokio::select! {
                message = live.next() => self.live(numbered_if_of(&self.source.topic, message?)?),
                reply = next(exchange.as_mut()) => {
                    if !matches!(reply, Reply::Message(..)) {
                        exchange = None;
                    }
                    self.replayed(reply)
                }
            };
            if replay.is_some() {
                exchange = self.start(replay);
            }
            // Messages that are already here are read without waiting; others have their turn all the same.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn start(&self, replay: Option<Replay>) -> Option<Exchange> {
        Some(Exchange::start(self.source.replay_endpoint.clone()?, replay?, self.limits))
    }

    fn live(&mut self, message: Option<(u64, Bytes)>) -> Option<Replay> {
        let (seq, payload) = message?;
        self.heard();
        let before = self.stream.counts();
        let replay = self.stream.live(seq, &payload, &mut self.sink);
        self.tell(before);
        replay
    }

    fn replayed(&mut self, reply: Reply) -> Option<Replay> {
        let before = self.stream.counts();
        let replay = match reply {
            Reply::Message(seq, payload) => {
                self.heard();
                self.stream.replayed(seq, &payload, &mut self.sink)
            }
            Reply::End => {
                self.status.change(|status| status.replay_reason = None);
                self.stream.replay_ended(&mut self.sink)
            }
            Reply::Failed(error) => {
                self.replay_failed(&error);
                self.stream.replay_failed(&mut self.sink)
            }
        };
        self.tell(before);
        replay
    }

    fn replay_failed(&self, error: &Error) {
        let reason = error.to_string();
        let mut is_new = false;
        self.status.change(|status| {
            is_new = status.replay_reason.as_ref() != Some(&reason);
            status.replay_reason = Some(reason);
        });
        if is_new {
            log::warn!("{}: KV events: no replay, so only what comes from now on is known: {error}", self.name);
        }
    }

    /// A message came.
    fn heard(&self) {
        self.status.change(|status| status.last_message = Some(time::now()));
    }

    fn report(&mut self) {
        let counts = self.stream.counts();
        let state = if self.stream.is_replaying() { SourceState::Replaying } else { SourceState::Live };
        self.sink.set_live(state == SourceState::Live);
        self.status.change(|status| {
            status.state = state;
            status.counts = counts;
        });
    }

    /// Notes a failed connection, and tells of the first in a row, the second, the fourth and so on.
    fn failed(&mut self, error: &Error) {
        let (reason, counts) = (error.to_string(), self.stream.counts());
        self.status.change(|status| {
            status.state = SourceState::Failed;
            status.counts = counts;
            status.reason = Some(reason);
        });
        self.failures = self.failures.saturating_add(1);
        if self.failures.is_power_of_two() {
            let (name, endpoint, failures) = (&self.name, &self.source.endpoint, self.failures);
            log::warn!("{name}: KV events: {endpoint}: {error}; trying again ({failures} failed so far)");
        }
    }

    /// Writes to the log what the stream has just found: the first time, the second, the fourth and so on, so that an
    /// engine in trouble does not fill the log.
    fn tell(&self, before: Counts) {
        let now = self.stream.counts();
        let name = &self.name;
        let is_told = |before: u64, now: u64| now > before && (before == 0 || before.ilog2() < now.ilog2());
        if is_told(before.restarts, now.restarts) {
            log::info!("{name}: KV events: the engine has started anew; what it held is forgotten");
        } else if is_told(before.gaps, now.gaps) && now.clears == before.clears {
            log::info!("{name}: KV events: messages are missing, {} times so far; asking for them again", now.gaps);
        } else if is_told(before.clears, now.clears) {
            log::warn!(
                "{name}: KV events: what the engine held is forgotten, {} times so far: messages are missing",
                now.clears
            );
        }
        if is_told(before.undecodable, now.undecodable) {
            log::warn!("{name}: KV events: {} messages so far cannot be decoded", now.undecodable);
        }
        if let (true, Some(fault)) = (is_told(before.broken_events, now.broken_events), now.last_fault) {
            log::warn!("{name}: KV events: {} events so far cannot be used, the last since {fault}", now.broken_events);
        }
    }
}

/// The next reply of a replay, never if there is none.
async fn next(exchange: Option<&mut Exchange>) -> Reply {
    match exchange {
        Some(exchange) => exchange.next().await,
        None => std::future::pending().await,
    }
}

/// A subscription is for all topics that begin with it, so another one's messages may come; they are none of ours.
fn numbered_if_of(topic: &str, message: super::zmtp::Message) -> Result<Option<(u64, Bytes)>, Error> {
    if message.len() != 3 {
        return Err(Error::Protocol("a message is not [topic, number, payload]"));
    }
    if !topic.is_empty() && message[0] != topic.as_bytes() {
        return Ok(None);
    }
    numbered(message).map(Some).ok_or(Error::Protocol("a message's number does not have 8 bytes"))
}
