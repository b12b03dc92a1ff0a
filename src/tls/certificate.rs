//! A certificate with its key, as it was read.

use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::PROVIDER;
use super::fault::Fault;
use super::files::Files;
use super::validity::Validity;
use crate::config::CertificateFiles;

/// A certificate that fits its key.
pub(super) struct Certificate {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    /// The same as rustls takes it.
    pub(super) signer: Arc<CertifiedKey>,
    /// The hosts that it is for, in lower case, with a `*` for a first label that can be any.
    pub(super) hosts: Vec<String>,
    pub(super) validity: Validity,
    /// Tells it from others, and from what was in its files before.
    pub(super) hash: u128,
}

/// Reads the certificate and the key of `files`, which stand at these keys of the configuration.
pub(super) fn read(files: &mut Files, of: &CertificateFiles, keys: (&str, &str)) -> Result<Certificate, Vec<Fault>> {
    let fault = |what: String| Fault::new(keys.0, &of.certificate, what);
    let chain = files.content(&of.certificate).and_then(|content| Ok((content.hash, content.certificates()?)));
    let key = files.content(&of.key).and_then(|content| Ok((content.hash, content.private_key()?)));
    let (chain, key) = match (chain, key) {
        (Ok(chain), Ok(key)) => (chain, key),
        (chain, key) => {
            let faults = [chain.err().map(fault), key.err().map(|what| Fault::new(keys.1, &of.key, what))];
            return Err(faults.into_iter().flatten().collect());
        }
    };
    let (hash, (chain, key)) = (chain.0 ^ key.0.rotate_left(1), (chain.1, key.1));
    let (hosts, validity) = parse(&chain).map_err(|what| vec![fault(what)])?;
    let signer = CertifiedKey::from_der(chain.clone(), key.clone_key(), &PROVIDER).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            vec![fault(format!("is of another key than the one in {}", of.key.display()))]
        }
        error => vec![Fault::new(keys.1, &of.key, format!("cannot be used as a key: {error}"))],
    })?;
    Ok(Certificate { chain, key, signer: Arc::new(signer), hosts, validity, hash })
}

/// Whom a chain is for and when it is valid.
fn parse(chain: &[CertificateDer<'_>]) -> Result<(Vec<String>, Validity), String> {
    let (mut hosts, mut validity) = (Vec::new(), None::<Validity>);
    for (at, der) in chain.iter().enumerate() {
        let (_, certificate) = X509Certificate::from_der(der)
            .map_err(|error| format!("its certificate number {} is malformed: {error}", at + 1))?;
        let own = Validity {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        };
        validity = Some(validity.map_or(own, |all| all.and(own)));
        if at == 0 {
            hosts = names(&certificate);
        }
    }
    validity.map(|validity| (hosts, validity)).ok_or_else(|| "holds no certificate".to_owned())
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let dns = names.filter_map(|name| if let GeneralName::DNSName(name) = name { Some(name) } else { None });
    dns.map(|name| name.to_ascii_lowercase()).collect()
}
