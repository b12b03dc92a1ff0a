//! How handshakes with clients end.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a handshake ended, as the metric says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Well, from the beginning.
    Full,
    /// Well, where an earlier connection had left off.
    Resumed,
    /// It took too long.
    TimedOut,
    /// The client left, or its connection broke.
    Closed,
    /// What came is not TLS.
    NotTls,
    /// No version or algorithm that both sides know.
    Incompatible,
    /// A client certificate is required, and none came.
    NoClientCertificate,
    /// The client's certificate is not one that is trusted, or expired.
    BadClientCertificate,
    /// The client refused, mostly because it does not trust the certificate.
    RefusedByClient,
    /// Anything else: the client breaks the protocol.
    Other,
}

/// Counts of them.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; Outcome::ALL.len()]);

// === impl Outcome ===

impl Outcome {
    /// All, in the order of the metric.
    pub const ALL: [Self; 10] = [
        Self::Full,
        Self::Resumed,
        Self::TimedOut,
        Self::Closed,
        Self::NotTls,
        Self::Incompatible,
        Self::NoClientCertificate,
        Self::BadClientCertificate,
        Self::RefusedByClient,
        Self::Other,
    ];

    /// The word for it in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::TimedOut => "timed_out",
            Self::Closed => "closed",
            Self::NotTls => "not_tls",
            Self::Incompatible => "incompatible",
            Self::NoClientCertificate => "no_client_certificate",
            Self::BadClientCertificate => "bad_client_certificate",
            Self::RefusedByClient => "refused_by_client",
            Self::Other => "other",
        }
    }

    /// Why a handshake failed.
    pub(super) fn of(error: &io::Error) -> Self {
        use rustls::Error;
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            None => Self::Closed,
            Some(Error::InvalidMessage(_)) => Self::NotTls,
            Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => Self::Incompatible,
            Some(Error::NoCertificatesPresented) => Self::NoClientCertificate,
            Some(Error::InvalidCertificate(_)) => Self::BadClientCertificate,
            Some(Error::AlertReceived(_)) => Self::RefusedByClient,
            Some(_) => Self::Other,
        }
    }
}

// === impl Counts ===

impl Counts {
    pub(super) fn add(&self, outcome: Outcome) {
        self.0[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn get(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize].load(Relaxed)
    }
}
