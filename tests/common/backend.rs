//! Backends that do what a test says with each request, down to the byte and the reset.
//!
//! Requests of the proxy itself (probes, model lists) are answered at once and not shown to the script.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::LIMIT;
use super::wire::{Framing, Head, Wire};

/// What a script is: it reads and answers one request. An error closes the connection.
pub type Acting<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;
type Script = Arc<dyn for<'a> Fn(&'a mut Exchange) -> Acting<'a> + Send + Sync>;

/// Backends with one script, by index.
pub struct Fleet {
    backends: Vec<Backend>,
    log: Arc<Log>,
}

struct Backend {
    address: SocketAddr,
    accepting: JoinHandle<()>,
    /// Keeps the port of a backend that refuses connections from being given to somebody else.
    closed: Option<TcpSocket>,
    /// Fill the queue of a backend that takes no connection.
    waiting: Vec<TcpStream>,
}

/// A request as a backend received it.
#[derive(Debug, Clone)]
pub struct Received {
    pub backend: usize,
    pub head: Head,
}

#[derive(Default)]
struct Log {
    received: Mutex<Vec<Received>>,
    /// By request id.
    attempts: Mutex<HashMap<String, u32>>,
    /// What GET /v1/models is answered to the proxy's own question.
    models: Mutex<String>,
}

/// One request at a backend, and the means to answer it.
pub struct Exchange {
    wire: Wire,
    /// Index of the backend in its fleet.
    pub backend: usize,
    /// How often the fleet has seen this request id, this time included.
    pub attempt: u32,
    /// How many requests this connection has brought, this one included.
    pub turn: u32,
    pub head: Head,
    unread: Framing,
    /// Whether the connection is kept for another request.
    is_kept: bool,
}

// === impl Fleet ===

impl Fleet {
    pub async fn start<F>(count: usize, script: F) -> Self
    where
        F: for<'a> Fn(&'a mut Exchange) -> Acting<'a> + Send + Sync + 'static,
    {
        let (script, log): (Script, _) = (Arc::new(script), Arc::<Log>::default());
        let mut backends = Vec::new();
        for index in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let accepting = tokio::spawn(accept(listener, index, Arc::clone(&script), Arc::clone(&log)));
            backends.push(Backend { address, accepting, closed: None, waiting: Vec::new() });
        }
        Self { backends, log }
    }

    /// Backends that read each request whole and answer with what they got.
    pub async fn echo(count: usize) -> Self {
        Self::start(count, |exchange| Box::pin(exchange.echo())).await
    }

    /// What the proxy is told when it asks which models are served.
    pub fn with_models(self, json: &str) -> Self {
        json.clone_into(&mut self.log.models.lock());
        self
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.backends.iter().map(|backend| backend.address).collect()
    }

    /// The backend's name in the proxy.
    pub fn name(&self, index: usize) -> String {
        self.backends[index].address.to_string()
    }

    /// The index of the backend that the proxy calls `name`.
    pub fn index(&self, name: &str) -> usize {
        self.backends.iter().position(|backend| backend.address.to_string() == name).expect("a backend of the fleet")
    }

    /// Requests that reached a script, in order.
    pub fn received(&self) -> Vec<Received> {
        self.log.received.lock().clone()
    }

    /// From now on connections to this backend are refused.
    pub async fn refuse(&mut self, index: usize) {
        let socket = self.leave(index).await;
        self.backends[index].closed = Some(socket);
    }

    /// From now on connections to this backend are neither made nor refused: what the system queues for it is full.
    pub async fn ignore(&mut self, index: usize) -> TcpListener {
        let listener = self.leave(index).await.listen(1).unwrap();
        let backend = &mut self.backends[index];
        while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(backend.address)).await {
            backend.waiting.push(stream.unwrap());
        }
        listener
    }

    async fn leave(&mut self, index: usize) -> TcpSocket {
        let backend = &mut self.backends[index];
        backend.accepting.abort();
        // Until the task is gone the port is listened on.
        let _ = (&mut backend.accepting).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(backend.address).unwrap();
        socket
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.backends.iter().for_each(|backend| backend.accepting.abort());
    }
}

