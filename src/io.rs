//! Parts of the streams that are between Pingora and a connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use smallvec::SmallVec;
use tokio::io::AsyncWrite;

/// So much is copied behind what goes ahead: that is less than to have both gathered.
pub(crate) const COPIED_BYTES: usize = 4096;

/// What goes ahead of what is written next, in one piece with it if it goes: a header.
#[derive(Debug, Default)]
pub(crate) struct Ahead(BytesMut);

// === impl Ahead ===

impl Ahead {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds to it.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes it.
    pub(crate) fn poll_release(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.0.is_empty() {
            let written = ready!(Pin::new(&mut *io).poll_write(cx, &self.0))?;
            self.advance(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes it and `bufs` behind it; how much of `bufs` was written.
    pub(crate) fn poll_write_behind(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let more = bufs.iter().map(|buf| buf.len()).sum();
        if !self.0.is_empty() && self.0.len() + more <= COPIED_BYTES {
            bufs.iter().for_each(|buf| self.0.extend_from_slice(buf));
            // What does not go now stays ahead.
            return match self.poll_release(io, cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(more)),
            };
        }
        while !self.0.is_empty() {
            let written = {
                let mut all = SmallVec::<[IoSlice<'_>; 8]>::new();
                all.push(IoSlice::new(&self.0));
                all.extend_from_slice(bufs);
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, &all))?
            };
            let behind = self.advance(written)?;
            if behind > 0 {
                return Poll::Ready(Ok(behind));
            }
        }
        Pin::new(io).poll_write_vectored(cx, bufs)
    }

    /// So many bytes were written: how many of them were behind it.
    fn advance(&mut self, written: usize) -> io::Result<usize> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_it = written.min(self.0.len());
        self.0.advance(of_it);
        Ok(written - of_it)
    }
}

impl From<BytesMut> for Ahead {
    fn from(bytes: BytesMut) -> Self {
        Self(bytes)
    }
}

/// Has a stream answer what Pingora asks streams by asking the one below: `$shared` of a `&$this`, `$own` of a `&mut`.
macro_rules! delegate_io {
    ($stream:ty, $this:ident, $shared:expr, $own:expr) => {
        #[::async_trait::async_trait]
        impl ::pingora_core::protocols::Peek for $stream {
            async fn try_peek(&mut self, buf: &mut [u8]) -> ::std::io::Result<bool> {
                let $this = self;
                $own.try_peek(buf).await
            }
        }

        // `get_ssl` is none, as it is for connections without TLS: what is asked of it is in the digest.
        impl ::pingora_core::protocols::Ssl for $stream {
            fn get_ssl_digest(&self) -> Option<::std::sync::Arc<::pingora_core::protocols::tls::SslDigest>> {
                let $this = self;
                $shared.get_ssl_digest()
            }

            fn selected_alpn_proto(&self) -> Option<::pingora_core::protocols::tls::ALPN> {
                let $this = self;
                $shared.selected_alpn_proto()
            }
        }

        impl ::pingora_core::protocols::UniqueID for $stream {
            fn id(&self) -> ::pingora_core::protocols::UniqueIDType {
                let $this = self;
                $shared.id()
            }
        }

        impl ::pingora_core::protocols::GetTimingDigest for $stream {
            fn get_timing_digest(&self) -> Vec<Option<::pingora_core::protocols::TimingDigest>> {
                let $this = self;
                $shared.get_timing_digest()
            }

            fn get_read_pending_time(&self) -> ::std::time::Duration {
                let $this = self;
                $shared.get_read_pending_time()
            }

            fn get_write_pending_time(&self) -> ::std::time::Duration {
                let $this = self;
                $shared.get_write_pending_time()
            }
        }

        impl ::pingora_core::protocols::GetProxyDigest for $stream {
            fn get_proxy_digest(
                &self,
            ) -> Option<::std::sync::Arc<::pingora_core::protocols::raw_connect::ProxyDigest>> {
                let $this = self;
                $shared.get_proxy_digest()
            }

            fn set_proxy_digest(&mut self, digest: ::pingora_core::protocols::raw_connect::ProxyDigest) {
                let $this = self;
                $own.set_proxy_digest(digest);
            }
        }

        impl ::pingora_core::protocols::GetSocketDigest for $stream {
            fn get_socket_digest(&self) -> Option<::std::sync::Arc<::pingora_core::protocols::SocketDigest>> {
                let $this = self;
                $shared.get_socket_digest()
            }

            fn set_socket_digest(&mut self, digest: ::pingora_core::protocols::SocketDigest) {
                let $this = self;
                $own.set_socket_digest(digest);
            }
        }
    };
}

pub(crate) use delegate_io;
