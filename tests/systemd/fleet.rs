//! The two ends of a proxied exchange: a backend whose answers the test holds back, and a client.
//!
//! Invariant: no read or write blocks for longer than [`LIMIT`], so that a silent proxy is a failed test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::machine::LIMIT;

/// The first event of every streamed answer.
pub(crate) const FIRST_EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"}}]}\n\n";
/// The last one, sent once the backend is released.
pub(crate) const LAST_EVENT: &str = "data: [DONE]\n\n";

/// An HTTP server on loopback: 200 for every GET, a two-part event stream for every POST.
pub(crate) struct Backend {
    address: SocketAddr,
    gate: Arc<Gate>,
}

/// Holds the second part of the answers until it is opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

/// An answer that is being read.
pub(crate) struct Answer {
    reader: BufReader<TcpStream>,
    /// The HTTP status code.
    pub(crate) status: u16,
}

// === impl Backend ===

impl Backend {
    /// Starts one; its threads end with the test's process.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
        let address = listener.local_addr().expect("the listener is bound");
        let gate = Arc::new(Gate::default());
        let shared = Arc::clone(&gate);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let gate = Arc::clone(&shared);
                // A peer that leaves in the middle is its own affair; the test looks at what the client got.
                std::thread::spawn(move || serve(&stream, &gate).unwrap_or_default());
            }
        });
        Self { address, gate }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets all streams end, now and from now on.
    pub(crate) fn release(&self) {
        *self.gate.is_open.lock().expect("no holder panics") = true;
        self.gate.opened.notify_all();
    }
}

/// Answers one request and closes.
fn serve(stream: &TcpStream, gate: &Gate) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    let mut reader = BufReader::new(stream);
    let mut start = String::new();
    reader.read_line(&mut start)?;
    let mut body = vec![0; content_length(&read_header(&mut reader)?)];
    reader.read_exact(&mut body)?;
    let mut writer = stream;
    if start.starts_with("GET ") {
        return writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
    }
    writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    writer.write_all(FIRST_EVENT.as_bytes())?;
    let is_open = gate.is_open.lock().expect("no holder panics");
    drop(gate.opened.wait_timeout_while(is_open, LIMIT, |is_open| !*is_open).expect("no holder panics"));
    writer.write_all(LAST_EVENT.as_bytes())
}

/// An address that nothing listens on.
///
/// Each comes with a loopback IP of its own, made of process id and a counter, so that neither another test nor the
/// source port of some connection can take it before the program under test binds it.
pub(crate) fn free_address() -> SocketAddr {
    /// Only uniqueness matters, so `Relaxed` will do.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = (std::process::id() << 6) | (COUNT.fetch_add(1, Ordering::Relaxed) & 63);
    let [_, high, middle, low] = number.to_be_bytes();
    let own = Ipv4Addr::new(127, high, middle, low);
    TcpListener::bind((own, 0)).and_then(|listener| listener.local_addr()).expect("127.0.0.0/8 is ours")
}

// === client ===

/// Whether nobody listens there any more.
pub(crate) fn is_refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Sends a GET and gives status and body, or `None` while nobody answers there.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    get_with(address, path, "")
}

/// The same with further header lines.
pub(crate) fn get_with(address: SocketAddr, path: &str, headers: &str) -> Option<(u16, String)> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    let mut answer = request(address, &head).ok()?;
    let body = answer.rest();
    Some((answer.status, body))
}

/// Sends a streamed chat completion and gives the answer, read up to the end of its header.
pub(crate) fn chat(address: SocketAddr) -> Answer {
    let body = r#"{"model":"test","stream":true,"messages":[{"role":"user","content":"Hello"}]}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    request(address, &(head + body)).expect("the proxy answers")
}

fn request(address: SocketAddr, message: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(message.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut start = String::new();
    reader.read_line(&mut start)?;
    let status = start.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("not an HTTP answer: {start:?}")))?;
    read_header(&mut reader)?;
    Ok(Answer { reader, status })
}

impl Answer {
    /// Reads on until `part` has come.
    ///
    /// # Panics
    /// When the stream ends before that.
    pub(crate) fn read_until(&mut self, part: &str) {
        let mut seen = String::new();
        while !seen.contains(part) {
            let count = self.reader.read_line(&mut seen).expect("the stream goes on");
            assert!(count > 0, "the stream ended after {seen:?}, before {part:?}");
        }
    }

    /// Reads to the end of the connection.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset in place of a clean end still leaves what came before it.
        let _ = self.reader.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

fn read_header(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {}
    Ok(header)
}

fn content_length(header: &str) -> usize {
    let lower = header.to_ascii_lowercase();
    let value = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}
