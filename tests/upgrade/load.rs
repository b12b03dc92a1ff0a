//! Clients that hold conversations over kept connections, and what they got.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::common_control::client::Connection;
use crate::common_control::within;

/// Turns of a conversation; then its client begins another.
const TURNS: usize = 8;

/// One answered request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    /// When it was sent.
    pub(crate) sent: Instant,
    prompt_tokens: u64,
    /// As the engine tells.
    cached_tokens: u64,
}

/// Conversations under way.
pub(crate) struct Load {
    served: Arc<Mutex<Vec<Served>>>,
    stop: watch::Sender<bool>,
    clients: JoinSet<Result<(), String>>,
}

// === impl Load ===

impl Load {
    /// Starts `clients` conversations whose answers are streams of `tokens` tokens, spread over so much time.
    pub(crate) fn start(address: SocketAddr, clients: usize, tokens: u32, spread: Duration) -> Self {
        let (served, stop) = (Arc::<Mutex<Vec<Served>>>::default(), watch::Sender::new(false));
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let (served, stop) = (Arc::clone(&served), stop.subscribe());
            let delay = spread.mul_f64(client as f64 / clients as f64);
            tasks.spawn(async move {
                tokio::time::sleep(delay).await;
                let talk = Client { address, name: client, tokens, connection: None, opened: 0 };
                talk.converse(&served, &stop).await.map_err(|error| format!("client {client}: {error}"))
            });
        }
        Self { served, stop, clients: tasks }
    }

    /// How many requests were served so far.
    ///
    /// # Panics
    /// When one has failed.
    pub(crate) fn count(&mut self) -> usize {
        if let Some(ended) = self.clients.try_join_next() {
            panic!("a client has ended: {ended:?}");
        }
        self.served.lock().len()
    }

    /// Lets every client finish its request; what all got, or the first failure.
    pub(crate) async fn finish(mut self) -> Result<Vec<Served>, String> {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap()?;
        }
        Ok(std::mem::take(&mut *self.served.lock()))
    }
}

/// The share of prompt tokens that engines had cached, of the requests sent in this span of time; with their number.
pub(crate) fn cached_share(served: &[Served], from: Instant, length: Duration) -> (f64, usize) {
    let within = || served.iter().filter(|one| one.sent >= from && one.sent < from + length);
    let sum = |tokens: fn(&Served) -> u64| within().map(tokens).sum::<u64>() as f64;
    (sum(|one| one.cached_tokens) / sum(|one| one.prompt_tokens).max(1.0), within().count())
}

// === client ===

struct Client {
    address: SocketAddr,
    name: usize,
    tokens: u32,
    /// Kept until a reply says that it will be closed.
    connection: Option<Connection>,
    opened: usize,
}

impl Client {
    async fn converse(mut self, served: &Mutex<Vec<Served>>, stop: &watch::Receiver<bool>) -> io::Result<()> {
        // Not all of them begin anew at the same time.
        let mut turns = 1 + self.name % TURNS;
        for topic in 0.. {
            let mut messages = vec![json!({"role": "user", "content": self.words(topic, 0, 400)})];
            for turn in 1..=std::mem::replace(&mut turns, TURNS) {
                if *stop.borrow() {
                    return Ok(());
                }
                let (one, answer) = self.ask(&messages).await?;
                served.lock().push(one);
                messages.push(json!({"role": "assistant", "content": answer}));
                messages.push(json!({"role": "user", "content": self.words(topic, turn, 20)}));
            }
        }
        Ok(())
    }

    /// Sends the conversation; fails unless the answer is a whole stream.
    async fn ask(&mut self, messages: &[Value]) -> io::Result<(Served, String)> {
        let body = json!({
            "model": "sim-model", "messages": messages, "max_tokens": self.tokens, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let mut connection = match self.connection.take() {
            Some(kept) => kept,
            None => {
                self.opened += 1;
                Connection::open(self.address).await?
            }
        };
        let sent = Instant::now();
        connection
            .send("POST", "/v1/chat/completions", "content-type: application/json\r\n", &body.to_string())
            .await?;
        let head = within("an answer", connection.head()).await?;
        if head.status != 200 {
            let body = connection.body(&head).await?;
            return Err(io::Error::other(format!("status {}: {}", head.status, String::from_utf8_lossy(&body))));
        }
        let text = connection.rest().await.map_err(|error| io::Error::other(format!("in the stream: {error}")))?;
        if !text.ends_with("data: [DONE]\n\n") {
            return Err(io::Error::other(format!("the stream ends with {:?}", tail(&text))));
        }
        if head.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        let (answer, usage) = read(&text);
        let cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let prompt_tokens = usage["prompt_tokens"].as_u64().expect("the engine counts the prompt's tokens");
        Ok((Served { sent, prompt_tokens, cached_tokens }, answer))
    }

    /// Text that is nobody else's, nor of another turn.
    fn words(&self, topic: usize, turn: usize, count: usize) -> String {
        (0..count).map(|word| format!("c{}-t{topic}-{turn}-{word} ", self.name)).collect()
    }
}

/// The text of a stream, and the usage it reports.
fn read(stream: &str) -> (String, Value) {
    let (mut text, mut usage) = (String::new(), Value::Null);
    for data in stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]") {
        let event: Value = serde_json::from_str(data).expect("an event is JSON");
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    (text, usage)
}

fn tail(text: &str) -> &str {
    &text[text.floor_char_boundary(text.len().saturating_sub(100))..]
}
