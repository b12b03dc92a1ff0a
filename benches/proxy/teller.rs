//! The KV events of one engine of the bench: it makes tokens of each prompt that it is asked to, holds their blocks as a
//! least-recently-used list, and publishes what comes and goes as vLLM does.
//!
//! A thread of its own does that, behind the answer, as an engine's events come behind its own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use lru::LruCache;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use warmgate::kv_events::{Batch, EngineHash, Form, Medium, encode};
use warmgate::prefix::token_root;
use warmgate::request::Endpoint;
use warmgate::tokens::Tokenizer;
use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

/// vLLM's default.
const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).expect("not zero");

/// Blocks of one engine's cache: 1.6 million tokens, so that the stems of all workloads stay.
const CACHE_BLOCKS: usize = 100_000;

/// Prompts that wait. Beyond these answers wait as well, so that events keep up with them.
const QUEUE: usize = 16;

/// Gives an engine's prompts to the thread that tells of them.
#[derive(Debug, Clone)]
pub(crate) struct Teller {
    prompts: mpsc::Sender<Vec<u8>>,
    address: SocketAddr,
}

/// What an engine holds.
struct Cache {
    tokenizer: Arc<Tokenizer>,
    blocks: LruCache<u64, ()>,
}

// === impl Teller ===

impl Teller {
    /// Listens for those who follow the events.
    pub(crate) fn start(tokenizer: Arc<Tokenizer>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (prompts, waiting) = mpsc::channel(QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let cache = Cache { tokenizer, blocks: LruCache::unbounded() };
        // It ends with the process.
        thread::spawn(move || runtime.block_on(publish(listener, cache, waiting)));
        Ok(Self { prompts, address })
    }

    /// Where the events are published.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells of the prompt in this body, a moment later.
    pub(crate) async fn tell(&self, body: Vec<u8>) {
        // Where nobody takes it the events stay out, and the bench finds that locality is not exact.
        let _ = self.prompts.send(body).await;
    }
}

// === impl Cache ===

impl Cache {
    /// What the prompt in this body changes. Its beginning is touched last, so that ends go first.
    fn take(&mut self, body: &[u8]) -> Batch {
        let mut batch = Batch { timestamp: unix_seconds(), rank: Some(0), ..Batch::default() };
        let now = SystemTime::now();
        let prompts = self.tokenizer.prompts(Endpoint::ChatCompletions, body, now);
        for ids in prompts.iter().flat_map(|prompts| &prompts.prompts) {
            let chain = self.tokenizer.chain(ids, token_root(None, None), BLOCK_TOKENS);
            let names: Vec<u64> = chain.iter().map(|hash| hash.0).collect();
            let held = names.iter().take_while(|name| self.blocks.contains(name)).count();
            for name in names.iter().rev() {
                self.blocks.put(*name, ());
            }
            if held < names.len() {
                let size = BLOCK_TOKENS.get() as usize;
                let tokens: Vec<u32> = ids.iter().skip(held * size).take((names.len() - held) * size).collect();
                let parent = held.checked_sub(1).map(|before| EngineHash(names[before]));
                let new: Vec<EngineHash> = names[held..].iter().copied().map(EngineHash).collect();
                batch.push_stored(&new, parent, &tokens, BLOCK_TOKENS, Medium::Gpu);
            }
        }
        while self.blocks.len() > CACHE_BLOCKS {
            if let Some((name, ())) = self.blocks.pop_lru() {
                batch.push_removed(&[EngineHash(name)], Medium::Gpu);
            }
        }
        batch
    }
}

async fn publish(listener: TcpListener, mut cache: Cache, mut prompts: mpsc::Receiver<Vec<u8>>) {
    let mut socket = PubSocket::new();
    if socket.bind_listener(listener).await.is_err() {
        return;
    }
    let mut seq: u64 = 0;
    while let Some(body) = prompts.recv().await {
        let batch = cache.take(&body);
        if batch.events.is_empty() {
            continue;
        }
        let payload = Bytes::from(encode(&batch, Form::Vllm));
        let frames = vec![Bytes::new(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        seq += 1;
        if let Ok(message) = ZmqMessage::try_from(frames) {
            // Nobody may follow.
            let _ = socket.send(message).await;
            // The socket's own task has this thread too, and a full queue would keep it waiting.
            yield_now().await;
        }
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
