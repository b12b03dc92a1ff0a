//! HTTP/1.1 messages on a TCP connection, read and written plainly. No library, so that nothing is normalised.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::LIMIT;

/// A connection and what was read ahead on it.
pub struct Wire {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// A start line and header fields.
#[derive(Debug, Clone, Default)]
pub struct Head {
    /// The bytes, with the empty line at the end.
    pub raw: Vec<u8>,
    pub start_line: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

// === impl Wire ===

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    pub async fn connect(address: SocketAddr) -> Self {
        Self::new(timeout(LIMIT, TcpStream::connect(address)).await.expect("loopback connects").unwrap())
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(LIMIT, self.stream.write_all(bytes)).await.map_err(|_| io::Error::other("the peer does not read"))?
    }

    /// The next head; none when the connection ended before its first byte.
    pub async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let raw: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Ok(Some(Head::parse(raw)));
            }
            if !self.fill().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ended("in a head")) };
            }
        }
    }

    /// Bytes that came with what was read last, and were not asked for yet.
    pub fn ahead(&self) -> usize {
        self.buffer.len()
    }

    /// A whole body.
    pub async fn body(&mut self, framing: Framing) -> io::Result<Vec<u8>> {
        match framing {
            Framing::None => Ok(Vec::new()),
            Framing::Length(length) => self.exactly(length).await,
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk().await? {
                    body.extend_from_slice(&chunk);
                }
                Ok(body)
            }
            Framing::UntilClose => {
                while self.fill().await? {}
                Ok(std::mem::take(&mut self.buffer))
            }
        }
    }

    /// The next chunk of a chunked body; none at its end.
    pub async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line().await?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| io::Error::other(format!("chunk size {line:?}")))?;
        let chunk = self.exactly(size).await?;
        if size > 0 {
            self.line().await?;
            return Ok(Some(chunk));
        }
        while !self.line().await?.is_empty() {}
        Ok(None)
    }

    pub async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.fill().await? {
                return Err(ended("in a body"));
            }
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Waits for the end of the connection, by FIN or reset; bytes that come before are dropped.
    pub async fn closed(&mut self) {
        while self.fill_for_ever().await.unwrap_or(false) {
            self.buffer.clear();
        }
    }

    /// Whether the connection ends without another byte.
    pub async fn ends(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill().await.unwrap_or(false)
    }

    /// Closes with a reset.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if !self.fill().await? {
                return Err(ended("in a line"));
            }
        }
    }

    async fn fill(&mut self) -> io::Result<bool> {
        timeout(LIMIT, self.fill_for_ever()).await.map_err(|_| io::Error::other("nothing more comes"))?
    }

    async fn fill_for_ever(&mut self) -> io::Result<bool> {
        self.buffer.reserve(64 * 1024);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }
}

// === impl Head ===

impl Head {
    pub fn parse(raw: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.split("\r\n");
        let start_line = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Self { raw, start_line, headers }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The second word of the start line: a request's target or a response's status.
    pub fn second_word(&self) -> &str {
        self.start_line.split(' ').nth(1).unwrap_or_default()
    }

    pub fn method(&self) -> &str {
        self.start_line.split(' ').next().unwrap_or_default()
    }

    pub fn request_framing(&self) -> Framing {
        self.framing(Framing::None)
    }

    /// How the body of a response to a `method` request ends.
    pub fn response_framing(&self, method: &str) -> Framing {
        let status = self.second_word();
        match method == "HEAD" || status.starts_with('1') || status == "204" || status == "304" {
            true => Framing::None,
            false => self.framing(Framing::UntilClose),
        }
    }

    fn framing(&self, otherwise: Framing) -> Framing {
        if self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Framing::Chunked;
        }
        self.header("content-length").map_or(otherwise, |length| Framing::Length(length.parse().unwrap()))
    }
}

fn ended(place: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the connection ended {place}"))
}
