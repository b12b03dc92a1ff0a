//! A connection to a backend, on which a request's header goes in one piece with what follows it.
//!
//! Pingora writes and flushes the header, and then the body. Each would be a packet of its own and wake the engine.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use pingora_core::protocols::{Shutdown, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::io::{Ahead, delegate_io};

/// The connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// Whether all is held that is written, up to the next flush.
    holds: bool,
    /// What was held, until the connection has taken it.
    held: Ahead,
}

// === impl Wire ===

impl Wire {
    /// Over this stream.
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, holds: false, held: Ahead::default() }
    }

    /// Holds what is written up to the next flush, so that it goes with what follows that.
    pub(super) fn hold(&mut self) {
        self.holds = true;
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, holds, held } = &mut *self;
        if *holds {
            held.extend(buf);
            return Poll::Ready(Ok(buf.len()));
        }
        if held.is_empty() {
            return Pin::new(stream).poll_write(cx, buf);
        }
        held.poll_write_behind(stream, cx, &[IoSlice::new(buf)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, holds, held } = &mut *self;
        if std::mem::take(holds) {
            return Poll::Ready(Ok(()));
        }
        ready!(held.poll_release(stream, cx))?;
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for Wire {
    async fn shutdown(&mut self) {
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

delegate_io!(Wire, wire, wire.stream, wire.stream);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::io::COPIED_BYTES;

    const HEADER: &[u8] = b"POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n";

    #[tokio::test]
    async fn a_header_goes_with_its_body() {
        let (near, mut far) = duplex(1024);
        let mut wire = Wire::new(Box::new(near));
        for _ in 0..2 {
            wire.hold();
            wire.write_all(HEADER).await.unwrap();
            wire.flush().await.unwrap();
            let mut received = vec![0; 1024];
            assert!(super::super::exchange::now(far.read(&mut received)).is_none(), "nothing has gone yet");
            wire.write_all(b"body").await.unwrap();
            let length = far.read(&mut received).await.unwrap();
            assert_eq!(received[..length], [HEADER, b"body"].concat());
        }
        wire.write_all(HEADER).await.unwrap();
        far.read_exact(&mut [0; HEADER.len()]).await.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_lost_or_doubled_however_little_is_taken_at_once() {
        let bodies = [&b"body"[..], &[b'x'; COPIED_BYTES], &[b'y'; 3 * COPIED_BYTES]];
        for (most_bytes, body) in
            [1, 2, 36, 37, 38, 100, 4096, 8192].into_iter().flat_map(|most| bodies.map(|body| (most, body)))
        {
            let (near, mut far) = duplex(most_bytes);
            let mut wire = Wire::new(Box::new(near));
            wire.hold();
            let writing = async move {
                wire.write_all(HEADER).await.unwrap();
                wire.flush().await.unwrap();
                wire.write_all(body).await.unwrap();
                wire.flush().await.unwrap();
            };
            let mut received = Vec::new();
            tokio::join!(writing, async { far.read_to_end(&mut received).await.unwrap() });
            assert_eq!(received, [HEADER, body].concat(), "{} bytes, {most_bytes} at once", body.len());
        }
    }
}
