//! The stream between a client and Pingora, which puts the engine's `Date` back into a response, and our own fields into it.
//!
//! Pingora overwrites `Date` in every response. A proxy may add the field where it is missing but not change it (RFC
//! 9110, section 6.6.1), and what a client computes from it, such as an age, would be wrong. Over HTTP/1 the field is
//! put back here, into the header as Pingora writes it ([`Rewrite`]). Over HTTP/2 nothing that is public reaches it.
//!
//! A header can also be written from where nothing can be waited for ([`write_header_now`]): the stream then takes it
//! whole, and sends it ahead of what follows.
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
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use pingora_core::protocols::http::server::Session as HttpSession;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::{ALPN, SslDigest};
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, IO, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType,
};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::state::State;
use entrance::Http1;
pub(crate) use entrance::body::grow;
pub(crate) use fault::{Fault, Faults};
use flow::Http2;
pub(crate) use rewrite::Rewrite;

/// So much of an answer is copied behind its header.
const HELD_BYTES: usize = 4096;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Downstream {
    /// Locked by those who read a body, which Pingora, whose the connection is, does not at the same time.
    way_in: Mutex<WayIn>,
    /// What is changed in the response header that is written next.
    rewrite: Mutex<Option<Rewrite>>,
    /// A changed header and the beginning of what follows it, until the connection has taken it.
    held: BytesMut,
    /// Whether everything is taken and nothing sent. Written and read by the one task that has the connection.
    is_corked: AtomicBool,
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

/// Writes a response header without waiting: over HTTP/2 it is only queued anyway, over HTTP/1 the stream below takes it.
/// What is written next, or a flush, sends it.
pub(crate) fn write_header_now(session: &mut Session, header: Box<ResponseHeader>) -> Result<()> {
    cork(session, true);
    let written = {
        let writing = pin!(session.downstream_session.write_response_header(header));
        writing.poll(&mut Context::from_waker(Waker::noop()))
    };
    cork(session, false);
    match written {
        Poll::Ready(written) => written,
        Poll::Pending => Err(Error::explain(ErrorType::InternalError, "a response header was not taken at once")),
    }
}

fn cork(session: &Session, is_corked: bool) {
    if let Some(downstream) = of(session) {
        downstream.is_corked.store(is_corked, Relaxed);
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
        Self {
            way_in,
            rewrite: Mutex::new(None),
            held: BytesMut::new(),
            is_corked: AtomicBool::new(false),
            stall: None,
        }
    }

    fn io(&mut self) -> Pin<&mut Box<dyn IO>> {
        Pin::new(&mut self.way_in.get_mut().io)
    }

    /// Writes what is held.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.way_in.get_mut().io).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what is held and `bufs` behind it, in one piece if it goes; says how much of `bufs` was written. A little is
    /// copied behind what is held first: that is less than to have it gathered.
    fn poll_write_behind(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let more = bufs.iter().map(|buf| buf.len()).sum();
        if !self.held.is_empty() && self.held.len() + more <= HELD_BYTES {
            bufs.iter().for_each(|buf| self.held.extend_from_slice(buf));
            // What does not go now is held on.
            return match self.poll_release(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(more)),
            };
        }
        while !self.held.is_empty() {
            let written = {
                let mut all = SmallVec::<[IoSlice<'_>; 8]>::new();
                all.push(IoSlice::new(&self.held));
                all.extend_from_slice(bufs);
                ready!(Pin::new(&mut self.way_in.get_mut().io).poll_write_vectored(cx, &all))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_held = written.min(self.held.len());
            self.held.advance(of_held);
            if written > of_held {
                return Poll::Ready(Ok(written - of_held));
            }
        }
        self.io().poll_write_vectored(cx, bufs)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if *self.is_corked.get_mut() {
            self.take(buf);
            return Poll::Ready(Ok(buf.len()));
        }
        if self.rewrite.get_mut().is_some() {
            ready!(self.poll_release(cx))?;
            if self.hold(buf) {
                return Poll::Ready(Ok(buf.len()));
            }
        }
        if self.held.is_empty() {
            return self.io().poll_write(cx, buf);
        }
        self.poll_write_behind(cx, &[IoSlice::new(buf)])
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

    /// Takes `bytes` behind what is held already.
    fn take(&mut self, bytes: &[u8]) {
        let changed = self.rewrite.get_mut().take().and_then(|rewrite| rewrite.apply(bytes));
        self.held.extend_from_slice(changed.as_deref().unwrap_or(bytes));
    }

    /// Takes `bytes` as a whole if they are the header that is to be rewritten.
    fn hold(&mut self, bytes: &[u8]) -> bool {
        // Informational headers can be written between the filters and the answer's own header.
        if bytes.starts_with(b"HTTP/1.1 1") {
            return false;
        }
        let changed = self.rewrite.get_mut().take().and_then(|rewrite| rewrite.apply(bytes));
        let is_held = changed.is_some();
        self.held = changed.unwrap_or_default();
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
        let polled = self.poll_write_behind(cx, bufs);
        self.in_time(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.way_in.lock().io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if *self.is_corked.get_mut() {
            return Poll::Ready(Ok(()));
        }
        let polled = match self.poll_release(cx) {
            Poll::Ready(Ok(())) => self.io().poll_flush(cx),
            unfinished => unfinished,
        };
        self.in_time(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_release(cx))?;
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

#[async_trait]
impl Peek for Downstream {
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.way_in.get_mut().io.try_peek(buf).await
    }
}

// `get_ssl` is none, as it is for connections without TLS: what is asked of it is in the digest.
impl Ssl for Downstream {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.way_in.lock().io.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.way_in.lock().io.selected_alpn_proto()
    }
}

impl UniqueID for Downstream {
    fn id(&self) -> UniqueIDType {
        self.way_in.lock().io.id()
    }
}

impl GetTimingDigest for Downstream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.way_in.lock().io.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> std::time::Duration {
        self.way_in.lock().io.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> std::time::Duration {
        self.way_in.lock().io.get_write_pending_time()
    }
}

impl GetProxyDigest for Downstream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.way_in.lock().io.get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.way_in.get_mut().io.set_proxy_digest(digest);
    }
}

impl GetSocketDigest for Downstream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.way_in.lock().io.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.way_in.get_mut().io.set_socket_digest(digest);
    }
}

#[cfg(test)]
mod tests;
