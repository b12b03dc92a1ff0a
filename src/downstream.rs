//! The stream between a client and Pingora, which puts the engine's `Date` back into a response, and our own fields into it.
//!
//! Pingora overwrites `Date` in every response. A proxy may add the field where it is missing but not change it (RFC
//! 9110, section 6.6.1), and what a client computes from it, such as an age, would be wrong. Over HTTP/1 the field is
//! put back here, into the header as Pingora writes it ([`Rewrite`]). Over HTTP/2 nothing that is public reaches it.
//!
//! What a client sends is looked at here before Pingora sees it, so that it is within its limits and means to everyone
//! what it means here: [`entrance`] over HTTP/1, [`flow`] over HTTP/2.

mod chunks;
mod entrance;
mod fault;
mod flow;
mod frames;
mod header;
mod rewrite;
mod target;

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::BytesMut;
use parking_lot::Mutex;
use pingora_core::protocols::http::server::Session as HttpSession;
use pingora_core::protocols::{IO, Shutdown};
use pingora_proxy::Session;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::io::{Ahead, delegate_io};
use crate::state::State;
use entrance::Http1;
pub(crate) use entrance::body::grow;
pub(crate) use fault::{Fault, Faults};
use flow::Http2;
pub(crate) use rewrite::{Rewrite, is_line_text};

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Downstream {
    /// Locked by those who read a body, which Pingora, whose the connection is, does not at the same time.
    way_in: Mutex<WayIn>,
    /// What is changed in the response header that is written next.
    rewrite: Mutex<Option<Rewrite>>,
    /// A changed header and the beginning of what follows it, until the connection has taken it.
    held: Ahead,
    /// Until when the client has to take more, while it takes nothing. Pingora has a limit for bodies alone.
    stall: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct WayIn {
    io: Box<dyn IO>,
    entrance: Entrance,
}

/// The body of an HTTP/1 request, which Pingora has a stand-in for: this is where it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a>(&'a Downstream);

/// What is spoken on a connection, and how its bytes are looked at.
enum Entrance {
    Http1(Box<Http1>),
    Http2(Box<Http2>),
}

/// What is wrong with the message that `session` stands for, if it was refused on its way in.
pub(crate) fn fault(session: &HttpSession) -> Option<Fault> {
    match &below(session)?.way_in.lock().entrance {
        Entrance::Http1(http1) => http1.fault(),
        Entrance::Http2(_) => None,
    }
}

/// The body of the request that `session` stands for; none over HTTP/2, where Pingora has it.
pub(crate) fn body(session: &HttpSession) -> Option<Body<'_>> {
    below(session).map(Body)
}

/// Whether headers for the client of `session` can be rewritten: over HTTP/1 alone.
pub(crate) fn can_rewrite(session: &Session) -> bool {
    of(session).is_some()
}

/// Has the response header that is written next rewritten.
pub(crate) fn rewrite(session: &Session, rewrite: Rewrite) {
    if let Some(downstream) = of(session) {
        *downstream.rewrite.lock() = Some(rewrite);
    }
}

/// The stream below `session`; none over HTTP/2.
fn of(session: &Session) -> Option<&Downstream> {
    below(session.as_downstream())
}

fn below(session: &HttpSession) -> Option<&Downstream> {
    // The box is what has to be looked into, not the box itself, which is a stream too.
    let stream: &dyn Any = session.stream()?.as_ref().as_any();
    stream.downcast_ref()
}

// === impl Body ===

