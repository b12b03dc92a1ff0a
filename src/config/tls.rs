//! The schema's part about TLS.

use std::path::PathBuf;

use super::reader::Section;
use super::sections::{ClientsShow, MAX_CERTIFICATES};
use super::values as kind;
use super::{BackendUrl, CertificateFiles, ClientCertificates, Scheme, Tls, TlsVersion, UpstreamTls};

/// The section of a listener.
pub(super) fn listener(section: &mut Section<'_, '_>) -> Option<Tls> {
    let first = certificate(section);
    let example = "- {certificate: /etc/warmgate/tls/other.pem, key: /etc/warmgate/tls/other-key.pem}";
    // With the first there are as many as the bound says.
    let others = section.optional_sections("certificates", (0, MAX_CERTIFICATES - 1), example, certificate);
    let min_version = section.value("min_version", kind::tls_version(), TlsVersion::V1_2);
    let ca = section.value("client_ca", kind::readable_file_or_none(), None);
    let show = section.value("client_certificates", kind::choice(), ClientsShow::Off);
    let clients = match (show, ca) {
        (ClientsShow::Off, None) => None,
        (ClientsShow::Off, Some(_)) => {
            section.reject("client_ca", "expected `client_certificates: required` or `optional` beside it");
            None
        }
        (_, None) if section.has("client_ca") => None,
        (_, None) => {
            section
                .reject("client_certificates", "expected `client_ca` beside it: who signs the clients' certificates");
            None
        }
        (show, Some(ca)) => Some(ClientCertificates { ca, is_required: show == ClientsShow::Required }),
    };
    Some(Tls { certificates: std::iter::once(first?).chain(others).collect(), min_version, clients })
}

fn certificate(section: &mut Section<'_, '_>) -> Option<CertificateFiles> {
    let certificate = section.required("certificate", kind::readable_file());
    let key = section.required("key", kind::readable_file());
    Some(CertificateFiles { certificate: certificate?, key: key? })
}

/// The section of a pool, or of a backend; what it leaves out is as in `usual`.
pub(super) fn upstream(section: &mut Section<'_, '_>, usual: &UpstreamTls) -> Option<UpstreamTls> {
    let ca = section.value("ca", kind::readable_file_or_none(), usual.ca.clone());
    let server_name = section.value("server_name", kind::host_or_none(), usual.server_name.clone());
    let client = client(section, usual.client.as_ref());
    Some(UpstreamTls { ca, server_name, client, verify: section.value("verify", kind::choice(), usual.verify) })
}

fn client(section: &mut Section<'_, '_>, usual: Option<&CertificateFiles>) -> Option<CertificateFiles> {
    let mut path = |key| section.optional(key, kind::readable_file_or_none());
    let given: [Option<Option<PathBuf>>; 2] = [path("client_certificate"), path("client_key")];
    match given {
        [None, None] if section.has("client_certificate") || section.has("client_key") => None,
        [None, None] => usual.cloned(),
        [Some(Some(certificate)), Some(Some(key))] => Some(CertificateFiles { certificate, key }),
        [None | Some(None), None | Some(None)] => None,
        [Some(Some(_)), None | Some(None)] => {
            section.reject("client_certificate", "expected `client_key` beside it");
            None
        }
        [None | Some(None), Some(Some(_))] => {
            section.reject("client_key", "expected `client_certificate` beside it");
            None
        }
    }
}

/// A backend's own section, if `url` has a use for it; else its pool's.
pub(super) fn of_backend(section: &mut Section<'_, '_>, url: Option<&BackendUrl>, pool: &UpstreamTls) -> UpstreamTls {
    let own = section.optional_section("tls", |tls| upstream(tls, pool));
    if own.is_some() && url.is_some_and(|url| url.scheme == Scheme::Http) {
        section.reject("tls", "expected https:// in `url` beside it, or no such section");
    }
    own.unwrap_or_else(|| pool.clone())
}
