//! A scripted backend: a small HTTP/1.1 server whose pages and answers a test changes while it runs.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What is served at a path.
#[derive(Debug, Clone)]
pub enum Page {
    /// A status and a body.
    Text(u16, String),
    /// The request is read and never answered.
    Hang,
    /// The connection is closed instead of an answer.
    Reset,
}

/// What happens to a POST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A completion at once, streamed if the request says so.
    Whole,
    /// A completion that comes as far as [`Engine::emit`] and [`Engine::finish`] say.
    Gated,
    /// This status, with an error.
    Status(u16),
    /// A response that is stored, as of `/v1/responses`; each with an id of its own.
    Stored,
    /// The connection is closed instead of an answer.
    Reset,
}

#[derive(Debug)]
struct Script {
    health: Page,
    /// Answers to the next probes, before `health` holds again.
    next_health: VecDeque<Page>,
    metrics: Page,
    models: Page,
    answer: Answer,
}

/// How far gated answers may come.
#[derive(Debug, Clone, Copy, Default)]
struct Gate {
    tokens: usize,
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    gate: watch::Sender<Gate>,
    probes: AtomicUsize,
    scrapes: AtomicUsize,
    posts: AtomicUsize,
    open: AtomicUsize,
}

/// A backend at an address that stays its own while it is down: a second socket, bound but not listening, holds it.
pub struct Engine {
    name: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    spare: Mutex<TcpSocket>,
    serving: Mutex<JoinSet<()>>,
}

// === impl Page ===

impl Page {
    pub fn ok(body: impl Into<String>) -> Self {
        Self::Text(200, body.into())
    }

    pub fn status(status: u16) -> Self {
        Self::Text(status, String::new())
    }
}

// === impl Engine ===

impl Engine {
    /// A healthy engine that answers everything.
    pub fn up(name: &str) -> Self {
        let engine = Self::down(name);
        engine.start();
        engine
    }

