//! A subscriber of an engine's KV events, and a client of its replays.

use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::{Value, json};
use warmgate::kv_events::Form;
use warmgate::sim::{EngineOptions, KvEventOptions, SimEngine};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::client::{fast, send, until, within};

pub(crate) const COMPLETIONS: &str = "/v1/completions";
/// The topic of the engines here.
pub(crate) const TOPIC: &str = "kv@sim";

/// Options of a fast engine that publishes in this form.
pub(crate) fn publishing_as(form: Form) -> EngineOptions {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let kv_events = KvEventOptions { replay: Some(any), topic: TOPIC.to_owned(), form, ..KvEventOptions::at(any) };
    EngineOptions { kv_events: Some(kv_events), ..fast() }
}

/// The same in vLLM's.
pub(crate) fn publishing() -> EngineOptions {
    publishing_as(Form::Vllm)
}

/// A message as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) seq: u64,
    pub(crate) payload: Bytes,
}

impl Message {
    /// Of topic, number and payload.
    fn of(frames: &[Bytes]) -> Self {
        let [topic, seq, payload] = frames else { panic!("3 frames, not {frames:?}") };
        assert_eq!(topic, TOPIC.as_bytes());
        Self { seq: number(seq), payload: payload.clone() }
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        let payload: Value = rmp_serde::from_slice(&self.payload).unwrap();
        assert!(payload[0].as_f64().unwrap() > 1.7e9 && payload[2] == 0, "time and rank: {payload}");
        payload[1].as_array().unwrap().clone()
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        self.events().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

fn number(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame.as_ref().try_into().unwrap())
}

/// A subscriber that has heard its first message.
pub(crate) struct Listener {
    socket: SubSocket,
    pub(crate) first: Option<Message>,
}

impl Listener {
    /// Subscribes. A PUB socket says nothing to who comes late, so requests are sent until one is heard of.
    pub(crate) async fn to(engine: &SimEngine) -> Self {
        let address = engine.state().kv_events.unwrap().publish;
        let mut socket = within(connected(address)).await;
        let requests = async {
            for number in 0.. {
                send(engine, COMPLETIONS, &json!({"prompt": vec![number; 16], "max_tokens": 1})).await.unwrap();
            }
        };
        let first = tokio::select! {
            message = within(socket.recv()) => Message::of(&message.unwrap().into_vec()),
            () = requests => unreachable!(),
        };
        let mut listener = Self { socket, first: None };
        // What was asked for meanwhile has all been heard of when the last number has come.
        let mut last = first.seq;
        until(engine, "nothing is in flight", |state| state.requests.in_flight == 0 && state.engine.running == 0).await;
        let next_seq = engine.state().kv_events.unwrap().next_seq;
        while last + 1 < next_seq {
            last = listener.next().await.seq;
        }
        listener.first = Some(first);
        listener
    }

    pub(crate) async fn next(&mut self) -> Message {
        Message::of(&within(self.socket.recv()).await.unwrap().into_vec())
    }
}

/// A subscriber's socket, as soon as there is somebody to connect to.
async fn connected(address: SocketAddr) -> SubSocket {
    loop {
        let mut socket = SubSocket::new();
        socket.subscribe(TOPIC).await.unwrap();
        if socket.connect(&format!("tcp://{address}")).await.is_ok() {
            return socket;
        }
    }
}

pub(crate) async fn dealer(engine: &SimEngine) -> DealerSocket {
    let mut socket = DealerSocket::new();
    let address = engine.state().kv_events.unwrap().replay.unwrap();
    socket.connect(&format!("tcp://{address}")).await.unwrap();
    socket
}

pub(crate) async fn ask(socket: &mut DealerSocket, frames: Vec<Bytes>) {
    within(socket.send(ZmqMessage::try_from(frames).unwrap())).await.unwrap();
}

pub(crate) fn from(start: u64) -> Vec<Bytes> {
    vec![Bytes::new(), Bytes::copy_from_slice(&start.to_be_bytes())]
}

/// The answers up to the end mark.
pub(crate) async fn answers(socket: &mut DealerSocket) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        let frames = within(socket.recv()).await.unwrap().into_vec();
        assert_eq!((frames.len(), frames[0].len()), (4, 0), "an empty frame, topic, number, payload");
        if number(&frames[2]) == u64::MAX {
            assert!(frames[1].is_empty() && frames[3].is_empty(), "the end mark: {frames:?}");
            return messages;
        }
        messages.push(Message::of(&frames[1..]));
    }
}

pub(crate) async fn replay(engine: &SimEngine, start: u64) -> Vec<Message> {
    let mut socket = dealer(engine).await;
    ask(&mut socket, from(start)).await;
    answers(&mut socket).await
}
