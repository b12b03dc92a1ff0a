//! What a client's certificate says of the client, in one word for the log.

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Longest identity that is logged. Whoever signs certificates chooses it.
const MAX_IDENTITY_BYTES: usize = 256;

/// The first URI of the certificate's names (such as `spiffe://...`), else its first host, else its common name.
pub(super) fn identity(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = || names.iter().flat_map(|names| &names.value.general_names);
    let uri = names().find_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None });
    let host = || names().find_map(|name| if let GeneralName::DNSName(host) = name { Some(*host) } else { None });
    let common_name = || certificate.subject().iter_common_name().find_map(|name| name.as_str().ok());
    let identity = uri.or_else(host).or_else(common_name)?;
    Some(identity[..identity.floor_char_boundary(MAX_IDENTITY_BYTES)].to_owned())
}
