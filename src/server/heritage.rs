//! What was there before this process: listeners of systemd's, or a process that it takes over from.

use std::io;
use std::net::TcpListener;
use std::time::Instant;

use crate::handover::state::{FORMAT, Learned, StateError};
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

    /// What the predecessor has learned, in at most `max_bytes`. Whatever goes wrong, this process starts cold.
    pub(super) fn learned(&mut self, max_bytes: u64) -> Option<Learned> {
        let predecessor = self.predecessor.as_mut()?;
        let started = Instant::now();
        let (version, format) = (predecessor.version().to_owned(), predecessor.state_format());
        let learned = match predecessor.state(max_bytes) {
            Ok(Some(bytes)) => Learned::decode(&bytes).map_err(|error| error.to_string()),
            Ok(None) if format != FORMAT => Err(StateError::Format(format).to_string()),
            Ok(None) => Err("there is none".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match learned {
            Ok(learned) => {
                let (blocks, took) = (learned.held_blocks(), started.elapsed());
                log::info!("taking over from version {version}, with {blocks} blocks that backends hold ({took:.1?})");
                Some(learned)
            }
            Err(reason) => {
                log::warn!("starting cold: the state of the process that is replaced (version {version}): {reason}");
                None
            }
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
