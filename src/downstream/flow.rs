//! Lets a client's HTTP/2 bytes through while they are those of a client: it has to begin in time, not to be slow within a
//! header, and not to flood.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pingora_core::protocols::IO;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::fault::Fault;
use super::frames::{Frames, PREFACE_BYTES};
use crate::state::State;
use crate::time;

/// The way in of one connection.
pub(super) struct Http2 {
    state: Arc<State>,
    peer: SocketAddr,
    frames: Frames,
    /// Bytes of the preface that are still to come; nothing else limits how long Pingora waits for them.
    awaited: usize,
    /// When the preface, or the header that has begun, has to be whole.
    deadline: Option<Pin<Box<Sleep>>>,
}

// === impl Http2 ===

impl Http2 {
    /// For a connection that has just begun.
    pub(super) fn new(state: Arc<State>, peer: SocketAddr) -> Self {
        let allowed = state.config.load().limits.header_timeout;
        Self {
            frames: Frames::new(time::now()),
            awaited: PREFACE_BYTES,
            deadline: Some(Box::pin(sleep(allowed))),
            state,
            peer,
        }
    }

    /// Reads what comes.
    pub(super) fn poll_read(
        &mut self,
        io: &mut Box<dyn IO>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if Pin::new(&mut *io).poll_read(cx, buf)?.is_pending() {
            let Some(deadline) = &mut self.deadline else { return Poll::Pending };
            ready!(deadline.as_mut().poll(cx));
            let fault = if self.awaited > 0 { Fault::Silent } else { Fault::SlowHeader };
            return Poll::Ready(Err(self.refuse(fault)));
        }
        let brought = &buf.filled()[before..];
        self.awaited = self.awaited.saturating_sub(brought.len());
        if self.frames.take(brought, time::now()) {
            self.limit();
            return Poll::Ready(Ok(()));
        }
        buf.set_filled(before);
        Poll::Ready(Err(self.refuse(Fault::Flood)))
    }

    /// What is half there has its time as a whole.
    fn limit(&mut self) {
        if self.awaited == 0 && !self.frames.is_in_header() {
            self.deadline = None;
        } else if self.deadline.is_none() {
            self.deadline = Some(Box::pin(sleep(self.state.config.load().limits.header_timeout)));
        }
    }

    fn refuse(&self, fault: Fault) -> io::Error {
        self.state.faults.met(fault, self.peer);
        io::ErrorKind::ConnectionAborted.into()
    }
}
