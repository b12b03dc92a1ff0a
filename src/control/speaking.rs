//! How a backend is spoken to over TLS, and whether that was refused.

use std::sync::Arc;

use crate::tls::Upstream;

/// What the table knows of a backend's TLS; nothing of one without.
#[derive(Debug, Default)]
pub(super) struct Speaking {
    upstream: Option<Arc<Upstream>>,
    /// Why it failed last, as was logged, without the numbers; none once it went well.
    distrust: Option<String>,
}

// === impl Speaking ===

impl Speaking {
    pub(super) fn new(upstream: Option<Arc<Upstream>>) -> Self {
        Self { upstream, distrust: None }
    }

    pub(super) fn upstream(&self) -> Option<Arc<Upstream>> {
        self.upstream.clone()
    }

    /// Takes over how it is spoken to; whether that is news.
    pub(super) fn take(&mut self, upstream: Option<Arc<Upstream>>) -> bool {
        let is_same = self.upstream.as_ref().map(Arc::as_ptr) == upstream.as_ref().map(Arc::as_ptr);
        self.upstream = upstream;
        !is_same
    }

    /// Says once why there is no TLS: a backend that never was healthy would wait in silence.
    pub(super) fn note_distrust(&mut self, backend: &str, pool: &str, reason: &str) {
        // How long ago a certificate expired is no news.
        let kind: String = reason.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        if self.distrust.as_ref() != Some(&kind) {
            log::warn!("backend {backend} of pool {pool}: no TLS with it: {reason}");
            self.distrust = Some(kind);
        }
    }

    /// The backend has answered.
    pub(super) fn note_trust(&mut self) {
        self.distrust = None;
    }
}
