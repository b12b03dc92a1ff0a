//! The client's side of ZMTP 3.1 (ZeroMQ RFCs 23 and 37), as far as SUB and DEALER sockets need it.
//!
//! Own code, since what the `zeromq` crate does with a connection cannot be bounded: it allocates whatever frame length a
//! peer claims, which ends the process; a peer that is gone without a word is never noticed; and it connects again behind
//! our back, where messages are lost unseen. Here a connection is one TCP stream that its owner reads: nothing is queued
//! but by the system's sockets, a silent peer is asked for a sign of life, and the end of a connection is always seen.
//! Only TCP and the NULL mechanism, which is what engines use.

mod codec;
mod error;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use codec::{Frame, GREETING_BYTES, Greeting, command, property, put_command, put_frame, put_property, take_frame};
use error::SocketName;
pub(super) use error::{Error, Kind};

/// Frames of one message: three for an event, four and more for a reply.
pub(super) type Message = SmallVec<[Bytes; 4]>;

/// Most frames of a message.
const MAX_FRAMES: usize = 8;

/// Most bytes of a message. A batch with a million tokens has 5 MB.
const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// Most bytes of a command; they hold no more than a few names.
const MAX_COMMAND_BYTES: usize = 64 * 1024;

/// Room that is made before a read.
const READ_BYTES: usize = 64 * 1024;

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Connecting, with the handshake.
    pub(super) connect: Duration,
    /// A peer's silence before it is asked for a sign of life, and then again until it gives one.
    pub(super) silence: Duration,
}

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    frames: Message,
    /// Bytes in `frames`.
    bytes: usize,
    peer: Greeting,
    silence: Duration,
    /// When the peer has been silent for too long.
    deadline: Instant,
    is_asked: bool,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), silence: Duration::from_secs(10) }
    }
}

// === impl Connection ===

/// Silence before the system asks a peer's machine for a sign of life.
const KEEPALIVE_TIME: Duration = Duration::from_secs(10);

/// The system's signs of life: a peer whose machine is gone is noticed after half a minute.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_TIME / 2).with_retries(4)
}

impl Connection {
    /// Connects to `host` and shakes hands.
    ///
    /// # Errors
    /// See [`Error`].
    pub(super) async fn open(host: &str, port: u16, kind: Kind, limits: Limits) -> Result<Self, Error> {
        let connecting = async {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            // Who speaks an older version cannot be asked for a sign of life; the system asks for one of its own.
            SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
            Self::shake_hands(stream, kind, limits).await
        };
        timeout(limits.connect, connecting).await.unwrap_or(Err(Error::TimedOut(limits.connect)))
    }

