//! The new process's side of a handover. It blocks: until it serves, the process has nothing else to do.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::state::FORMAT;
use super::{Listening, Offer, PROTOCOL, Reply, STATE_LENGTH_BYTES, Sockets, VARIABLE, descriptors, frame};

/// How long the old process may take for a part of what it hands over. It ends this one long before, if it lives.
const PART_TIME: Duration = Duration::from_secs(60);

/// Longest reason that is told, bytes; the whole of it goes to the log.
const MAX_REASON_BYTES: usize = 4096;

/// The process that this one takes over from.
#[derive(Debug)]
pub(crate) struct Predecessor {
    stream: UnixStream,
    offer: Offer,
}

/// Why nothing was handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// Standard input cannot be read as it should be.
    #[error("the process that is to be replaced cannot be heard ({VARIABLE} is set; is this a start by hand?)")]
    Stream(#[source] io::Error),
    /// It is too new or too old.
    #[error(
        "the process that is to be replaced ({version}) hands over by protocol {protocol}, and this one reads {PROTOCOL}; \
         restart it instead"
    )]
    Protocol {
        /// Its version.
        version: String,
        /// Its protocol.
        protocol: u32,
    },
}

// === impl Predecessor ===

impl Predecessor {
    /// Hears what the predecessor offers, if the environment says that there is one; with the sockets it hands over.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub(crate) fn of_process() -> Result<Option<(Self, Sockets)>, HandoverError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let stream = standard_input().map_err(HandoverError::Stream)?;
        Self::hear(stream).map(Some)
    }

    fn hear(mut stream: UnixStream) -> Result<(Self, Sockets), HandoverError> {
        let heard = stream.set_read_timeout(Some(PART_TIME)).and_then(|()| stream.set_write_timeout(Some(PART_TIME)));
        heard.map_err(HandoverError::Stream)?;
        let received = descriptors::receive(&stream).map_err(HandoverError::Stream)?;
        let offer: Offer = frame::read(&mut stream).map_err(HandoverError::Stream)?;
        if offer.protocol != PROTOCOL {
            let error = HandoverError::Protocol { version: offer.version.clone(), protocol: offer.protocol };
            Self { stream, offer }.fail(&error.to_string());
            return Err(error);
        }
        let sockets = offer.listeners.iter().copied().zip(received.into_iter().map(TcpListener::from));
        let sockets: Vec<(Listening, TcpListener)> = sockets.collect();
        Ok((Self { stream, offer }, Sockets::handed(sockets)))
    }

    /// Its version.
    pub(crate) fn version(&self) -> &str {
        &self.offer.version
    }

    /// What it has learned, as it wrote it, in at most `max_bytes`; nothing if it writes it in another form than
    /// [`FORMAT`]. To be asked when everything else is in place, so that it is young.
    ///
    /// # Errors
    /// When the predecessor is gone, or does not keep to the bound.
    pub(crate) fn state(&mut self, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        frame::write(&mut self.stream, &Reply::Ready { state_format: FORMAT, max_state_bytes: max_bytes })?;
        let mut length = [0; STATE_LENGTH_BYTES];
        self.stream.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > max_bytes {
            return Err(io::Error::other(format!("it hands over {length} bytes, more than the {max_bytes} allowed")));
        }
        let mut state = Vec::new();
        Read::take(&mut self.stream, length).read_to_end(&mut state)?;
        if (state.len() as u64) < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((length > 0).then_some(state))
    }

    /// The form in which it writes what it has learned.
    pub(crate) fn state_format(&self) -> u32 {
        self.offer.state_format
    }

    /// Says that this process accepts connections.
    ///
    /// # Errors
    /// When the predecessor is gone or has given this process up.
    pub(crate) fn serving(&mut self) -> io::Result<()> {
        frame::write(&mut self.stream, &Reply::Serving { process: std::process::id() })
    }

    /// What is left of it once this process serves: a stream that ends when it does.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) fn into_stream(self) -> io::Result<UnixStream> {
        self.stream.set_nonblocking(true)?;
        Ok(self.stream)
    }

    /// Says why this process will not serve. The predecessor may be gone; this one ends either way.
    pub(crate) fn fail(&mut self, reason: &str) {
        let end = reason.floor_char_boundary(MAX_REASON_BYTES);
        let _ = frame::write(&mut self.stream, &Reply::Failed { reason: reason[..end].to_owned() });
    }
}

