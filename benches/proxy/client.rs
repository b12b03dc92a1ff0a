//! A client's connection: one exchange after the other, kept open between them.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::message::Message;

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 * 1024;

pub(crate) struct Client {
    stream: TcpStream,
    incoming: Vec<u8>,
}

// === impl Client ===

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, incoming: Vec::new() })
    }

    /// Sends a request and reads its answer to the end; the body is counted and not kept.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Message> {
        self.exchange_into(request, Message::new()).await
    }

    /// The same with the body.
    pub(crate) async fn exchange_whole(&mut self, request: &[u8]) -> io::Result<Message> {
        self.exchange_into(request, Message::kept()).await
    }

    /// Sends a request, and reads its answer until so many bytes of the body are there.
    pub(crate) async fn begin(&mut self, request: &[u8], body_bytes: u64) -> io::Result<Message> {
        self.stream.write_all(request).await?;
        let mut answer = Message::new();
        while answer.body_bytes < body_bytes {
            self.read(&mut answer).await?;
        }
        // Whoever holds many of them holds no room for what is read.
        self.incoming = Vec::new();
        Ok(answer)
    }

    async fn exchange_into(&mut self, request: &[u8], mut answer: Message) -> io::Result<Message> {
        self.stream.write_all(request).await?;
        while !answer.is_complete() {
            self.read(&mut answer).await?;
        }
        Ok(answer)
    }

    async fn read(&mut self, answer: &mut Message) -> io::Result<()> {
        self.incoming.resize(READ_BYTES, 0);
        match self.stream.read(&mut self.incoming).await? {
            0 => Err(io::Error::other(format!("the connection ended behind {} bytes of a body", answer.body_bytes))),
            read => answer.take(&self.incoming[..read]),
        }
    }
}
