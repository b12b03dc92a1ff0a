//! A raw HTTP/1.1 client that sees every byte, and an engine that is fast enough for tests.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use warmgate::sim::engine::{Parameters, Timing};
use warmgate::sim::{EngineOptions, EngineState, SimEngine};

/// Longer than anything here takes; a test that gets here hangs.
const LIMIT: Duration = Duration::from_secs(20);

/// Options of a fast engine.
pub(crate) fn fast() -> EngineOptions {
    let defaults = EngineOptions::default();
    EngineOptions {
        parameters: Parameters { timing: Timing::from_rates(1e6, 1000.0), ..defaults.parameters },
        output_tokens: 4,
        idle_timeout: Duration::from_secs(60),
        ..defaults
    }
}

/// A fast engine.
pub(crate) fn start() -> SimEngine {
    SimEngine::start(fast()).unwrap()
}

/// Returns when the engine's state is as wanted.
pub(crate) async fn until(engine: &SimEngine, what: &str, is_so: impl Fn(&EngineState) -> bool) {
    let wait = async {
        while !is_so(&engine.state()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(LIMIT, wait).await.is_err() {
        panic!("never so: {what}; {:#?}", engine.state());
    }
}

/// Fails a test that hangs.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the engine did not do it in time")
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// The body; in pieces as the chunks came, one piece if it was not chunked.
    pub(crate) chunks: Vec<String>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        self.chunks.concat()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The data of the events, without `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.text()
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")))
            .collect()
    }
}

/// One connection.
pub(crate) struct Client {
    tcp: BufReader<TcpStream>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { tcp: BufReader::new(TcpStream::connect(address).await?) })
    }

    pub(crate) async fn to(engine: &SimEngine) -> Self {
        Self::connect(engine.address()).await.unwrap()
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(self.tcp.get_mut().write_all(bytes)).await
    }

    /// Sends a POST with JSON.
    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> io::Result<()> {
        self.write(&post(path, body)).await
    }

    /// The header of the next response that is not a 1xx.
    pub(crate) async fn head(&mut self) -> io::Result<Response> {
        let mut response = self.any_head().await?;
        while response.status < 200 {
            response = self.any_head().await?;
        }
        Ok(response)
    }

    pub(crate) async fn any_head(&mut self) -> io::Result<Response> {
        let status = self.line().await?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        Ok(Response { status, headers, chunks: Vec::new() })
    }

    /// One chunk of a chunked body; the last is empty.
    pub(crate) async fn chunk(&mut self) -> io::Result<String> {
        let size = self.line().await?;
        let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
        let text = self.exactly(size).await?;
        assert_eq!(self.line().await?, "", "a chunk ends with a line end");
        Ok(text)
    }

    /// A whole response.
    pub(crate) async fn response(&mut self) -> io::Result<Response> {
        let mut response = self.head().await?;
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk().await? {
                    chunk if chunk.is_empty() => break,
                    chunk => response.chunks.push(chunk),
                }
            }
        } else {
            let length = response.header("content-length").expect("a length").parse().unwrap();
            response.chunks.push(self.exactly(length).await?);
        }
        Ok(response)
    }

    async fn exactly(&mut self, size: usize) -> io::Result<String> {
        let mut bytes = vec![0; size];
        within(self.tcp.read_exact(&mut bytes)).await?;
        String::from_utf8(bytes).map_err(io::Error::other)
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if within(self.tcp.read_line(&mut line)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Bytes that have arrived, without waiting; empty if there are none.
    pub(crate) fn arrived(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 65_536];
        let count = self.tcp.get_mut().try_read(&mut bytes).unwrap_or(0);
        bytes.truncate(count);
        [self.tcp.buffer(), &bytes].concat()
    }
}

/// The bytes of a POST with JSON.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// One request on a connection of its own.
pub(crate) async fn send(engine: &SimEngine, path: &str, body: &Value) -> io::Result<Response> {
    let mut client = Client::connect(engine.address()).await?;
    client.post(path, body.to_string().as_bytes()).await?;
    client.response().await
}

/// A request without a body.
pub(crate) async fn call(engine: &SimEngine, method: &str, path: &str) -> io::Result<Response> {
    let mut client = Client::connect(engine.address()).await?;
    client.write(format!("{method} {path} HTTP/1.1\r\nhost: sim\r\n\r\n").as_bytes()).await?;
    client.response().await
}

/// A chat with one user message.
pub(crate) fn chat(text: &str, max_tokens: u32) -> Value {
    json!({"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens})
}

/// The same, streamed.
pub(crate) fn streamed(text: &str, max_tokens: u32) -> Value {
    let mut body = chat(text, max_tokens);
    body["stream"] = json!(true);
    body
}

pub(crate) const CHAT: &str = "/v1/chat/completions";
