//! A TCP connection that can be reset instead of closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufStream, ReadBuf};
use tokio::net::TcpStream;

/// Makes the socket it belongs to end with a reset when it is dropped. The HTTP session owns the socket, hence the
/// switch beside it.
#[derive(Debug, Clone, Default)]
pub(super) struct ResetSwitch(Arc<AtomicBool>);

/// The connection, buffered so that a chunk with its frame is one packet.
#[derive(Debug)]
pub(super) struct Socket {
    io: BufStream<TcpStream>,
    reset: ResetSwitch,
}

// === impl ResetSwitch ===

impl ResetSwitch {
    pub(super) fn arm(&self) {
        self.0.store(true, Relaxed);
    }
}

// === impl Socket ===

impl Socket {
    pub(super) fn new(tcp: TcpStream, reset: ResetSwitch) -> Self {
        Self { io: BufStream::new(tcp), reset }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.0.load(Relaxed)
            && let Err(error) = self.io.get_ref().set_zero_linger()
        {
            log::debug!("a simulated reset becomes a close: {error}");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for Socket {
    async fn shutdown(&mut self) {
        if let Err(error) = self.io.shutdown().await {
            log::debug!("a connection was gone before it was closed: {error}");
        }
    }
}

// What Pingora's session asks of a transport for its own logs; nobody reads it here.

impl UniqueID for Socket {
    fn id(&self) -> UniqueIDType {
        0
    }
}

impl Ssl for Socket {}

impl Peek for Socket {}

impl GetTimingDigest for Socket {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Socket {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Socket {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