impl Body<'_> {
    /// How many bytes are to come, if its header says so.
    pub(crate) fn left(self) -> Option<u64> {
        match &self.0.way_in.lock().entrance {
            Entrance::Http1(http1) => http1.left(),
            Entrance::Http2(_) => None,
        }
    }

    /// Reads what there is behind `body`, which gets room for `most` bytes if need be; how many came, none at the end.
    ///
    /// # Errors
    /// The connection failed or ended, or the framing is wrong: [`fault()`] says so.
    pub(crate) async fn read(self, body: &mut BytesMut, most: usize) -> io::Result<usize> {
        poll_fn(|cx| self.with(|http1, io| http1.poll_body(io, cx, body, most))).await
    }

    /// Reads and drops what is left, within bounds; whether to its end.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) async fn skip(self) -> io::Result<bool> {
        poll_fn(|cx| self.with(|http1, io| http1.poll_skip(io, cx))).await
    }

    fn with<T>(self, with: impl FnOnce(&mut Http1, &mut Box<dyn IO>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let WayIn { io, entrance } = &mut *self.0.way_in.lock();
        match entrance {
            Entrance::Http1(http1) => with(http1, io),
            Entrance::Http2(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }
}

// === impl Downstream ===

impl Downstream {
    /// Wraps the connection `io` with `peer`, on which HTTP/2 is spoken or HTTP/1.
    pub(crate) fn new(io: Box<dyn IO>, state: Arc<State>, peer: SocketAddr, is_h2: bool) -> Self {
        let entrance = match is_h2 {
            true => Entrance::Http2(Box::new(Http2::new(state, peer))),
            false => Entrance::Http1(Box::new(Http1::new(state, peer))),
        };
        let way_in = Mutex::new(WayIn { io, entrance });
        Self { way_in, rewrite: Mutex::new(None), held: Ahead::default(), stall: None }
    }

    fn io(&mut self) -> Pin<&mut Box<dyn IO>> {
        Pin::new(&mut self.way_in.get_mut().io)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.rewrite.get_mut().is_some() {
            ready!(self.held.poll_release(&mut self.way_in.get_mut().io, cx))?;
            if self.hold(buf) {
                return Poll::Ready(Ok(buf.len()));
            }
        }
        if self.held.is_empty() {
            return self.io().poll_write(cx, buf);
        }
        self.held.poll_write_behind(&mut self.way_in.get_mut().io, cx, &[IoSlice::new(buf)])
    }

    /// What came of a write, unless the client has taken nothing for too long.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Entrance::Http1(http1) = &self.way_in.get_mut().entrance else { return polled };
        if polled.is_ready() {
            self.stall = None;
            return polled;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(http1.write_timeout())));
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Takes `bytes` as a whole if they are the header that is to be rewritten.
    fn hold(&mut self, bytes: &[u8]) -> bool {
        // Informational headers can be written between the filters and the answer's own header.
        if bytes.starts_with(b"HTTP/1.1 1") {
            return false;
        }
        let changed = self.rewrite.get_mut().take().and_then(|rewrite| rewrite.apply(bytes));
        let is_held = changed.is_some();
        self.held = changed.unwrap_or_default().into();
        is_held
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1(_) => "Http1",
            Self::Http2(_) => "Http2",
        })
    }
}

impl AsyncRead for Downstream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let WayIn { io, entrance } = self.way_in.get_mut();
        match entrance {
            Entrance::Http1(http1) => http1.poll_read(io, cx, buf),
            Entrance::Http2(http2) => http2.poll_read(io, cx, buf),
        }
    }
}

impl AsyncWrite for Downstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = self.poll_send(cx, buf);
        self.in_time(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A header is written in one piece; this is a body.
        let Self { way_in, held, .. } = &mut *self;
        let polled = held.poll_write_behind(&mut way_in.get_mut().io, cx, bufs);
        self.in_time(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.way_in.lock().io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { way_in, held, .. } = &mut *self;
        let polled = match held.poll_release(&mut way_in.get_mut().io, cx) {
            Poll::Ready(Ok(())) => self.io().poll_flush(cx),
            unfinished => unfinished,
        };
        self.in_time(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { way_in, held, .. } = &mut *self;
        ready!(held.poll_release(&mut way_in.get_mut().io, cx))?;
        let WayIn { io, entrance } = self.way_in.get_mut();
        match entrance {
            Entrance::Http1(http1) => http1.poll_leave(io, cx),
            Entrance::Http2(_) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

#[async_trait]
impl Shutdown for Downstream {
    async fn shutdown(&mut self) {
        if !self.held.is_empty()
            && let Err(error) = self.flush().await
        {
            log::debug!("a connection was gone before it was closed: {error}");
        }
        Shutdown::shutdown(&mut *self.way_in.get_mut().io).await;
    }
}

delegate_io!(Downstream, downstream, downstream.way_in.lock().io, downstream.way_in.get_mut().io);

#[cfg(test)]
mod tests;
