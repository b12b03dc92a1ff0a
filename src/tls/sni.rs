//! Which certificate a client gets, by the host that it names (SNI).
//!
//! The first that has the name, else the first with a wildcard for it, else the first of all; each only if the client
//! can check its kind of key. So an RSA certificate can stand beside an ECDSA one of the same name, for old clients.

use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificates of a listener, in order, with their hosts.
pub(super) struct BySni(Vec<(Vec<String>, Arc<CertifiedKey>)>);

/// The certificates to try for `host`, by their place, the best first. `hosts` are those of each certificate.
pub(super) fn ranked<'a>(hosts: impl Iterator<Item = &'a [String]> + Clone, host: Option<&str>) -> Vec<usize> {
    let host = host.map(|host| host.trim_end_matches('.').to_ascii_lowercase());
    // A wildcard stands for one label.
    let wildcard = host.as_ref().and_then(|host| host.split_once('.')).map(|(_, domain)| format!("*.{domain}"));
    let with = |name: &Option<String>| {
        let hosts = hosts.clone().enumerate();
        let has = |hosts: &[String]| name.as_ref().is_some_and(|name| hosts.contains(name));
        hosts.filter(|(_, hosts)| has(hosts)).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let mut ranked = with(&host);
    ranked.extend(with(&wildcard));
    ranked.push(0);
    ranked
}

// === impl BySni ===

impl BySni {
    /// `certificates` are one at least.
    pub(super) fn new(certificates: Vec<(Vec<String>, Arc<CertifiedKey>)>) -> Self {
        Self(certificates)
    }
}

impl fmt::Debug for BySni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(hosts, _)| hosts)).finish()
    }
}

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let ranked = ranked(self.0.iter().map(|(hosts, _)| hosts.as_slice()), hello.server_name());
        let is_known = |at: &&usize| self.0[**at].1.key.choose_scheme(hello.signature_schemes()).is_some();
        let chosen = ranked.iter().find(is_known).or(ranked.first())?;
        self.0.get(*chosen).map(|(_, certificate)| Arc::clone(certificate))
    }
}
