//! Lets a client's HTTP/1 messages through one by one, each header only when it is whole and good.
//!
//! Pingora waits for a header read by read, without a limit in all; it answers some faults without a body or a line in the
//! log, and lets pass what others read differently. So the bytes are looked at before it sees them: a header goes on when
//! it is whole, within its time and size, and [`header::check`] finds nothing; a body goes on up to its end and not
//! further. Where a message is refused, a request of our own stands in for it, which the application answers as the fault
//! says ([`Http1::fault`]); what the client sends after that is read and dropped, so that the answer is not lost to a
//! reset, and the connection ends.

pub(super) mod body;

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pingora_core::protocols::IO;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::fault::Fault;
use super::header::{self, Search};
use crate::budget::Reservation;
use crate::state::State;
use body::Framing;

/// So much of a header needs no room in the budget.
const PIECE_BYTES: usize = 8 * 1024;

/// What is read at once: mostly a header with the body behind it.
const READ_BYTES: usize = 64 * 1024;

/// Stands in for a request that is refused.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// What is read and dropped behind an answer to a refused message: more than a header of 1 MiB.
const LINGER_BYTES: usize = 2 * 1024 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(2);

/// The way in of one connection.
pub(super) struct Http1 {
    state: Arc<State>,
    peer: SocketAddr,
    phase: Phase,
    /// Read and not handed on.
    ahead: BytesMut,
    /// How much of it may be.
    ready: usize,
    /// What is handed on behind that.
    stand_in: &'static [u8],
    /// Bytes passed over of a body that nobody has asked for.
    skipped: usize,
    search: Search,
    /// When the connection began; none after its first header.
    opened: Option<Instant>,
    /// When the header that is awaited has to be whole.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Covers a header in `ahead` beyond a piece.
    reserved: Reservation,
    reserved_bytes: usize,
    fault: Option<Fault>,
    leaving: Option<Leaving>,
}

/// What comes next.
#[derive(Debug)]
enum Phase {
    Header,
    Body(Framing),
    /// Nothing more.
    Refused,
}

/// The end of a connection whose last message was refused.
struct Leaving {
    left: usize,
    until: Pin<Box<Sleep>>,
}

// === impl Http1 ===

impl Http1 {
    /// For a connection that has just begun.
    pub(super) fn new(state: Arc<State>, peer: SocketAddr) -> Self {
        Self {
            state,
            peer,
            phase: Phase::Header,
            ahead: BytesMut::new(),
            ready: 0,
            stand_in: b"",
            skipped: 0,
            search: Search::default(),
            opened: Some(Instant::now()),
            deadline: None,
            reserved: Reservation::default(),
            reserved_bytes: 0,
            fault: None,
            leaving: None,
        }
    }

    /// What is wrong with the message that is handed on at present.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// How long a client may take nothing of what it is sent.
    pub(super) fn write_timeout(&self) -> Duration {
        self.state.config.load().server.write_timeout
    }

    /// Reads what may be handed on.
    pub(super) fn poll_read(
        &mut self,
        io: &mut Box<dyn IO>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.ready + self.stand_in.len() > 0 {
                self.hand_on(buf);
                return Poll::Ready(Ok(()));
            }
            match self.phase {
                Phase::Header => {
                    if !ready!(self.poll_header(io, cx))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                Phase::Body(_) => {
                    ready!(self.poll_skip(io, cx))?;
                }
                Phase::Refused if self.fault == Some(Fault::Chunk) => {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                Phase::Refused => return Poll::Ready(Ok(())),
            }
        }
    }

    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) {
        let length = self.ready.min(buf.remaining());
        buf.put_slice(&self.ahead[..length]);
        self.ready -= length;
        self.let_go(length);
        let (now, later) = self.stand_in.split_at(self.stand_in.len().min(buf.remaining()));
        buf.put_slice(now);
        self.stand_in = later;
    }

    /// What was read ahead is used up to here.
    fn let_go(&mut self, bytes: usize) {
        self.ahead.advance(bytes);
        if self.ahead.is_empty() {
            // A connection that waits for its next request holds no memory for it.
            self.ahead = BytesMut::new();
        }
    }

