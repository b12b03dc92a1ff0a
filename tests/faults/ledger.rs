//! What reached the backends: for each request, by its id, where it came to and where an answer to it began.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// A request at one backend.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    /// The backend's name.
    pub(crate) backend: Arc<str>,
    /// Whether something of its answer went back that may not be repeated: a token, or a plain answer's header.
    pub(crate) has_answered: bool,
}

/// The visits of all requests. Written by the taps, read by who sent the request.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<HashMap<String, Vec<Visit>>>);

// === impl Ledger ===

impl Ledger {
    /// The request came to this backend; the number of this visit.
    pub(crate) fn came(&self, id: &str, backend: &Arc<str>) -> usize {
        let mut requests = self.0.lock();
        let visits = requests.entry(id.to_owned()).or_default();
        visits.push(Visit { backend: Arc::clone(backend), has_answered: false });
        visits.len() - 1
    }

    /// An answer went back from that visit.
    pub(crate) fn answered(&self, id: &str, visit: usize) {
        // A request that is over for its client is not in the book any more.
        if let Some(visit) = self.0.lock().get_mut(id).and_then(|visits| visits.get_mut(visit)) {
            visit.has_answered = true;
        }
    }

    /// The visits of a request that is over.
    pub(crate) fn close(&self, id: &str) -> Vec<Visit> {
        self.0.lock().remove(id).unwrap_or_default()
    }
}
