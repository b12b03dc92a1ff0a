//! What an attempt connects to in place of a backend: one end of a pipe in this process.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::connectors::L4Connect;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::{Error, ErrorType, Result};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use super::{Second, relay};

/// Bytes that the pipe holds in each direction.
const PIPE_BYTES: usize = 64 * 1024;

/// Connects to a backend by way of a relay.
pub(super) struct Hedged {
    after: Duration,
    connect_limit: Duration,
    second: Arc<Second>,
}

#[derive(Debug)]
struct Pipe(DuplexStream);

// === impl Hedged ===

impl Hedged {
    /// Hedges with `second` when there is no token after `after`.
    pub(super) fn new(after: Duration, connect_limit: Duration, second: Second) -> Self {
        Self { after, connect_limit, second: Arc::new(second) }
    }
}

impl fmt::Debug for Hedged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedged").field("after", &self.after).finish_non_exhaustive()
    }
}

#[async_trait]
impl L4Connect for Hedged {
    async fn connect(&self, address: &PeerAddr) -> Result<Stream> {
        let address: &SocketAddr =
            address.as_inet().ok_or_else(|| Error::explain(ErrorType::SocketError, "not an internet address"))?;
        let first = relay::connect(*address, self.connect_limit).await.map_err(as_pingoras)?;
        // Without room for a second copy of the body there is but one attempt.
        let Some(held) = self.second.reserve().await else { return Ok(Stream::from(first)) };
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (after, second) = (self.after, Arc::clone(&self.second));
        // It ends when either end of the pipe does.
        tokio::spawn(relay::run(theirs, first, after, second, held));
        Ok(Stream::from(VirtualSocketStream::new(Box::new(Pipe(ours)))))
    }
}

/// The error as Pingora's own connector has it: what is our own fault is told from the backend's.
fn as_pingoras(error: io::Error) -> Box<Error> {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, ConnectionRefused, TimedOut};
    /// No file descriptor is left, for the process or for the machine.
    const OUT_OF_FILES: [Option<i32>; 2] = [Some(24), Some(23)];
    let kind = match error.kind() {
        ConnectionRefused => ErrorType::ConnectRefused,
        TimedOut => ErrorType::ConnectTimedout,
        AddrInUse | AddrNotAvailable => ErrorType::InternalError,
        _ if OUT_OF_FILES.contains(&error.raw_os_error()) => ErrorType::InternalError,
        _ => ErrorType::ConnectError,
    };
    Error::because(kind, "connecting for a hedged attempt", error)
}

// === impl Pipe ===

impl VirtualSocket for Pipe {
    fn set_socket_option(&self, _option: VirtualSockOpt) -> io::Result<()> {
        // There is no socket; the relay has set its own.
        Ok(())
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
