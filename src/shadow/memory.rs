//! The memory that all shadows have together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A budget of bytes, and the secret by which its tables place what is hashed.
#[derive(Debug)]
pub struct ShadowMemory {
    budget_bytes: usize,
    /// Taken and given back by the pools' shadows, each under a lock of its own. `Relaxed`: nothing else hangs on it.
    used_bytes: AtomicUsize,
    secret: u64,
}

/// A share of it. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Grant {
    memory: Arc<ShadowMemory>,
    bytes: usize,
}

// === impl ShadowMemory ===

impl ShadowMemory {
    /// `secret` keeps outsiders from choosing what is taken for the same.
    pub fn new(budget_bytes: usize, secret: u64) -> Self {
        Self { budget_bytes, used_bytes: AtomicUsize::new(0), secret }
    }

    /// Bytes in use, at most the budget.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    pub(super) fn secret(&self) -> u64 {
        self.secret
    }

    /// Room for so many bytes, unless there is none.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Grant> {
        let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= self.budget_bytes);
        self.used_bytes.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Grant { memory: Arc::clone(self), bytes })
    }
}

// === impl Grant ===

impl Drop for Grant {
    fn drop(&mut self) {
        self.memory.used_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_granted_than_there_is_and_all_of_it_comes_back() {
        let memory = Arc::new(ShadowMemory::new(100, 1));
        let first = memory.take(60);
        assert!(first.is_some() && memory.take(41).is_none() && memory.take(usize::MAX).is_none());
        let second = memory.take(40);
        assert_eq!(memory.used_bytes(), 100);
        drop((first, second));
        assert_eq!(memory.used_bytes(), 0);
    }
}
