//! A listener's side of TLS, as rustls takes it.

use std::sync::Arc;

use rustls::crypto::ring::Ticketer;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use super::PROVIDER;
use super::certificate::Certificate;
use super::fault::Fault;
use super::files::Files;
use super::sni::BySni;
use crate::config::{ClientCertificates, Tls, TlsVersion};

/// What clients may speak, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Makes the configuration of a listener with these certificates, one at least.
///
/// Sessions are resumed by tickets of keys that this configuration makes and changes every few hours, so that they end with
/// it. Where clients show certificates there are none: each connection is checked anew.
pub(super) fn server_config(
    tls: &Tls,
    certificates: Vec<Certificate>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, rustls::Error> {
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&PROVIDER)).with_protocol_versions(versions(tls.min_version))?;
    let asks_clients = clients.is_some();
    let builder = match clients {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let certificates = certificates.into_iter().map(|certificate| (certificate.hosts, certificate.signer)).collect();
    let mut config = builder.with_cert_resolver(Arc::new(BySni::new(certificates)));
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    if asks_clients {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    } else {
        config.ticketer = Ticketer::new()?;
    }
    Ok(config)
}

fn versions(least: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
    match least {
        TlsVersion::V1_2 => &VERSIONS,
        TlsVersion::V1_3 => &VERSIONS[..1],
    }
}

/// What checks the certificates of clients.
pub(super) fn verifier(
    files: &mut Files,
    clients: &ClientCertificates,
    key: &str,
) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let (roots, _) = roots(files, &clients.ca, key)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&PROVIDER));
    let builder = if clients.is_required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| Fault::new(key, &clients.ca, error))
}

/// The certificates of those who are trusted, in both forms.
pub(super) fn roots(
    files: &mut Files,
    file: &std::path::Path,
    key: &str,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), Fault> {
    let certificates = files.content(file).and_then(|content| content.certificates());
    let certificates = certificates.map_err(|what| Fault::new(key, file, what))?;
    let mut roots = RootCertStore::empty();
    for (at, certificate) in certificates.iter().enumerate() {
        let what = |error| format!("its certificate number {} cannot be trusted as a CA's: {error}", at + 1);
        roots.add(certificate.clone()).map_err(|error| Fault::new(key, file, what(error)))?;
    }
    Ok((roots, certificates))
}
