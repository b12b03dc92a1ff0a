//! A raw HTTP/1.1 client: it frames, pauses, pipelines and leaves as a test says.

use std::io;
use std::net::SocketAddr;

use serde::de::DeserializeOwned;

use super::wire::{Framing, Head, Wire};

/// A connection to the proxy.
pub struct Client {
    pub wire: Wire,
}

/// A response, read whole.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub head: Head,
    pub body: Vec<u8>,
}

/// One GET on its own connection.
pub async fn get(address: SocketAddr, path: &str) -> Response {
    let mut client = Client::connect(address).await;
    client.send("GET", path, "", b"").await;
    client.response("GET").await.expect("GET is answered")
}

/// One POST with a content-length on its own connection; `headers` are whole lines.
pub async fn post(address: SocketAddr, path: &str, headers: &str, body: &[u8]) -> Response {
    let mut client = Client::connect(address).await;
    client.send("POST", path, headers, body).await;
    client.response("POST").await.expect("POST is answered")
}

/// `body` in chunks of odd sizes, with the last one.
pub fn chunked(body: &[u8]) -> Vec<u8> {
    const SIZES: [usize; 7] = [1, 7, 1021, 65_537, 3, 16_381, 131_071];
    let mut out = Vec::with_capacity(body.len() + body.len() / 1000 + 64);
    let (mut rest, mut sizes) = (body, SIZES.iter().cycle());
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        rest = behind;
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

// === impl Client ===

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self { wire: Wire::connect(address).await }
    }

    /// A request with a content-length if it has a body or is a POST. A peer that closes early is no error here.
    pub async fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let length = match body.is_empty() && method != "POST" {
            true => String::new(),
            false => format!("content-length: {}\r\n", body.len()),
        };
        self.send_head(method, path, &format!("{headers}{length}")).await;
        self.send_bytes(body).await;
    }

    pub async fn send_head(&mut self, method: &str, path: &str, headers: &str) {
        self.send_bytes(format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}\r\n").as_bytes()).await;
    }

    /// A POST in chunks.
    pub async fn send_chunked(&mut self, path: &str, headers: &str, body: &[u8]) {
        self.send_head("POST", path, &format!("{headers}transfer-encoding: chunked\r\n")).await;
        self.send_bytes(&chunked(body)).await;
    }

    /// What the proxy did not take shows in its response.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.wire.write(bytes).await;
    }

    /// The next response that is not informational.
    pub async fn response(&mut self, method: &str) -> io::Result<Response> {
        let head = self.head().await?;
        let body = self.wire.body(head.response_framing(method)).await?;
        Ok(Response { status: head.second_word().parse().unwrap(), head, body })
    }

    /// The head of the next response that is not informational.
    pub async fn head(&mut self) -> io::Result<Head> {
        loop {
            let head = self.wire.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if !head.second_word().starts_with('1') {
                return Ok(head);
            }
        }
    }

    /// Waits for `100 Continue`.
    pub async fn continued(&mut self) -> bool {
        matches!(self.wire.head().await, Ok(Some(head)) if head.second_word() == "100")
    }

    /// The next event of a chunked stream, without `data:`; none at its end.
    pub async fn event(&mut self) -> io::Result<Option<String>> {
        let chunk = self.wire.chunk().await?;
        Ok(chunk.map(|chunk| {
            let text = String::from_utf8(chunk).unwrap();
            text.trim_end().strip_prefix("data: ").unwrap_or(&text).to_owned()
        }))
    }
}

// === impl Response ===

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// `error.code` of an error in OpenAI's form; empty if it has none.
    pub fn error_code(&self) -> String {
        let value: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let has_form = value["error"]["message"].is_string() && value["error"]["type"].is_string();
        value["error"]["code"].as_str().filter(|_| has_form).unwrap_or_default().to_owned()
    }

    /// Attempts that were made, as the proxy says.
    pub fn attempts(&self) -> u32 {
        self.header("x-warmgate-attempts").map_or(0, |attempts| attempts.parse().unwrap())
    }

    pub fn framing(&self) -> Framing {
        self.head.response_framing("GET")
    }
}
