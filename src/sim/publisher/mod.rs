//! Publishes KV events as vLLM and SGLang do: numbered messages on a ZeroMQ PUB socket, the last of them kept for who asks
//! a ROUTER socket for a replay.
//!
//! The engine never waits: messages go through a bounded queue, and what does not fit is lost to subscribers, as behind any
//! PUB socket. Sequence numbers begin at 0 with each process of the engine.

mod sockets;
mod sources;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

use super::fault::{Fault, Order, strike};
use super::process::unix_seconds;
use crate::kv_events::{Batch, Form, encode};

pub(super) use sockets::{Serving, Sockets};

/// Messages that wait for the PUB socket: vLLM's high-water mark.
const QUEUE: usize = 100_000;

/// How KV events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventOptions {
    /// Where the PUB socket listens; port 0 takes a free one.
    pub publish: SocketAddr,
    /// Where the ROUTER socket for replays listens, if there is one; port 0 takes a free one.
    pub replay: Option<SocketAddr>,
    /// The first frame of each message.
    pub topic: String,
    /// Messages kept for replays.
    pub buffer_steps: usize,
    /// Whose events they look like.
    pub form: Form,
}

/// What a publisher tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KvEventState {
    /// Where the PUB socket listens.
    pub publish: SocketAddr,
    /// Where the ROUTER socket listens.
    pub replay: Option<SocketAddr>,
    /// The number of the next message.
    pub next_seq: u64,
}

/// Numbers messages and keeps them.
#[derive(Debug)]
pub(super) struct Publisher {
    /// With the addresses that the sockets got.
    options: KvEventOptions,
    live: mpsc::Sender<Message>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The engine's process: what earlier ones still have to say is not heard.
    life: u64,
    next_seq: u64,
    buffer: VecDeque<Message>,
    fault: Option<Order>,
}

/// One process' way to its publisher.
#[derive(Debug)]
pub(super) struct Feed {
    publisher: Arc<Publisher>,
    life: u64,
}

#[derive(Debug, Clone)]
struct Message {
    seq: u64,
    payload: Bytes,
}

// === impl KvEventOptions ===

impl KvEventOptions {
    /// vLLM's events and limits at this address, without a replay and with an empty topic.
    pub fn at(publish: SocketAddr) -> Self {
        Self { publish, replay: None, topic: String::new(), buffer_steps: 10_000, form: Form::Vllm }
    }
}

// === impl Publisher ===

impl Publisher {
    fn new(options: KvEventOptions, live: mpsc::Sender<Message>) -> Arc<Self> {
        Arc::new(Self { options, live, state: Mutex::default() })
    }

    /// The way of a new process, which starts at number 0. Those of earlier ones lead nowhere any more.
    pub(super) fn feed(self: &Arc<Self>) -> Feed {
        let mut state = self.state.lock();
        state.life += 1;
        state.next_seq = 0;
        state.buffer.clear();
        Feed { publisher: Arc::clone(self), life: state.life }
    }

    /// Puts a fault of messages in the place of the one there is.
    pub(super) fn inject(&self, order: Option<Order>) {
        self.state.lock().fault = order;
    }

    /// The fault in force.
    pub(super) fn fault(&self) -> Option<Order> {
        self.state.lock().fault.clone()
    }

    pub(super) fn state(&self) -> KvEventState {
        let KvEventOptions { publish, replay, .. } = self.options;
        KvEventState { publish, replay, next_seq: self.state.lock().next_seq }
    }

    /// The messages from `start` on that are still there.
    fn kept_from(&self, start: u64) -> Vec<Message> {
        self.state.lock().buffer.iter().filter(|message| message.seq >= start).cloned().collect()
    }
}

// === impl Feed ===

impl Feed {
    /// The way of the process that takes this one's place.
    pub(super) fn next(&self) -> Self {
        self.publisher.feed()
    }

    /// Publishes the events of a step.
    pub(super) fn publish(&self, batch: Batch) {
        let batch = Batch { timestamp: unix_seconds(), rank: Some(0), ..batch };
        let payload = Bytes::from(encode(&batch, self.publisher.options.form));
        let mut state = self.publisher.state.lock();
        if state.life != self.life {
            return;
        }
        let fault = strike(&mut state.fault);
        if fault == Some(Fault::StopKvEvents) {
            return;
        }
        let message = Message { seq: state.next_seq, payload };
        state.next_seq += 1;
        if self.publisher.options.buffer_steps > 0 {
            if state.buffer.len() >= self.publisher.options.buffer_steps {
                state.buffer.pop_front();
            }
            state.buffer.push_back(message.clone());
        }
        let live = match fault {
            Some(Fault::DropKvEvents) => return,
            Some(Fault::CorruptKvEvents) => Message { payload: corrupted(&message.payload), ..message },
            _ => message,
        };
        // Under the lock, so that they leave in order. A full queue loses it; a closed one has no sockets behind it.
        let _ = self.publisher.live.try_send(live);
    }
}

/// Half a payload, and a byte that msgpack never uses.
fn corrupted(payload: &Bytes) -> Bytes {
    let mut half = payload[..payload.len() / 2].to_vec();
    half.push(0xc1);
    Bytes::from(half)
}
