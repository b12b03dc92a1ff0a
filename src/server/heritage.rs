//! What was there before this process: listeners of systemd's, or a process that it takes over from.

use std::io;
use std::net::TcpListener;

use crate::handover::{HandoverError, Listening, Predecessor, Sockets};

/// What a process starts with; nothing by default.
#[derive(Debug, Default)]
pub(super) struct Heritage {
    sockets: Sockets,
    predecessor: Option<Predecessor>,
}

// === impl Heritage ===

impl Heritage {
    /// By environment and standard input. To be called while the process has one thread.
    ///
    /// # Errors
    /// When there is a predecessor that cannot be understood.
    pub(super) fn of_process() -> Result<Self, HandoverError> {
        let activated = Sockets::activated();
        Ok(match Predecessor::of_process()? {
            Some((predecessor, sockets)) => Self { sockets, predecessor: Some(predecessor) },
            None => Self { sockets: activated, predecessor: None },
        })
    }

    /// The socket for a listener of the configuration, if it is there already.
    pub(super) fn take(&mut self, listening: Listening) -> Option<TcpListener> {
        self.sockets.take(listening)
    }

    /// Logs what systemd passed in vain, when all listeners have what they need, and closes it.
    pub(super) fn close_rest(&mut self) {
        for unused in std::mem::take(&mut self.sockets).unused() {
            log::warn!("not used: {unused}");
        }
    }

    /// Tells the predecessor that this process accepts connections.
    ///
    /// # Errors
    /// When it is gone or has given this process up, and goes on by itself.
    pub(super) fn serving(&mut self) -> io::Result<()> {
        self.predecessor.as_mut().map_or(Ok(()), Predecessor::serving)
    }

    /// Tells the predecessor why this process will not serve.
    pub(super) fn fail(&mut self, reason: &str) {
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.fail(reason);
        }
    }
}