    /// An engine whose address refuses connections until [`Self::start`].
    pub fn down(name: &str) -> Self {
        let spare = bound("127.0.0.1:0".parse().unwrap());
        let script = Script {
            health: Page::status(200),
            next_health: VecDeque::new(),
            metrics: Page::status(404),
            models: Page::ok(r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#),
            answer: Answer::Whole,
        };
        let shared = Shared {
            script: Mutex::new(script),
            gate: watch::Sender::default(),
            probes: AtomicUsize::new(0),
            scrapes: AtomicUsize::new(0),
            posts: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        };
        Self {
            name: name.to_owned(),
            address: spare.local_addr().unwrap(),
            shared: Arc::new(shared),
            spare: Mutex::new(spare),
            serving: Mutex::default(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens.
    pub fn start(&self) {
        let socket = std::mem::replace(&mut *self.spare.lock(), bound(self.address));
        let listener = socket.listen(1024).unwrap();
        self.serving.lock().spawn(accept(listener, Arc::clone(&self.shared)));
    }

    /// Ends: every connection breaks, and new ones are refused.
    pub async fn stop(&self) {
        let mut serving = std::mem::take(&mut *self.serving.lock());
        serving.shutdown().await;
    }

    pub fn set_health(&self, page: Page) {
        self.shared.script.lock().health = page;
    }

    /// The next probes get these, one after the other, then what [`Self::set_health`] said last.
    pub fn script_health(&self, pages: impl IntoIterator<Item = Page>) {
        self.shared.script.lock().next_health.extend(pages);
    }

    pub fn set_metrics(&self, page: Page) {
        self.shared.script.lock().metrics = page;
    }

    pub fn set_answer(&self, answer: Answer) {
        self.shared.script.lock().answer = answer;
    }

    /// Lets every gated answer come to its `tokens`-th token.
    pub fn emit(&self, tokens: usize) {
        self.shared.gate.send_modify(|gate| gate.tokens = gate.tokens.max(tokens));
    }

    /// Lets every gated answer end, those that are still to begin as well.
    pub fn finish(&self) {
        self.shared.gate.send_modify(|gate| gate.is_over = true);
    }

    /// Gated answers stop at their beginning again.
    pub fn close_gate(&self) {
        self.shared.gate.send_replace(Gate::default());
    }

    pub fn probes(&self) -> usize {
        self.shared.probes.load(SeqCst)
    }

    pub fn scrapes(&self) -> usize {
        self.shared.scrapes.load(SeqCst)
    }

    /// POSTs so far.
    pub fn posts(&self) -> usize {
        self.shared.posts.load(SeqCst)
    }

    /// POSTs that are being answered.
    pub fn open_posts(&self) -> usize {
        self.shared.open.load(SeqCst)
    }
}

/// A socket at `address` that shares it with one that listens.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // The proxy closes connections as it likes.
            let _ = converse(stream, &shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let Some((first, body)) = read_request(&mut stream).await? else { return Ok(()) };
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let page = match (method, path) {
            ("POST", _) => {
                if !answer_post(&mut stream, shared, &body).await? {
                    return Ok(());
                }
                continue;
            }
            (_, "/metrics") => {
                shared.scrapes.fetch_add(1, SeqCst);
                shared.script.lock().metrics.clone()
            }
            (_, "/v1/models") => shared.script.lock().models.clone(),
            _ => {
                let page = {
                    let mut script = shared.script.lock();
                    script.next_health.pop_front().unwrap_or_else(|| script.health.clone())
                };
                shared.probes.fetch_add(1, SeqCst);
                page
            }
        };
        match page {
            Page::Text(status, text) => write_reply(&mut stream, status, "text/plain", &text).await?,
            Page::Hang => return wait_until_closed(&mut stream).await,
            Page::Reset => return Ok(()),
        }
    }
}

/// The first line and the body; none when the other side has closed.
async fn read_request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<(String, String)>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((first, String::from_utf8_lossy(&body).into_owned())))
}

/// Whether the connection goes on.
async fn answer_post(stream: &mut BufReader<TcpStream>, shared: &Shared, body: &str) -> io::Result<bool> {
    let answer = shared.script.lock().answer;
    shared.posts.fetch_add(1, SeqCst);
    shared.open.fetch_add(1, SeqCst);
    let open = Open(shared);
    let is_streamed = body.contains(r#""stream":true"#);
    match answer {
        Answer::Reset => return Ok(false),
        Answer::Status(status) => {
            write_reply(stream, status, "application/json", r#"{"error":{"message":"scripted"}}"#).await?;
        }
        Answer::Stored => {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let id = format!("resp_{}", NEXT.fetch_add(1, SeqCst));
            let body = json!({"id": id, "object": "response", "status": "completed", "output": []});
            write_reply(stream, 200, "application/json", &body.to_string()).await?;
        }
        Answer::Whole if is_streamed => stream_tokens(stream, shared, false).await?,
        Answer::Gated if is_streamed => stream_tokens(stream, shared, true).await?,
        Answer::Gated => {
            let mut gate = shared.gate.subscribe();
            tokio::select! {
                _ = gate.wait_for(|gate| gate.is_over) => {}
                closed = wait_until_closed(stream) => return closed.map(|()| false),
            }
            write_completion(stream, body.len()).await?;
        }
        Answer::Whole => write_completion(stream, body.len()).await?,
    }
    drop(open);
    Ok(true)
}

/// Counts a POST for as long as it is answered.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

/// Events `token-0` to `token-4`, then `[DONE]`; gated, as many as the gate says, and the rest when it is over.
async fn stream_tokens(stream: &mut BufReader<TcpStream>, shared: &Shared, is_gated: bool) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut gate = shared.gate.subscribe();
    for token in 0..TOKENS {
        if is_gated {
            tokio::select! {
                _ = gate.wait_for(|gate| gate.is_over || gate.tokens > token) => {}
                closed = wait_until_closed(stream) => return closed,
            }
        }
        let event = json!({"choices": [{"index": 0, "delta": {"content": format!("token-{token}")}}]});
        write_chunk(stream, &format!("data: {event}\n\n")).await?;
    }
    if is_gated {
        tokio::select! {
            _ = gate.wait_for(|gate| gate.is_over) => {}
            closed = wait_until_closed(stream) => return closed,
        }
    }
    write_chunk(stream, "data: [DONE]\n\n").await?;
    stream.write_all(b"0\r\n\r\n").await
}

/// Tokens of a streamed answer.
pub const TOKENS: usize = 5;

/// Whether `text` is a streamed answer from its first token to its end.
pub fn is_whole_stream(text: &str) -> bool {
    (0..TOKENS).all(|token| text.contains(&format!("token-{token}"))) && text.ends_with("data: [DONE]\n\n")
}

async fn write_completion(stream: &mut BufReader<TcpStream>, prompt_bytes: usize) -> io::Result<()> {
    let body = json!({
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt_bytes / 3, "completion_tokens": 1, "total_tokens": prompt_bytes / 3 + 1},
    });
    write_reply(stream, 200, "application/json", &body.to_string()).await
}

async fn write_chunk(stream: &mut BufReader<TcpStream>, text: &str) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await
}

async fn write_reply(stream: &mut BufReader<TcpStream>, status: u16, kind: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

async fn wait_until_closed(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte).await? > 0 {}
    Ok(())
}