    async fn shake_hands(stream: TcpStream, kind: Kind, limits: Limits) -> Result<Self, Error> {
        let mut connection = Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            frames: Message::new(),
            bytes: 0,
            peer: Greeting::OURS,
            deadline: Instant::now() + limits.silence,
            silence: limits.silence,
            is_asked: false,
        };
        connection.output.extend_from_slice(&Greeting::OURS.bytes());
        while connection.input.len() < GREETING_BYTES {
            // Whoever speaks something else is told by the first byte, without waiting for the rest.
            if connection.input.first().is_some_and(|&first| first != 0xff) {
                return Err(Error::Protocol("what answers there does not speak ZMTP"));
            }
            connection.fill().await?;
        }
        connection.peer = Greeting::read(&connection.input.split_to(GREETING_BYTES))?;
        let mut properties = Vec::new();
        put_property(&mut properties, "Socket-Type", kind.name());
        if kind == Kind::Dealer {
            put_property(&mut properties, "Identity", "");
        }
        put_command(&mut connection.output, "READY", &properties);
        let ready = loop {
            match connection.frame()? {
                Some(frame) if frame.is_command => break frame.body,
                Some(_) => return Err(Error::Protocol("a message came before the READY command")),
                None => connection.fill().await?,
            }
        };
        match command(&ready) {
            Some((b"READY", properties)) => match property(properties, b"Socket-Type") {
                Some(peer) if kind.fits(peer) => Ok(connection),
                Some(peer) => Err(Error::WrongSocket { found: SocketName::of(peer), wanted: kind.peers() }),
                None => Err(Error::Protocol("the READY command has no Socket-Type")),
            },
            Some((b"ERROR", _)) => Err(Error::Protocol("the engine refuses the connection")),
            _ => Err(Error::Protocol("the first command is not READY")),
        }
    }

    /// Asks for all messages whose first frame begins with `topic`.
    ///
    /// # Errors
    /// See [`Error`].
    pub(super) async fn subscribe(&mut self, topic: &str) -> Result<(), Error> {
        if self.peer.knows_commands() {
            put_command(&mut self.output, "SUBSCRIBE", topic.as_bytes());
        } else {
            put_frame(&mut self.output, &[b"\x01", topic.as_bytes()].concat(), false);
        }
        self.flush().await
    }

    /// Sends one message.
    ///
    /// # Errors
    /// See [`Error`].
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        for (at, frame) in frames.iter().enumerate() {
            put_frame(&mut self.output, frame, at + 1 < frames.len());
        }
        self.flush().await
    }

    /// The next message. Nothing is lost if this is dropped before it is ready.
    ///
    /// # Errors
    /// See [`Error`]; the connection is of no use then.
    pub(super) async fn next(&mut self) -> Result<Message, Error> {
        loop {
            while let Some(frame) = self.frame()? {
                if frame.is_command {
                    self.obey(&frame.body);
                } else if let Some(message) = self.add(frame)? {
                    return Ok(message);
                }
            }
            self.fill().await?;
        }
    }

    fn frame(&mut self) -> Result<Option<Frame>, Error> {
        take_frame(&mut self.input, MAX_MESSAGE_BYTES - self.bytes, MAX_COMMAND_BYTES)
    }

    fn add(&mut self, frame: Frame) -> Result<Option<Message>, Error> {
        if self.frames.len() >= MAX_FRAMES {
            return Err(Error::Protocol("a message has more than 8 frames"));
        }
        self.bytes += frame.body.len();
        self.frames.push(frame.body);
        if frame.has_more {
            return Ok(None);
        }
        self.bytes = 0;
        Ok(Some(std::mem::take(&mut self.frames)))
    }

    /// A sign of life is asked for; others need no answer.
    fn obey(&mut self, body: &[u8]) {
        if let Some((b"PING", rest)) = command(body) {
            // After the time to live comes a context, which goes back.
            let context = rest.get(2..).unwrap_or_default();
            put_command(&mut self.output, "PONG", &context[..context.len().min(16)]);
        }
    }

    /// Sends what is to be sent, then reads what has come, at least a byte.
    async fn fill(&mut self) -> Result<(), Error> {
        self.flush().await?;
        self.input.reserve(READ_BYTES);
        loop {
            match timeout_at(self.deadline, self.stream.read_buf(&mut self.input)).await {
                Ok(Ok(0)) => return Err(Error::Closed),
                Ok(read) => {
                    read?;
                    self.deadline = Instant::now() + self.silence;
                    self.is_asked = false;
                    return Ok(());
                }
                Err(_) if self.is_asked => return Err(Error::Silent(self.silence)),
                Err(_) => {
                    self.deadline = Instant::now() + self.silence;
                    // Peers of before 3.1 cannot be asked.
                    if self.peer.knows_commands() {
                        self.is_asked = true;
                        put_command(&mut self.output, "PING", &[0, 0]);
                        self.flush().await?;
                    }
                }
            }
        }
    }

    /// A peer that reads nothing makes this wait no longer than one that says nothing.
    async fn flush(&mut self) -> Result<(), Error> {
        while !self.output.is_empty() {
            match timeout_at(self.deadline, self.stream.write_buf(&mut self.output)).await {
                Ok(written) => drop(written?),
                Err(_) => return Err(Error::Silent(self.silence)),
            }
        }
        Ok(())
    }
}
