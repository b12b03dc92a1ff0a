//! A flag by which work that nobody waits for is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::NotTokenized;

/// Set by the waiter when it goes, read by the worker between pieces of work; `Relaxed`, as nothing else hangs on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

/// Sets its flag when dropped.
#[derive(Debug)]
pub(super) struct StopOnDrop(pub(super) Stop);

// === impl Stop ===

impl Stop {
    /// # Errors
    /// [`NotTokenized::TimedOut`] once the flag is set.
    pub(super) fn check(&self) -> Result<(), NotTokenized> {
        if self.0.load(Ordering::Relaxed) { Err(NotTokenized::TimedOut) } else { Ok(()) }
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
