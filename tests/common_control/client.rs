//! An HTTP/1.1 client that keeps its connection and sees when the other side closes it.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::within;

/// A whole reply, or its head if the body is being streamed.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// One connection, over TCP or anything else.
pub struct Connection<S = TcpStream>(BufReader<S>);

/// How a body is framed.
enum Framing {
    Length(usize),
    Chunked,
    ToTheEnd,
}

// === impl Reply ===

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(held, _)| held == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The name of the backend that made it.
    pub fn backend(&self) -> &str {
        self.header("x-warmgate-backend").unwrap_or("-")
    }

    fn framing(&self) -> Framing {
        if self.header("transfer-encoding") == Some("chunked") {
            return Framing::Chunked;
        }
        self.header("content-length").map_or(Framing::ToTheEnd, |length| Framing::Length(length.parse().unwrap()))
    }
}

// === impl Connection ===

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::over(TcpStream::connect(address).await?))
    }

    /// Whether the other side has neither closed it nor said more than was read.
    pub fn is_open(&self) -> bool {
        let is_quiet = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.0.buffer().is_empty() && self.0.get_ref().try_read(&mut [0]).is_err_and(is_quiet)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Speaks over an established connection.
    pub fn over(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    /// A request and its whole reply.
    ///
    /// # Errors
    /// When the connection is closed or breaks before the reply's end.
    pub async fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) -> io::Result<Reply> {
        self.send(method, path, headers, body).await?;
        let mut reply = within("a reply's head", self.head()).await?;
        reply.body = String::from_utf8_lossy(&within("a reply's body", self.body(&reply)).await?).into_owned();
        Ok(reply)
    }

    /// A POST to the chat endpoint and its whole reply.
    ///
    /// # Errors
    /// See [`Self::ask`].
    pub async fn chat(&mut self, body: &Value) -> io::Result<Reply> {
        self.ask("POST", "/v1/chat/completions", "", &body.to_string()).await
    }

    /// Sends a request; `headers` are whole lines.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n{headers}\r\n");
        self.0.write_all(format!("{head}{body}").as_bytes()).await
    }

    /// The head of the next reply, interim ones aside.
    ///
    /// # Errors
    /// When the connection is closed or breaks first.
    pub async fn head(&mut self) -> io::Result<Reply> {
        loop {
            let first = self.line().await?;
            let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
            let mut reply = Reply { status: status.ok_or(io::ErrorKind::InvalidData)?, ..Reply::default() };
            loop {
                let line = self.line().await?;
                let Some((name, value)) = line.split_once(':') else { break };
                reply.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if reply.status >= 200 {
                return Ok(reply);
            }
        }
    }

    /// The body behind this head.
    ///
    /// # Errors
    /// When the connection is closed or breaks first.
    pub async fn body(&mut self, head: &Reply) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        match head.framing() {
            Framing::Length(length) => {
                body.resize(length, 0);
                self.0.read_exact(&mut body).await?;
            }
            Framing::ToTheEnd => {
                self.0.read_to_end(&mut body).await?;
            }
            Framing::Chunked => {
                while let Some(chunk) = self.chunk().await? {
                    body.extend_from_slice(&chunk);
                }
            }
        }
        Ok(body)
    }

    /// The next chunk of a chunked body; none at its end.
    ///
    /// # Errors
    /// When the connection is closed or breaks first.
    pub async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line().await?;
        let length = usize::from_str_radix(&line, 16).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let mut chunk = vec![0; length + 2];
        self.0.read_exact(&mut chunk).await?;
        chunk.truncate(length);
        Ok((length > 0).then_some(chunk))
    }

    /// The rest of a chunked body, as text.
    ///
    /// # Errors
    /// When the connection is closed or breaks first.
    pub async fn rest(&mut self) -> io::Result<String> {
        let mut rest = Vec::new();
        while let Some(chunk) = within("the rest of a stream", self.chunk()).await? {
            rest.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8(rest).unwrap())
    }

    /// Whether the other side closes the connection, with nothing more to read.
    pub async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        !matches!(within("a closed connection", self.0.read(&mut byte)).await, Ok(1..))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// A stream that has begun.
pub async fn open_stream(address: SocketAddr, body: &Value) -> (Connection, Reply) {
    let mut connection = Connection::open(address).await.unwrap();
    connection.send("POST", "/v1/chat/completions", "", &body.to_string()).await.unwrap();
    let head = within("a stream's head", connection.head()).await.unwrap();
    (connection, head)
}

/// One request over a connection of its own; panics if there is no whole reply.
pub async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Reply {
    let mut connection = Connection::open(address).await.unwrap();
    connection.ask(method, path, "", body).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// A GET.
pub async fn get(address: SocketAddr, path: &str) -> Reply {
    ask(address, "GET", path, "").await
}

/// A chat request.
pub async fn post_chat(address: SocketAddr, body: &Value) -> Reply {
    ask(address, "POST", "/v1/chat/completions", &body.to_string()).await
}
