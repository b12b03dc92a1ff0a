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

use crate::state::State;
use entrance::Http1;
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
    /// The connection failed or ended, or the framing is wrong: [`fault`] says so.
    pub(crate) async fn read(self, body: &mut BytesMut, most: usize) -> io::Result<usize> {
        poll_fn(|cx| self.with(|http1, io| http1.poll_body(io, cx, body, most))).await
    }

    /// Reads and drops what is left, within bounds.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) async fn skip(self) -> io::Result<()> {
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
        Self { way_in, rewrite: Mutex::new(None), held: BytesMut::new(), is_corked: AtomicBool::new(false) }
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
    /// held as well, until a flush: to copy it is less than to have it gathered.
    fn poll_write_behind(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let more = bufs.iter().map(|buf| buf.len()).sum();
        if !self.held.is_empty() && self.held.len() + more <= HELD_BYTES {
            bufs.iter().for_each(|buf| self.held.extend_from_slice(buf));
            return Poll::Ready(Ok(more));
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A header is written in one piece; this is a body.
        self.poll_write_behind(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.way_in.lock().io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if *self.is_corked.get_mut() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_release(cx))?;
        self.io().poll_flush(cx)
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
mod tests {
    use super::*;
    use crate::config;

    fn around(io: tokio::io::DuplexStream) -> Downstream {
        let text =
            "listeners: [{address: '127.0.0.1:0'}]\nlogging: {access_log: 'off'}\npools: [{name: p, backends: []}]\n";
        let state = Arc::new(State::new(config::parse(text, "test").unwrap()).unwrap());
        Downstream::new(Box::new(io), state, SocketAddr::from(([127, 0, 0, 1], 1)), false)
    }

    #[tokio::test]
    async fn what_is_written_while_it_is_corked_goes_ahead_of_what_follows() {
        let (io, mut client) = tokio::io::duplex(4);
        let mut downstream = around(io);
        downstream.is_corked.store(true, Relaxed);
        let header = b"HTTP/1.1 200 OK\r\n\r\n";
        let taking = async {
            downstream.write_all(header).await.unwrap();
            downstream.flush().await.unwrap();
        };
        let is_taken = pin!(taking).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(is_taken, "a connection that takes four bytes at a time does not make it wait");
        downstream.is_corked.store(false, Relaxed);
        let writing = tokio::spawn(async move {
            downstream.write_all(b"data: 1\n\n").await?;
            downstream.flush().await
        });
        let mut received = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received).await.unwrap();
        writing.await.unwrap().unwrap();
        assert_eq!(received, [&header[..], b"data: 1\n\n"].concat());
    }

    #[tokio::test]
    async fn a_header_goes_out_with_what_follows_however_little_is_taken_at_once() {
        let header = b"HTTP/1.1 200 OK\r\n\r\n";
        let long = [b'x'; HELD_BYTES];
        let bodies = [[&b"9\r\n"[..], b"data: 1\n\n", b"\r\n"], [b"1000\r\n", &long, b"\r\n"]];
        for (most_bytes, body) in (1..40).chain([4096, 8192]).flat_map(|most| bodies.map(|body| (most, body))) {
            let (io, mut client) = tokio::io::duplex(most_bytes);
            let mut downstream = around(io);
            downstream.take(header);
            let writing = async move {
                let (mut pieces, mut first) = (body.map(IoSlice::new), 0);
                let mut pieces = &mut pieces[..];
                while !pieces.is_empty() {
                    let written = downstream.write_vectored(pieces).await.unwrap();
                    first = if first == 0 { written } else { first };
                    IoSlice::advance_slices(&mut pieces, written);
                }
                downstream.flush().await.unwrap();
                drop(downstream);
                first
            };
            let mut received = Vec::new();
            let reading = tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received);
            let (first, _) = tokio::join!(writing, reading);
            let expected = [&header[..], &body.concat()].concat();
            assert_eq!(received, expected, "at most {most_bytes}");
            assert!(
                first > 0 && (most_bytes < expected.len() || first == body.concat().len()),
                "in one piece if it goes"
            );
        }
    }

    #[tokio::test]
    async fn an_informational_header_in_between_is_not_rewritten() {
        let (io, mut client) = tokio::io::duplex(1024);
        let mut downstream = around(io);
        let rewrite = downstream.rewrite.get_mut().insert(Rewrite::default());
        rewrite.add("x-added", format_args!("yes")).unwrap();
        let hints = b"HTTP/1.1 103 Early Hints\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\n\r\n";
        let answer = b"HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\ncontent-length: 2\r\n\r\n";
        for part in [&hints[..], answer, b"ok"] {
            downstream.write_all(part).await.unwrap();
        }
        downstream.flush().await.unwrap();
        drop(downstream);
        let mut received = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut client, &mut received).await.unwrap();
        let changed =
            b"HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\ncontent-length: 2\r\nx-added: yes\r\n\r\nok";
        assert_eq!(received, [&hints[..], changed].concat());
    }
}
