//! TLS for listeners, from the certificate and key files of the configuration.
//!
//! Pingora's `TlsSettings::build` panics over a bad file; here it is an error that names the file.

use std::path::Path;
use std::sync::Arc;

use pingora_core::listeners::tls::Acceptor;
use pingora_rustls::{RusTlsError, ServerConfig, install_default_crypto_provider, load_certs_and_key_files, version};

/// Why a listener has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is unreadable, or holds no certificate or key in PEM form.
    #[error("no certificate and private key in PEM form in {certificate} and {key}: {reason}")]
    Files {
        /// The certificate chain's path.
        certificate: String,
        /// The private key's path.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// The key is not the certificate's, or of a kind that is not supported.
    #[error("the certificate in {certificate} cannot be used with its key")]
    Unusable {
        /// The certificate chain's path.
        certificate: String,
        /// What rustls says.
        #[source]
        source: RusTlsError,
    },
}

/// TLS 1.2 and 1.3 with this certificate; HTTP/2 where the client can, else HTTP/1.1.
///
/// # Errors
/// See [`TlsError`].
pub(super) fn acceptor(certificate: &Path, key: &Path) -> Result<Arc<Acceptor>, TlsError> {
    install_default_crypto_provider();
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let (chain, private_key) = match load_certs_and_key_files(&certificate, &key) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Err(TlsError::Files { certificate, key, reason: "one of them holds none".into() }),
        Err(error) => return Err(TlsError::Files { certificate, key, reason: error.to_string() }),
    };
    let mut config = ServerConfig::builder_with_protocol_versions(&[&version::TLS12, &version::TLS13])
        .with_no_client_auth()
        .with_single_cert(chain, private_key)
        .map_err(|source| TlsError::Unusable { certificate, source })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(Acceptor::from_server_config(Arc::new(config))))
}
