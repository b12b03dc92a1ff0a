//! How far the simulation is: one line on a terminal that is written over.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two updates.
const PAUSE: Duration = Duration::from_millis(200);

/// The line; nothing where nobody looks.
#[derive(Debug)]
pub(in crate::simulate) struct Progress {
    last: Option<Mutex<Instant>>,
}

// === impl Progress ===

impl Progress {
    /// A line on standard error, if that is a terminal.
    pub(in crate::simulate) fn new() -> Self {
        Self { last: stderr().is_terminal().then(|| Mutex::new(Instant::now())) }
    }

    /// `done` of `total` requests of `what`.
    pub(in crate::simulate) fn tell(&self, what: &str, done: usize, total: usize) {
        let Some(last) = &self.last else { return };
        let mut last = last.lock();
        if last.elapsed() >= PAUSE {
            *last = Instant::now();
            // A terminal that is gone is not worth a word.
            let _ = write!(stderr(), "\r\x1b[K{what}: {done} of {total} requests");
        }
    }

    /// Leaves the terminal as it was.
    pub(in crate::simulate) fn clear(&self) {
        if self.last.is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
