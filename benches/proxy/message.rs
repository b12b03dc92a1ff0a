//! One HTTP/1.1 message, request or response, read as its bytes come. No sockets; both ends of the bench use it.
//!
//! It knows a body by its length or its chunks, which is all that is sent here; a message with neither has none.

use std::io;

use memchr::{memchr, memmem};

/// Longest header and longest line of chunks: what is sent here has a fraction of it.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_LINE_BYTES: usize = 256;

/// A message, as far as it has come.
#[derive(Debug)]
pub(crate) struct Message {
    head: Vec<u8>,
    state: State,
    /// Bytes of the body so far, chunk lines not among them.
    pub(crate) body_bytes: u64,
    /// The body itself, where it is wanted.
    pub(crate) body: Option<Vec<u8>>,
}

#[derive(Debug)]
enum State {
    Head,
    /// Bytes that are left of a body with a length.
    Sized(u64),
    /// What has come of the line before a chunk.
    ChunkLine(Vec<u8>),
    Chunk(u64),
    /// Bytes of the line end behind a chunk; the last one ends the message.
    ChunkEnd {
        left: u64,
        is_last: bool,
    },
    Complete,
}

// === impl Message ===

impl Message {
    pub(crate) fn new() -> Self {
        Self { head: Vec::new(), state: State::Head, body_bytes: 0, body: None }
    }

    /// The same, with its body kept.
    pub(crate) fn kept() -> Self {
        Self { body: Some(Vec::new()), ..Self::new() }
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    pub(crate) fn has_begun(&self) -> bool {
        !self.head.is_empty()
    }

    /// Takes what has come; the next message begins after this one's answer, so all of it has to be part of this one.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.step(bytes)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// The status of a response, 0 if it is none.
    pub(crate) fn status(&self) -> u16 {
        self.first_line().split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn first_line(&self) -> &str {
        let end = memchr(b'\r', &self.head).unwrap_or(0);
        std::str::from_utf8(&self.head[..end]).unwrap_or("")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let head = std::str::from_utf8(&self.head).ok()?;
        head.split("\r\n").skip(1).find_map(|line| {
            let (said, value) = line.split_once(':')?;
            said.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// How many of the bytes were taken, at least one.
    fn step(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            State::Head => self.take_head(bytes),
            State::Sized(left) => {
                let taken = (*left).min(bytes.len() as u64) as usize;
                *left -= taken as u64;
                let is_over = *left == 0;
                self.keep(&bytes[..taken]);
                if is_over {
                    self.state = State::Complete;
                }
                Ok(taken)
            }
            State::ChunkLine(line) => {
                let end = memchr(b'\n', bytes);
                let taken = end.map_or(bytes.len(), |end| end + 1);
                line.extend_from_slice(&bytes[..taken]);
                if line.len() > MAX_LINE_BYTES {
                    return Err(io::Error::other("a chunk's line does not end"));
                }
                if end.is_some() {
                    self.state = match chunk_bytes(line)? {
                        0 => State::ChunkEnd { left: 2, is_last: true },
                        bytes => State::Chunk(bytes),
                    };
                }
                Ok(taken)
            }
            State::Chunk(left) => {
                let taken = (*left).min(bytes.len() as u64) as usize;
                *left -= taken as u64;
                if *left == 0 {
                    self.state = State::ChunkEnd { left: 2, is_last: false };
                }
                self.keep(&bytes[..taken]);
                Ok(taken)
            }
            State::ChunkEnd { left, is_last } => {
                let taken = (*left).min(bytes.len() as u64);
                *left -= taken;
                if *left == 0 {
                    self.state = if *is_last { State::Complete } else { State::ChunkLine(Vec::new()) };
                }
                Ok(taken as usize)
            }
            State::Complete => Err(io::Error::other("more came than the message")),
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (before, from) = (self.head.len(), self.head.len().saturating_sub(3));
        self.head.extend_from_slice(bytes);
        let Some(end) = memmem::find(&self.head[from..], b"\r\n\r\n").map(|at| from + at + 4) else {
            let is_long = self.head.len() > MAX_HEAD_BYTES;
            return if is_long { Err(io::Error::other("a header does not end")) } else { Ok(bytes.len()) };
        };
        self.head.truncate(end);
        self.state = match self.header("content-length").map(str::parse) {
            Some(Ok(0)) => State::Complete,
            Some(Ok(length)) => State::Sized(length),
            Some(Err(_)) => return Err(io::Error::other("a content-length is no number")),
            None if self.header("transfer-encoding").is_some() => State::ChunkLine(Vec::new()),
            None => State::Complete,
        };
        Ok(end - before)
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.body_bytes += bytes.len() as u64;
        if let Some(body) = &mut self.body {
            body.extend_from_slice(bytes);
        }
    }
}

fn chunk_bytes(line: &[u8]) -> io::Result<u64> {
    let line = std::str::from_utf8(line).unwrap_or("");
    let size = line.split([';', '\r', '\n']).next().unwrap_or("");
    u64::from_str_radix(size.trim(), 16).map_err(|_| io::Error::other("a chunk has no size"))
}
