//! How a backend is spoken to over TLS, as Pingora takes it.
//!
//! Pingora keeps connections by a hash of the peer, which leaves out whom the peer has to be trusted by, and of a client
//! certificate has only the serial number. So whatever makes a difference goes into the group key, and connections
//! of other settings, or of renewed files, are not taken up again.

use std::fmt;
use std::sync::Arc;

use pingora_core::protocols::tls::CaType;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::pki_types::PrivateKeyDer;
use x509_parser::prelude::{FromDer, X509Certificate};
use xxhash_rust::xxh3::xxh3_64;

use super::certificate::Certificate;
use super::fault::Fault;
use super::files::Files;
use super::listener::roots;
use crate::config::{UpstreamTls, Verify};

/// What is to be done to a peer.
pub struct Upstream {
    ca: Option<Arc<CaType>>,
    client: Option<Arc<CertKey>>,
    server_name: Option<String>,
    verify: Verify,
    group: u64,
}

/// The CA that `tls` names, checked so far that Pingora can take it apart; none if it is whom the system trusts.
pub(super) fn ca(files: &mut Files, tls: &UpstreamTls, key: &str) -> Result<Option<Arc<CaType>>, Fault> {
    let Some(file) = &tls.ca else { return Ok(None) };
    let (_, certificates) = roots(files, file, key)?;
    let mut ca = Vec::with_capacity(certificates.len());
    for (at, der) in certificates.iter().enumerate() {
        // Pingora panics over what cannot be parsed.
        X509Certificate::from_der(der).map_err(|error| {
            Fault::new(key, file, format!("its certificate number {} is malformed: {error}", at + 1))
        })?;
        ca.push(WrappedX509::new(der.to_vec(), parse_x509));
    }
    Ok(Some(ca.into()))
}

/// A client certificate, if Pingora can take its key apart: it finds out the key's form by its bytes.
pub(super) fn client(certificate: &Certificate) -> Result<Arc<CertKey>, &'static str> {
    let key = certificate.key.secret_der().to_vec();
    PrivateKeyDer::try_from(key.clone())?;
    let chain = certificate.chain.iter().map(|der| der.to_vec()).collect();
    Ok(Arc::new(CertKey::new(chain, key)))
}

// === impl Upstream ===

impl Upstream {
    /// `hash` tells the content of the files from any other.
    pub(super) fn new(tls: &UpstreamTls, ca: Option<Arc<CaType>>, client: Option<Arc<CertKey>>, hash: u128) -> Self {
        let settings = format!("{:?} {:?} {} {} {hash}", tls.verify, tls.server_name, ca.is_some(), client.is_some());
        let group = xxh3_64(settings.as_bytes());
        Self { ca, client, server_name: tls.server_name.clone(), verify: tls.verify, group }
    }

    /// Makes connections to `peer`, if it is one over TLS, what they have to be.
    pub(crate) fn prepare(&self, peer: &mut HttpPeer) {
        if !peer.is_tls() {
            return;
        }
        if let Some(name) = &self.server_name {
            peer.sni.clone_from(name);
        }
        peer.client_cert_key.clone_from(&self.client);
        peer.options.ca.clone_from(&self.ca);
        peer.options.verify_cert = self.verify != Verify::InsecureAnything;
        peer.options.verify_hostname = self.verify == Verify::Full;
        peer.group_key ^= self.group;
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("server_name", &self.server_name)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}
