//! A small HTTP client over Pingora's connector: for engines' metrics, the admin listener and the demo's load.
//! Bounded in time and size.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method};
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::time::timeout;

use crate::config::Secret;
use crate::pool::Origin;
use crate::tls::Upstream;

/// How this program names itself.
pub(crate) const USER_AGENT: &str = concat!("warmgate/", env!("CARGO_PKG_VERSION"));

/// Largest body that is read whole: a metrics page is about 70 KB.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// Engines on uvicorn close an idle connection after 5 s; reusing it just then would look like a failure.
const IDLE_TIME: Duration = Duration::from_secs(4);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// No whole reply in time.
    #[error("no reply within {0:?}")]
    TimedOut(Duration),
    /// The reply's status is not a success.
    #[error("status {0}")]
    Status(u16),
    /// The body is larger than what is read.
    #[error("a body of more than {MAX_BODY_BYTES} bytes")]
    TooLarge,
    /// The connection failed.
    #[error("{}", .0.etype().as_str())]
    Connection(#[from] Box<pingora_core::Error>),
}

/// A whole reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Its status, 200 for instance.
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

/// Connections to anywhere. Making one reads the system's certificates, so it is shared.
pub(crate) type Connections = Arc<Connector>;

/// Asks one origin.
pub(crate) struct Client {
    connections: Connections,
    origin: Origin,
    limit: Duration,
    keeps_connections: bool,
    /// The value of its `Authorization` header.
    authorization: Option<HeaderValue>,
    tls: Option<Arc<Upstream>>,
}

/// Whether a connection failed for a reason of this process, such as no file descriptor being left.
pub(crate) fn is_ours(error: &Error) -> bool {
    matches!(error.etype(), ErrorType::InternalError | ErrorType::BindError | ErrorType::SocketError)
}

/// Why the two sides do not trust each other, if that is why a connection failed. A backend that is not trusted is found
/// out in the handshake; with TLS 1.3 a certificate of ours that is not is found out after it. The time can be in the text.
pub(crate) fn distrust(error: &Error) -> Option<String> {
    if matches!(error.etype(), ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert) {
        return error.context.as_ref().map(|context| context.as_str().to_owned());
    }
    let io = error.cause.as_ref()?.downcast_ref::<std::io::Error>()?;
    match io.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(format!("the TLS alert {alert:?} from the other side")),
        _ => None,
    }
}

/// New [`Connections`].
pub(crate) fn connections() -> Connections {
    Arc::new(Connector::new(None))
}

/// The value of `Authorization` that shows `key`; secrets from files can stand in a header.
pub(crate) fn bearer(key: &Secret) -> Option<HeaderValue> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.reveal())).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

// === impl Client ===

impl Client {
    /// For `origin`, over kept connections; each exchange may take `limit` in all.
    pub(crate) fn new(connections: Connections, origin: Origin, limit: Duration) -> Self {
        Self { connections, origin, limit, keeps_connections: true, authorization: None, tls: None }
    }

    /// The same over a new connection each time, which shows whether anyone listens.
    pub(crate) fn connecting_anew(self) -> Self {
        Self { keeps_connections: false, ..self }
    }

    /// The same over TLS of this kind, where the origin has TLS.
    pub(crate) fn with_tls(self, tls: Option<Arc<Upstream>>) -> Self {
        Self { tls, ..self }
    }

    /// The same with an API key, if there is one.
    pub(crate) fn with_key(self, key: Option<&Secret>) -> Self {
        Self { authorization: key.and_then(bearer), ..self }
    }

    /// For a plain HTTP server at `address`.
    pub(crate) fn for_address(address: SocketAddr, limit: Duration) -> Self {
        let origin = Origin { is_tls: false, host: address.ip().to_string().into(), port: address.port() };
        Self::new(connections(), origin, limit)
    }

    /// The body of a successful GET of `path` at `address`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(crate) async fn get(&self, address: SocketAddr, path: &str) -> Result<Bytes, ClientError> {
        let reply = self.ask(address, Method::GET, path, Bytes::new()).await?;
        if (200..300).contains(&reply.status) { Ok(reply.body) } else { Err(ClientError::Status(reply.status)) }
    }

    /// The reply to a request, whatever its status.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(crate) async fn ask(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Reply, ClientError> {
        let mut whole = BytesMut::new();
        let header = self
            .stream(address, method, path, body, |bytes| {
                let fits = whole.len() + bytes.len() <= MAX_BODY_BYTES;
                if fits {
                    whole.extend_from_slice(bytes);
                }
                fits
            })
            .await?;
        Ok(Reply { status: header.status.as_u16(), body: whole.freeze() })
    }

    /// Sends a request and gives each piece of the reply's body to `take`, which says whether it wants more.
    ///
    /// # Errors
    /// See [`ClientError`]; `TooLarge` when `take` wanted no more.
    pub(crate) async fn stream(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Bytes,
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<ResponseHeader, ClientError> {
        match timeout(self.limit, self.exchange(address, method, path, body, take)).await {
            Ok(done) => done,
            Err(_) => Err(ClientError::TimedOut(self.limit)),
        }
    }

    async fn exchange(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Bytes,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<ResponseHeader, ClientError> {
        let peer = self.peer(address);
        let (mut session, _) = self.connections.get_http_session(&peer).await?;
        session.set_read_timeout(Some(self.limit));
        session.set_write_timeout(Some(self.limit));
        session.write_request_header(Box::new(self.request(&method, path, body.len())?)).await?;
        if !body.is_empty() {
            session.write_request_body(body, true).await?;
        }
        session.finish_request_body().await?;
        session.read_response_header().await?;
        while let Some(bytes) = session.read_response_body().await? {
            if !take(&bytes) {
                return Err(ClientError::TooLarge);
            }
        }
        let header = session.response_header().cloned();
        if self.keeps_connections {
            self.connections.release_http_session(session, &peer, Some(IDLE_TIME)).await;
        }
        header.ok_or_else(|| ClientError::Status(0))
    }

    fn request(&self, method: &Method, path: &str, length: usize) -> Result<RequestHeader, Box<pingora_core::Error>> {
        let mut request = RequestHeader::build(method.clone(), path.as_bytes(), None)?;
        request.insert_header(http::header::HOST, self.origin.authority())?;
        request.insert_header(http::header::USER_AGENT, USER_AGENT)?;
        if let Some(authorization) = &self.authorization {
            request.insert_header(http::header::AUTHORIZATION, authorization.clone())?;
        }
        if length > 0 {
            request.insert_header(http::header::CONTENT_TYPE, "application/json")?;
            request.insert_header(http::header::CONTENT_LENGTH, length)?;
        }
        Ok(request)
    }

    fn peer(&self, address: SocketAddr) -> HttpPeer {
        let mut peer = HttpPeer::new(address, self.origin.is_tls, self.origin.host.to_string());
        peer.options.connection_timeout = Some(self.limit);
        peer.options.idle_timeout = Some(IDLE_TIME);
        // A group of its own, so that no connection kept by others is taken.
        peer.group_key = u64::from(!self.keeps_connections);
        if let Some(tls) = &self.tls {
            tls.prepare(&mut peer);
        }
        peer
    }
}
