//! Where clients connect with TLS: the handshake, and the stream after it.
//!
//! Not Pingora's acceptor: it makes text of what went wrong, cannot be given another configuration, and panics over a client
//! certificate that its parser does not like. The stream is rustls's all the same, so Pingora sees no difference.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::{ALPN, SslDigest};
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType,
};
use pingora_rustls::{ServerTlsStream, TlsAcceptor};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::identity::identity;
use super::outcome::{Counts, Outcome};

/// A listener's side of TLS. Its configuration is replaced by the control loop; connections keep theirs.
#[derive(Debug)]
pub struct Endpoint {
    config: ArcSwap<ServerConfig>,
    counts: Arc<Counts>,
}

/// A client's connection after the handshake.
#[derive(Debug)]
pub(crate) struct Secured {
    stream: ServerTlsStream<L4Stream>,
    digest: Arc<SslDigest>,
}

/// What the client of a connection with this digest has proved to be.
pub(crate) fn client_identity(digest: &SslDigest) -> Option<&str> {
    digest.organization.as_deref()
}

// === impl Endpoint ===

impl Endpoint {
    pub(super) fn new(config: Arc<ServerConfig>, counts: Arc<Counts>) -> Self {
        Self { config: ArcSwap::new(config), counts }
    }

    pub(super) fn set(&self, config: Arc<ServerConfig>) {
        self.config.store(config);
    }

    /// Speaks first with a client, within `limit`. Whoever can connect can fail, so that is counted and not logged.
    ///
    /// # Errors
    /// How it went, if it did not go well.
    pub(crate) async fn accept(&self, stream: L4Stream, limit: Duration) -> Result<Secured, Outcome> {
        let accepting = TlsAcceptor::from(self.config.load_full()).accept(stream);
        let accepted = match timeout(limit, accepting).await {
            Ok(Ok(stream)) => Ok(Secured::new(stream)),
            Ok(Err(error)) => {
                log::debug!("a TLS handshake failed: {error}");
                Err(Outcome::of(&error))
            }
            Err(_) => Err(Outcome::TimedOut),
        };
        self.counts.add(accepted.as_ref().map_or_else(|outcome| *outcome, Secured::outcome));
        accepted
    }
}

// === impl Secured ===

impl Secured {
    fn new(stream: ServerTlsStream<L4Stream>) -> Self {
        let session = stream.get_ref().1;
        let version = session.protocol_version().and_then(|version| version.as_str()).unwrap_or_default();
        let cipher = session.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).unwrap_or_default();
        let client = session.peer_certificates().and_then(|chain| chain.first());
        // The digest is all of a connection that a request sees over HTTP/2 as well, and this is the one field of it for a
        // name: `extension` can only be set by Pingora.
        let named = client.and_then(|certificate| identity(certificate));
        let digest = Arc::new(SslDigest::new(cipher, version, named, None, Vec::new()));
        Self { stream, digest }
    }

    fn outcome(&self) -> Outcome {
        match self.session().handshake_kind() {
            Some(HandshakeKind::Resumed) => Outcome::Resumed,
            _ => Outcome::Full,
        }
    }

    fn io(&self) -> &L4Stream {
        self.stream.get_ref().0
    }

    fn session(&self) -> &ServerConnection {
        self.stream.get_ref().1
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for Secured {
    async fn shutdown(&mut self) {
        if let Err(error) = self.stream.shutdown().await {
            log::debug!("a connection was gone before its TLS was closed: {error}");
        }
    }
}

impl Ssl for Secured {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        Some(Arc::clone(&self.digest))
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        match self.session().alpn_protocol()? {
            b"h2" => Some(ALPN::H2),
            _ => Some(ALPN::H1),
        }
    }
}

impl Peek for Secured {}

impl UniqueID for Secured {
    fn id(&self) -> UniqueIDType {
        self.io().id()
    }
}

impl GetTimingDigest for Secured {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.io().get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.io().get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.io().get_write_pending_time()
    }
}

impl GetProxyDigest for Secured {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.io().get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        self.stream.get_mut().0.set_proxy_digest(digest);
    }
}

impl GetSocketDigest for Secured {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.io().get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        self.stream.get_mut().0.set_socket_digest(digest);
    }
}
