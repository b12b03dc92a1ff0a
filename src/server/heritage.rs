//! What was there before this process: listeners of systemd's, or a process that it takes over from.

use std::io;
use std::net::TcpListener;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::handover::state::{FORMAT, Learned, StateError};
use crate::handover::{self, HandoverError, Listening, Predecessor, Sockets};

/// What a process starts with; nothing by default.
#[derive(Debug, Default)]
pub(super) struct Heritage {
    sockets: Sockets,
    /// There were some.
    had_sockets: bool,
    predecessor: Option<Predecessor>,
}

/// The process that this one has taken over from, as long as it finishes its requests.
#[derive(Debug)]
pub(super) struct Elder(Option<UnixStream>);

// === impl Elder ===

impl Elder {
    /// Lets it close connections that wait for their next request.
    pub(super) async fn hurry(&mut self) {
        if let Some(stream) = &mut self.0 {
            // If it is gone, so are they.
            let _ = stream.write_all(&[handover::HURRY]).await;
        }
    }

    /// Returns when it has ended; at once if there is none. Safe to cancel.
    pub(super) async fn ended(&mut self) {
        if let Some(stream) = &mut self.0 {
            // It says nothing any more.
            let _ = stream.read(&mut [0]).await;
            self.0 = None;
        }
    }
}

// === impl Heritage ===

impl Heritage {
    /// By environment and standard input. To be called while the process has one thread.
    ///
    /// # Errors
    /// When there is a predecessor that cannot be understood.
    pub(super) fn of_process() -> Result<Self, HandoverError> {
        let activated = Sockets::activated();
        let (sockets, predecessor) = match Predecessor::of_process()? {
            Some((predecessor, sockets)) => (sockets, Some(predecessor)),
            None => (activated, None),
        };
        Ok(Self { had_sockets: !sockets.is_empty(), sockets, predecessor })
    }

    /// Whether somebody may have connected already.
    pub(super) fn may_have_waiting(&self) -> bool {
        self.had_sockets
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
        let (version, started) = (predecessor.version().to_owned(), Instant::now());
        match read(predecessor.state(max_bytes), predecessor.state_format()) {
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

    /// Tells the predecessor that this process accepts connections, and gives what is left of it.
    ///
    /// # Errors
    /// When it is gone or has given this process up, and goes on by itself.
    pub(super) fn serving(&mut self) -> io::Result<Elder> {
        let Some(mut predecessor) = self.predecessor.take() else { return Ok(Elder(None)) };
        predecessor.serving()?;
        Ok(Elder(Some(UnixStream::from_std(predecessor.into_stream()?)?)))
    }

    /// Tells the predecessor why this process will not serve.
    pub(super) fn fail(&mut self, reason: &str) {
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.fail(reason);
        }
    }
}

/// The state that came from a predecessor that writes it in this format, or why there is none.
fn read(state: io::Result<Option<Vec<u8>>>, format: u32) -> Result<Learned, String> {
    match state {
        Ok(Some(bytes)) => Learned::decode(&bytes).map_err(|error| error.to_string()),
        Ok(None) if format != FORMAT => Err(StateError::Format(format).to_string()),
        Ok(None) => Err("there is none".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_process_starts_cold_is_told() {
        let state = Learned::default().encode().unwrap();
        assert_eq!(read(Ok(Some(state.clone())), FORMAT).unwrap(), Learned::default());
        assert!(
            read(Ok(None), FORMAT + 1)
                .unwrap_err()
                .contains(&format!("format {}, and this version reads {FORMAT}", FORMAT + 1))
        );
        assert_eq!(read(Ok(None), FORMAT).unwrap_err(), "there is none");
        assert!(read(Ok(Some(state[..7].to_vec())), FORMAT).unwrap_err().contains("does not begin"));
        assert!(read(Err(io::Error::other("gone")), FORMAT).unwrap_err().contains("gone"));
    }
}