/// Standard input as a socket of its own; what is left there is of no use to anyone.
fn standard_input() -> io::Result<UnixStream> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Only a Unix socket has such an address.
    stream.peer_addr()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::handover::Role;
    use crate::handover::state::Learned;

    /// Hears an old process that offers one listener by this protocol and state of this format; its end of the stream.
    fn offered(protocol: u32, state_format: u32) -> (UnixStream, Result<(Predecessor, Sockets), HandoverError>) {
        let (mut old, new) = UnixStream::pair().unwrap();
        old.set_read_timeout(Some(PART_TIME)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners = vec![Listening { role: Role::Clients, address: "127.0.0.1:0".parse().unwrap() }];
        descriptors::send(&old, &[listener.as_fd()]).unwrap();
        let offer = Offer { protocol, version: "9.9.9".into(), listeners, state_format };
        frame::write(&mut old, &offer).unwrap();
        let heard = Predecessor::hear(new);
        (old, heard)
    }

    #[test]
    fn listeners_and_state_are_taken_over() {
        let (mut old, heard) = offered(PROTOCOL, FORMAT);
        let (mut predecessor, mut sockets) = heard.unwrap();
        assert!(sockets.take(Listening { role: Role::Clients, address: "127.0.0.1:0".parse().unwrap() }).is_some());
        let state = Learned::default().encode().unwrap();
        old.write_all(&(state.len() as u64).to_le_bytes()).unwrap();
        old.write_all(&state).unwrap();
        assert_eq!(predecessor.state(1_000).unwrap(), Some(state));
        predecessor.serving().unwrap();
        let ready = Reply::Ready { state_format: FORMAT, max_state_bytes: 1_000 };
        assert_eq!(frame::read::<Reply>(&mut old).unwrap(), ready);
        assert_eq!(frame::read::<Reply>(&mut old).unwrap(), Reply::Serving { process: std::process::id() });
    }

    #[test]
    fn another_protocol_is_refused_and_the_old_process_told() {
        let (mut old, heard) = offered(PROTOCOL + 1, FORMAT);
        let error = heard.unwrap_err().to_string();
        assert!(error.contains("9.9.9") && error.contains("restart it instead"), "{error}");
        assert_eq!(frame::read::<Reply>(&mut old).unwrap(), Reply::Failed { reason: error });
    }

    #[test]
    fn a_state_beyond_the_bound_or_cut_off_is_none() {
        let (mut old, heard) = offered(PROTOCOL, FORMAT);
        old.write_all(&u64::MAX.to_le_bytes()).unwrap();
        assert!(heard.unwrap().0.state(1_000).unwrap_err().to_string().contains("more than the 1000 allowed"));
        let (mut old, heard) = offered(PROTOCOL, FORMAT);
        old.write_all(&100_u64.to_le_bytes()).unwrap();
        drop(old);
        assert!(heard.unwrap().0.state(1_000).is_err());
    }

    #[test]
    fn a_long_reason_is_cut_between_two_characters() {
        let (mut old, heard) = offered(PROTOCOL, FORMAT);
        heard.unwrap().0.fail(&format!("x{}", "ü".repeat(MAX_REASON_BYTES)));
        let Reply::Failed { reason } = frame::read(&mut old).unwrap() else { panic!("it failed") };
        assert_eq!(reason.len(), MAX_REASON_BYTES - 1);
    }
}