    /// Reads a header; false if the connection ended before that.
    fn poll_header(&mut self, io: &mut Box<dyn IO>, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            match self.look() {
                Ok(false) => {}
                Ok(true) => return Poll::Ready(Ok(true)),
                Err(fault) => return Poll::Ready(Ok(self.refuse(fault))),
            }
            match self.poll_more(io, cx)? {
                Poll::Ready(0) => return Poll::Ready(Ok(false)),
                Poll::Ready(_) => {}
                Poll::Pending => {
                    ready!(self.poll_deadline(cx));
                    let fault = if self.ahead.is_empty() { Fault::Silent } else { Fault::SlowHeader };
                    return Poll::Ready(Ok(self.refuse(fault)));
                }
            }
        }
    }

    /// Reads what there is, behind what was read ahead; how many bytes, none if the connection ended.
    fn poll_more(&mut self, io: &mut Box<dyn IO>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Through the stack, since one that waits holds no memory for it.
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut piece = ReadBuf::uninit(&mut space);
        ready!(Pin::new(io).poll_read(cx, &mut piece))?;
        self.ahead.extend_from_slice(piece.filled());
        Poll::Ready(Ok(piece.filled().len()))
    }

    /// Whether a header is whole in what was read.
    fn look(&mut self) -> Result<bool, Fault> {
        self.skip_empty_lines();
        let most = usize::try_from(self.state.config.load().server.max_header_bytes).unwrap_or(usize::MAX);
        // A line end that is half there says nothing yet.
        let end = if self.ahead[..] == b"\r"[..] { None } else { self.search.end(&self.ahead)? };
        // What is behind the header is a body's, which has room of its own as soon as it is asked for.
        self.reserve(end.unwrap_or(self.ahead.len()))?;
        if end.unwrap_or(self.ahead.len()) > most {
            return Err(header::too_large(&self.ahead, most));
        }
        let Some(end) = end else { return Ok(false) };
        let body = header::check(&self.ahead[..end])?;
        (self.ready, self.search, self.opened, self.deadline) = (end, Search::default(), None, None);
        self.expect(body);
        Ok(true)
    }

    /// Some clients send a line end behind a body (RFC 9112, section 2.2).
    fn skip_empty_lines(&mut self) {
        while self.search == Search::default() && self.ahead.starts_with(b"\r\n") {
            self.ahead.advance(2);
        }
    }

    /// Covers a header of more than a piece, without waiting: nobody needs one.
    fn reserve(&mut self, header_bytes: usize) -> Result<(), Fault> {
        let wanted = header_bytes.saturating_sub(PIECE_BYTES);
        if wanted == 0 {
            (self.reserved, self.reserved_bytes) = (Reservation::default(), 0);
        }
        while self.reserved_bytes < wanted {
            let more = self.reserved_bytes.max(PIECE_BYTES);
            self.state.bodies.reserve_now(&mut self.reserved, more).map_err(|_| Fault::NoRoom)?;
            self.reserved_bytes += more;
        }
        Ok(())
    }

    /// Ready when what is awaited is too late. Between two requests that is Pingora's to say, which knows when an answer ended.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let has_begun = !self.ahead.is_empty() || self.opened.is_some();
        if !has_begun {
            // What came was a line end behind a body, and in pieces.
            self.deadline = None;
        } else if self.deadline.is_none() {
            let allowed = self.state.config.load().limits.header_timeout;
            let begun = self.opened.unwrap_or_else(Instant::now);
            self.deadline = Some(Box::pin(sleep_until(begun + allowed)));
        }
        self.deadline.as_mut().map_or(Poll::Pending, |deadline| deadline.as_mut().poll(cx))
    }

    /// Refuses the message; whether there is something to hand on in its place.
    fn refuse(&mut self, fault: Fault) -> bool {
        self.state.faults.met(fault, self.peer);
        (self.phase, self.fault, self.deadline, self.stand_in) = (Phase::Refused, Some(fault), None, b"");
        (self.reserved, self.reserved_bytes) = (Reservation::default(), 0);
        self.ahead = if matches!(fault, Fault::Silent | Fault::Chunk) { BytesMut::new() } else { STAND_IN.into() };
        self.ready = self.ahead.len();
        self.ready > 0
    }

    /// Closes the connection: behind an answer to a refused message only when the client has, or after a while.
    pub(super) fn poll_leave(&mut self, io: &mut Box<dyn IO>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.fault.is_none_or(|fault| fault == Fault::Silent) {
            return Pin::new(&mut *io).poll_shutdown(cx);
        }
        if self.leaving.is_none() {
            ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
        }
        let leaving =
            self.leaving.get_or_insert_with(|| Leaving { left: LINGER_BYTES, until: Box::pin(sleep(LINGER_TIME)) });
        while leaving.left > 0 && leaving.until.as_mut().poll(cx).is_pending() {
            let mut space = [MaybeUninit::uninit(); READ_BYTES];
            let mut piece = ReadBuf::uninit(&mut space);
            if ready!(Pin::new(&mut *io).poll_read(cx, &mut piece)).is_err() || piece.filled().is_empty() {
                break;
            }
            leaving.left = leaving.left.saturating_sub(piece.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
