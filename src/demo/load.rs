//! Holds the conversations: each turn waits for the answer to the one before.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep};

use super::conversation::{Conversation, Shape};
use crate::client::Client;
use crate::request::ResponseReader;

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What came of all requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Results {
    /// Seconds to the first token, of each request that was answered.
    pub(super) ttft_seconds: Vec<f64>,
    /// Prompt tokens that the engines counted.
    pub(super) prompt_tokens: u64,
    /// Of these, the ones they found in their caches.
    pub(super) cached_tokens: u64,
    /// Requests by backend.
    pub(super) by_backend: BTreeMap<String, u32>,
    /// Requests that got no answer.
    pub(super) failed: u32,
}

/// What came of one request.
struct Answered {
    ttft_seconds: f64,
    prompt_tokens: u64,
    cached_tokens: u64,
    backend: String,
    text: String,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
}

// === impl Results ===

impl Results {
    /// Requests that have ended.
    pub(super) fn done(&self) -> u32 {
        self.by_backend.values().sum::<u32>() + self.failed
    }

    /// Cached tokens as a share of prompt tokens, 0 to 1.
    pub(super) fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// The time to first token that this share of the requests did not exceed, seconds.
    pub(super) fn ttft(&self, share: f64) -> f64 {
        let mut sorted = self.ttft_seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn add(&mut self, answered: Option<Answered>) {
        let Some(answered) = answered else {
            self.failed += 1;
            return;
        };
        self.ttft_seconds.push(answered.ttft_seconds);
        self.prompt_tokens += answered.prompt_tokens;
        self.cached_tokens += answered.cached_tokens;
        *self.by_backend.entry(answered.backend).or_default() += 1;
    }
}

/// Holds all conversations of `shape` with the proxy at `address`; `show` is called after each request.
pub(super) async fn drive(address: SocketAddr, shape: &Shape, seed: u64, mut show: impl FnMut(&Results)) -> Results {
    let client = Arc::new(Client::for_address(address, LIMIT));
    let places = Arc::new(Semaphore::new(shape.concurrency as usize));
    let (tell, mut told) = mpsc::channel(64);
    for number in 0..shape.conversations {
        let conversation = Conversation::new(shape, seed, number);
        let (client, places, tell, turns) = (Arc::clone(&client), Arc::clone(&places), tell.clone(), shape.turns);
        tokio::spawn(async move {
            // The semaphore is never closed.
            let Ok(_place) = places.acquire().await else { return };
            hold(&client, address, conversation, turns, &tell).await;
        });
    }
    drop(tell);
    let mut results = Results::default();
    while let Some(answered) = told.recv().await {
        results.add(answered);
        show(&results);
    }
    results
}

/// One conversation. A turn that fails ends it; the turns that it does not get to have failed as well.
async fn hold(
    client: &Client,
    address: SocketAddr,
    mut conversation: Conversation,
    turns: u32,
    tell: &mpsc::Sender<Option<Answered>>,
) {
    let mut is_broken = false;
    for _ in 0..turns {
        let answered = match is_broken {
            true => None,
            false => ask(client, address, conversation.ask()).await,
        };
        match &answered {
            Some(answered) => conversation.hear(&answered.text),
            None => is_broken = true,
        }
        if tell.send(answered).await.is_err() {
            return;
        }
        if !is_broken {
            sleep(Duration::from_secs_f64(conversation.think_seconds())).await;
        }
    }
}

async fn ask(client: &Client, address: SocketAddr, body: Vec<u8>) -> Option<Answered> {
    let started = Instant::now();
    let (mut reader, mut first_token, mut stream) = (ResponseReader::new(true, true), None, Vec::new());
    let header = client
        .stream(address, Method::POST, "/v1/chat/completions", Bytes::from(body), |bytes| {
            if reader.push(bytes).first_data {
                first_token = Some(started.elapsed());
            }
            stream.extend_from_slice(bytes);
            true
        })
        .await
        .ok()?;
    let usage = reader.usage()?;
    let backend = header.headers.get("x-warmgate-backend")?.to_str().ok()?.to_owned();
    Some(Answered {
        ttft_seconds: first_token?.as_secs_f64(),
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens.unwrap_or_default(),
        backend,
        text: text_of(&stream),
    })
}

/// The text of a whole stream of chat chunks.
fn text_of(stream: &[u8]) -> String {
    let stream = String::from_utf8_lossy(stream);
    let chunks = stream.lines().filter_map(|line| serde_json::from_str::<Chunk>(line.strip_prefix("data: ")?).ok());
    chunks.flat_map(|chunk| chunk.choices).filter_map(|choice| choice.delta.content).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_stream_is_put_together() {
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"a \"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
                      data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";
        assert_eq!(text_of(stream.as_bytes()), "a b");
    }

    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let results = Results { ttft_seconds: vec![5.0, 1.0, 4.0, 2.0, 3.0], ..Results::default() };
        assert_eq!((results.ttft(0.5), results.ttft(0.9), results.ttft(0.2)), (3.0, 5.0, 1.0));
        assert_eq!(Results::default().ttft(0.5), 0.0);
    }
}