async fn accept(listener: TcpListener, index: usize, script: Script, log: Arc<Log>) {
    loop {
        let (stream, _) = listener.accept().await.expect("loopback accepts");
        let (script, log) = (Arc::clone(&script), Arc::clone(&log));
        tokio::spawn(async move {
            // How a connection ended is seen where it matters: at the client.
            let _ = converse(stream, index, script, &log).await;
        });
    }
}

async fn converse(stream: TcpStream, backend: usize, script: Script, log: &Log) -> io::Result<()> {
    let mut wire = Wire::new(stream);
    let mut turn = 0;
    loop {
        // Idle for as long as the proxy keeps the connection.
        wire.stream.readable().await?;
        let Some(head) = wire.head().await? else { return Ok(()) };
        if head.header("user-agent").is_some_and(|agent| agent.starts_with("warmgate/")) {
            answer_own(&mut wire, &head, log).await?;
            continue;
        }
        turn += 1;
        let attempt = log.note(backend, &head);
        let unread = head.request_framing();
        let mut exchange = Exchange { wire, backend, attempt, turn, head, unread, is_kept: true };
        script(&mut exchange).await?;
        if !exchange.is_kept {
            return Ok(());
        }
        wire = exchange.wire;
    }
}

async fn answer_own(wire: &mut Wire, head: &Head, log: &Log) -> io::Result<()> {
    let body = match head.second_word() {
        "/health" => "ok".to_owned(),
        "/v1/models" => log.models.lock().clone(),
        _ => String::new(),
    };
    let status = if body.is_empty() { "404 Not Found" } else { "200 OK" };
    wire.write(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await
}

// === impl Log ===

impl Log {
    fn note(&self, backend: usize, head: &Head) -> u32 {
        self.received.lock().push(Received { backend, head: head.clone() });
        let id = head.header("x-request-id").unwrap_or_default().to_owned();
        let mut attempts = self.attempts.lock();
        let attempt = attempts.entry(id).or_insert(0);
        *attempt += 1;
        *attempt
    }
}

// === impl Exchange ===

impl Exchange {
    /// The request's body, whole.
    pub async fn body(&mut self) -> io::Result<Vec<u8>> {
        let framing = std::mem::replace(&mut self.unread, Framing::None);
        self.wire.body(framing).await
    }

    /// Bytes of the request's body that came with its header.
    pub fn ahead(&self) -> usize {
        self.wire.ahead()
    }

    /// The first `length` bytes of the request's body; the rest stays unread.
    pub async fn body_part(&mut self, length: usize) -> io::Result<Vec<u8>> {
        self.wire.exactly(length).await
    }

    /// Reads the body and answers with its hash, its length and its framing.
    pub async fn echo(&mut self) -> io::Result<()> {
        let framing = self.unread;
        let body = self.body().await?;
        let framing = match framing {
            Framing::Length(_) => "content-length",
            Framing::Chunked => "chunked",
            _ => "none",
        };
        let answer = serde_json::json!({"hash": super::hash(&body), "length": body.len(), "framing": framing});
        self.respond(200, &answer.to_string()).await
    }

    /// A JSON response with its length.
    pub async fn respond(&mut self, status: u16, body: &str) -> io::Result<()> {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} S\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        self.raw(&[head.as_bytes(), body.as_bytes()].concat()).await
    }

    /// These bytes, as they are.
    pub async fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.write(bytes).await
    }

    /// Reads the body and begins an event stream.
    pub async fn begin_stream(&mut self) -> io::Result<()> {
        self.body().await?;
        self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n").await
    }

    /// One data event, as a chunk.
    pub async fn event(&mut self, data: &str) -> io::Result<()> {
        let event = format!("data: {data}\n\n");
        self.raw(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
    }

    /// The end mark and the end of the stream.
    pub async fn end_stream(&mut self) -> io::Result<()> {
        self.event("[DONE]").await?;
        self.raw(b"0\r\n\r\n").await
    }

    /// Closes the connection after this answer.
    pub fn close(&mut self) {
        self.is_kept = false;
    }

    /// Closes the connection with a reset.
    pub fn reset(&mut self) -> io::Result<()> {
        self.close();
        self.wire.stream.set_zero_linger()
    }

    /// Waits until the proxy closes the connection: how long that took.
    pub async fn until_closed(&mut self) -> Duration {
        self.close();
        let started = Instant::now();
        timeout(LIMIT, self.wire.closed()).await.expect("the proxy closes the connection");
        started.elapsed()
    }
}
