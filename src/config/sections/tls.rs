//! What is spoken with TLS: what listeners and this program itself prove themselves with, and whom they trust.

use std::path::PathBuf;

use super::Choice;

/// Most certificates of one listener.
pub(in crate::config) const MAX_CERTIFICATES: usize = 256;

/// How a listener speaks TLS. The files are PEM, and could be read when the configuration was checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// What it proves itself with, one at least; the first is for clients that name no host, or one that no other has.
    pub certificates: Vec<CertificateFiles>,
    /// The oldest version that is spoken; 1.2.
    pub min_version: TlsVersion,
    /// What clients have to prove; nothing, in the file `client_certificates: off`.
    pub clients: Option<ClientCertificates>,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// The certificate, followed by those that link it to a root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCertificates {
    /// Who has to have signed them.
    pub ca: PathBuf,
    /// Whether a client without one is turned away.
    pub is_required: bool,
}

/// The versions of TLS that are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// What a listener asks of its clients, as the file says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum ClientsShow {
    Off,
    Optional,
    Required,
}

/// How a backend is spoken to over TLS.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// Who has to have signed the backend's certificate; `None`, in the file none, is whom the system trusts.
    pub ca: Option<PathBuf>,
    /// The name that is asked for and has to be in the certificate; `None`, in the file none, is the url's host.
    pub server_name: Option<String>,
    /// What this program proves itself with; `None`, in the file none, is nothing.
    pub client: Option<CertificateFiles>,
    /// What is checked; full.
    pub verify: Verify,
}

/// How much of a backend's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verify {
    /// Who signed it, its time and its name.
    Full,
    /// Who signed it and its time: any backend with a certificate of that CA can stand in for another.
    InsecureAnyName,
    /// Nothing: whoever answers is believed.
    InsecureAnything,
}

// === impl Choice ===

impl Choice for ClientsShow {
    const NAMES: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("optional", Self::Optional), ("required", Self::Required)];
}

impl Choice for Verify {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("full", Self::Full),
        ("insecure_any_name", Self::InsecureAnyName),
        ("insecure_anything", Self::InsecureAnything),
    ];
}

// === impl UpstreamTls ===

impl Default for UpstreamTls {
    fn default() -> Self {
        Self { ca: None, server_name: None, client: None, verify: Verify::Full }
    }
}
