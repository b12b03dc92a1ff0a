//! The body of a request, which does not go through Pingora.
//!
//! Pingora would copy it several times. So its header says here that the body is one byte, or one chunk of one byte, and that
//! is what Pingora gets. The real one is read by whoever asks for it, straight into the memory it stays in.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, BytesMut};
use pingora_core::protocols::IO;
use tokio::io::AsyncReadExt;

use super::{Http1, Phase, READ_BYTES};
use crate::downstream::chunks::Chunks;
use crate::downstream::header::Body;

/// Most bytes of a body that are passed over where nobody asked for it.
const SKIP_BYTES: usize = 256 * 1024;

/// So long a body has its memory at once. What is not written yet is addresses and no memory, but those can be limited too.
const AT_ONCE_BYTES: usize = 2 * 1024 * 1024;

const BYTE: &[u8] = b".";
const CHUNK: &[u8] = b"1\r\n.\r\n0\r\n\r\n";

/// How a body ends.
#[derive(Debug)]
pub(super) enum Framing {
    /// After so many more bytes.
    Sized(u64),
    Chunked(Chunks),
}

/// Gives a body that is full room for more of the `left` bytes that are to come: for all of them, so that nothing is copied
/// twice, but of a long one for as much again as has come, since a length is only said.
pub(crate) fn grow(body: &mut BytesMut, left: usize) {
    if body.len() == body.capacity() {
        let step = if left <= AT_ONCE_BYTES { left } else { body.len().max(AT_ONCE_BYTES / 2) };
        body.reserve(step.min(left));
    }
}

impl Http1 {
    /// A header is whole, and says that `body` follows.
    pub(super) fn expect(&mut self, body: Body) {
        (self.phase, self.stand_in) = match body {
            Body::Nothing => (Phase::Header, b"" as &[u8]),
            Body::Sized(length, digits) => {
                let digits = &mut self.ahead[digits];
                digits.fill(b'0');
                digits[digits.len() - 1] = b'1';
                (Phase::Body(Framing::Sized(length)), BYTE)
            }
            Body::Chunked => (Phase::Body(Framing::Chunked(Chunks::new())), CHUNK),
        };
    }

    /// How many bytes of a body are to come; none where that is not known.
    pub(in crate::downstream) fn left(&self) -> Option<u64> {
        match self.phase {
            Phase::Body(Framing::Sized(left)) => Some(left),
            Phase::Body(Framing::Chunked(_)) => None,
            Phase::Header | Phase::Refused => Some(0),
        }
    }

    /// Reads more of a body behind what is in `body`, which gets room for `most` bytes if need be; how many came, none at
    /// its end.
    ///
    /// # Errors
    /// The connection failed or ended, or a chunk is not as it has to be.
    pub(in crate::downstream) fn poll_body(
        &mut self,
        io: &mut Box<dyn IO>,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        match self.phase {
            Phase::Header => Poll::Ready(Ok(0)),
            Phase::Body(Framing::Sized(left)) => {
                let length = ready!(self.poll_sized(io, cx, body, left, most))?;
                let left = left - length as u64;
                self.phase = if left == 0 { Phase::Header } else { Phase::Body(Framing::Sized(left)) };
                Poll::Ready(Ok(length))
            }
            Phase::Body(Framing::Chunked(_)) => self.poll_chunks(io, cx, body),
            Phase::Refused => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
    }

    fn poll_sized(
        &mut self,
        io: &mut Box<dyn IO>,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
        left: u64,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let ahead = self.ahead.len().min(left);
        if ahead == left && body.is_empty() {
            // All of it came with the header, and stays where it is.
            *body = self.ahead.split_to(ahead);
            return Poll::Ready(Ok(ahead));
        }
        grow(body, left.min(most.saturating_sub(body.len())));
        if ahead > 0 {
            body.extend_from_slice(&self.ahead[..ahead]);
            self.let_go(ahead);
            return Poll::Ready(Ok(ahead));
        }
        // As much again as has come: who sends a lot is read in a few steps.
        let most = READ_BYTES.max(body.len());
        let mut room = body.limit(left.min(most));
        let length = ready!(pin!(io.read_buf(&mut room)).poll(cx))?;
        Poll::Ready(if length == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(length) })
    }

    fn poll_chunks(
        &mut self,
        io: &mut Box<dyn IO>,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        let before = body.len();
        while let Phase::Body(Framing::Chunked(chunks)) = &mut self.phase
            && body.len() == before
        {
            if self.ahead.is_empty() {
                if ready!(self.poll_more(io, cx))? == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                continue;
            }
            match chunks.scan(&self.ahead, body) {
                Ok(Some(length)) => {
                    self.phase = Phase::Header;
                    self.let_go(length);
                }
                Ok(None) => self.let_go(self.ahead.len()),
                Err(fault) => {
                    self.refuse(fault);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
        }
        Poll::Ready(Ok(body.len() - before))
    }

    /// Passes over a body that nobody has asked for; whether to its end. One that is too long for that ends the connection.
    ///
    /// # Errors
    /// As [`Self::poll_body`].
    pub(in crate::downstream) fn poll_skip(
        &mut self,
        io: &mut Box<dyn IO>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        let mut piece = BytesMut::new();
        while let Phase::Body(_) = self.phase {
            self.skipped += ready!(self.poll_body(io, cx, &mut piece, READ_BYTES))?;
            piece.clear();
            if self.skipped > SKIP_BYTES {
                self.phase = Phase::Refused;
            }
        }
        self.skipped = 0;
        Poll::Ready(Ok(matches!(self.phase, Phase::Header)))
    }
}
