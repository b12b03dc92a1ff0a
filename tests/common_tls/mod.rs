//! What the tests of TLS share: an authority that signs certificates, clients of every kind, and an engine behind TLS.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pingora_rustls::{ClientTlsStream, ServerTlsStream, TlsAcceptor, TlsConnector};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::common_control::{Scratch, within};

/// Who signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub struct Issued {
    pub der: CertificateDer<'static>,
    pub pem: String,
    pub key_pem: String,
    key: PrivateKeyDer<'static>,
}

/// What a client is like; `..Dial::to(authority)` for the rest.
#[derive(Clone)]
pub struct Dial<'a> {
    pub trusted: &'a Authority,
    pub host: &'a str,
    pub offered: &'a [&'a str],
    pub versions: &'static [&'static SupportedProtocolVersion],
    pub certificate: Option<&'a Issued>,
    pub provider: CryptoProvider,
}

/// The versions of TLS, alone and together.
pub static OLD: [&SupportedProtocolVersion; 1] = [&version::TLS12];
pub static NEW: [&SupportedProtocolVersion; 1] = [&version::TLS13];
pub static BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

pub type Stream = ClientTlsStream<TcpStream>;

// === impl Authority ===

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A certificate for these hosts and addresses, valid for long.
    pub fn issue(&self, hosts: &[&str]) -> Issued {
        self.issue_with(hosts, |_| {})
    }

    /// The same, with `change` to what is asked for.
    pub fn issue_with(&self, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        self.sign(hosts, KeyPair::generate().unwrap(), change)
    }

    /// The same with an Ed25519 key, which not every client knows.
    pub fn issue_ed25519(&self, hosts: &[&str]) -> Issued {
        self.sign(hosts, KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(), |_| {})
    }

    /// A certificate that has expired.
    pub fn issue_expired(&self, hosts: &[&str]) -> Issued {
        self.issue_with(hosts, |params| params.not_after = date_time_ymd(2024, 12, 31))
    }

    /// One for a client with this URI.
    pub fn issue_client(&self, uri: &str) -> Issued {
        self.issue_with(&[], |params| params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap())))
    }

    fn sign(&self, hosts: &[&str], key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2090, 1, 1);
        change(&mut params);
        let made = params.signed_by(&key, &self.0).unwrap();
        let key_der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Issued { der: made.der().clone(), pem: made.pem(), key_pem: key.serialize_pem(), key: key_der }
    }
}

// === impl Issued ===

impl Issued {
    /// Writes `NAME.pem` and `NAME.key`; as keys of a section for a listener.
    pub fn files(&self, scratch: &Scratch, name: &str) -> String {
        let certificate = scratch.file(&format!("{name}.pem"), &self.pem);
        let key = scratch.file(&format!("{name}.key"), &self.key_pem);
        format!("certificate: {}, key: {}", certificate.display(), key.display())
    }

    /// The same as keys of a section for backends.
    pub fn client_files(&self, scratch: &Scratch, name: &str) -> String {
        self.files(scratch, name).replace("certificate:", "client_certificate:").replace("key:", "client_key:")
    }
}

// === impl Dial ===

impl<'a> Dial<'a> {
    /// HTTP/1.1 with `localhost`, who trusts `authority`.
    pub fn to(trusted: &'a Authority) -> Self {
        Self {
            trusted,
            host: "localhost",
            offered: &["http/1.1"],
            versions: &BOTH,
            certificate: None,
            provider: ring::default_provider(),
        }
    }

    /// What a client keeps from one connection to the next.
    pub fn config(&self) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider.clone()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(self.trusted.roots());
        let mut config = match self.certificate {
            Some(issued) => builder.with_client_auth_cert(vec![issued.der.clone()], issued.key.clone_key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// Connects.
    ///
    /// # Errors
    /// When there is no TLS with the listener at `address`.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        connect(self.config(), self.host, address).await
    }

    /// The certificate that is shown.
    pub async fn shown(&self, address: SocketAddr) -> CertificateDer<'static> {
        self.connect(address).await.unwrap().get_ref().1.peer_certificates().unwrap()[0].clone()
    }
}

/// Connects with what a client has kept.
pub async fn connect(config: Arc<ClientConfig>, host: &str, address: SocketAddr) -> io::Result<Stream> {
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let stream = TcpStream::connect(address).await?;
    within("a handshake", TlsConnector::from(config).connect(name, stream)).await
}

/// An engine behind TLS: what comes is decrypted and passed on.
pub struct Front {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

struct Shared {
    config: Mutex<Arc<ServerConfig>>,
    seen: Mutex<Vec<Seen>>,
    refusals: Mutex<usize>,
}

/// A connection to a [`Front`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub host: Option<String>,
    pub protocol: Option<Vec<u8>>,
    pub certificate: Option<CertificateDer<'static>>,
    /// Whether a request of a client came over it, and not a call of the proxy's own.
    pub is_post: bool,
}

// === impl Front ===

impl Front {
    /// In front of the engine at `engine`; `clients` signs the certificates that may be shown, and have to be if `is_required`.
    pub async fn start(engine: SocketAddr, issued: &Issued, clients: Option<(&Authority, bool)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Mutex::new(server_config(issued, clients));
        let shared = Arc::new(Shared { config, seen: Mutex::default(), refusals: Mutex::default() });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, engine, Arc::clone(&shared)));
        Self { address, shared, _accepting: accepting }
    }

    /// Shows another certificate on new connections.
    pub fn show(&self, issued: &Issued) {
        *self.shared.config.lock() = server_config(issued, None);
    }

    /// The connections so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// Connections for which there was no TLS.
    pub fn refusals(&self) -> usize {
        *self.shared.refusals.lock()
    }
}

fn server_config(issued: &Issued, clients: Option<(&Authority, bool)>) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = match clients {
        None => builder.unwrap().with_no_client_auth(),
        Some((authority, is_required)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authority.roots(), provider);
            let verifier = if is_required { verifier } else { verifier.allow_unauthenticated() };
            builder.unwrap().with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut config = builder.with_single_cert(vec![issued.der.clone()], issued.key.clone_key()).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

async fn accept(listener: TcpListener, engine: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let config = Arc::clone(&shared.config.lock());
            let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else {
                *shared.refusals.lock() += 1;
                return;
            };
            let mut first = vec![0; 16 * 1024];
            let Ok(length) = stream.read(&mut first).await else { return };
            shared.seen.lock().push(seen(&stream, &first[..length]));
            let Ok(mut plain) = TcpStream::connect(engine).await else { return };
            if plain.write_all(&first[..length]).await.is_err() {
                return;
            }
            // Either side closes as it likes.
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

fn seen(stream: &ServerTlsStream<TcpStream>, first: &[u8]) -> Seen {
    let session = stream.get_ref().1;
    Seen {
        host: session.server_name().map(str::to_owned),
        protocol: session.alpn_protocol().map(<[u8]>::to_vec),
        certificate: session.peer_certificates().map(|chain| chain[0].clone()),
        is_post: first.starts_with(b"POST"),
    }
}
