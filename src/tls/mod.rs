//! TLS on both sides: what listeners and this program itself prove themselves with, and whom they trust.
//!
//! [`Store`] holds what is in force, in one piece: a configuration's files are all read ([`files`]) and made into what
//! rustls and Pingora take ([`listener`], [`upstream`]), or none of it is used. Connections take what is in force when they
//! begin, and keep it. Left to others: sockets (`server`), when to read again (`control`).

mod certificate;
mod endpoint;
mod fault;
mod files;
mod identity;
mod listener;
mod load;
mod outcome;
mod sni;
mod store;
#[cfg(test)]
mod tests;
mod upstream;
mod validity;
mod watch;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub use endpoint::Endpoint;
pub(crate) use endpoint::client_identity;
pub use fault::{Fault, Faults};
pub use outcome::Outcome;
pub use store::{Loaded, Store};
pub use upstream::Upstream;
pub(crate) use watch::CertificateNews;

/// Who computes. Pingora's own side uses ring as well, and one provider is enough.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
