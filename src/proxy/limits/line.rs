//! Cutting a connection to a backend from outside Pingora, which has it and lends it to nobody.
//!
//! A [`Line`] has a descriptor of its own of the connection's socket, from before the connection is made until it is closed,
//! which Pingora's `Tracing` tells it: so it can be shut down, and nobody else's. Shutting down, unlike closing, leaves the
//! connection to Pingora, which reads an end of the stream and cleans up.
//!
//! Connections are kept and used again, so [`Lines`] finds a line by the descriptor that Pingora has, and a [`Grip`] is void
//! as soon as another attempt has got the connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use pingora_core::upstreams::peer::{Tracer, Tracing};
#[cfg(target_os = "linux")]
use rustix::net::sockopt::set_tcp_cork;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::relay::Relay;

/// The connections to backends that are open, by their descriptors.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Lines {
    open: Mutex<HashMap<RawFd, Arc<Line>, RandomState>>,
}

/// One connection to a backend, before it is made and until it is closed.
#[derive(Debug)]
pub(in crate::proxy) struct Line {
    lines: Weak<Lines>,
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    /// Pingora's descriptor, while it is open.
    descriptor: Option<RawFd>,
    /// Our own of the same socket.
    socket: Option<OwnedFd>,
    /// Attempts that have had it.
    attempts: u64,
}

/// An attempt's hold on what it has for a connection.
#[derive(Debug)]
pub(in crate::proxy) enum Grip {
    /// A connection, for as long as it is this attempt's.
    Line {
        /// That of the connection.
        line: Arc<Line>,
        /// Its number among those that have had the connection.
        attempt: u64,
    },
    /// A relay, which nobody else has.
    Relay(Arc<Relay>),
}

/// Keeps back what is written on a connection, for as long as it lives.
#[derive(Debug)]
pub(in crate::proxy) struct Cork {
    line: Arc<Line>,
    attempt: u64,
}

/// What Pingora keeps with the connection.
#[derive(Debug)]
struct Tap(Arc<Line>);

// === impl Lines ===

impl Lines {
    /// A line for a connection that may be made.
    pub(in crate::proxy) fn line(self: &Arc<Self>) -> Arc<Line> {
        Arc::new(Line { lines: Arc::downgrade(self), state: Mutex::default() })
    }

    /// An attempt has a connection: the one that `fresh` was made for, or one that was kept.
    pub(in crate::proxy) fn grip(&self, fresh: Arc<Line>, is_reused: bool, descriptor: RawFd) -> Option<Grip> {
        let line = if is_reused {
            Arc::clone(self.open.lock().get(&descriptor)?)
        } else {
            self.open.lock().insert(descriptor, Arc::clone(&fresh));
            fresh
        };
        let mut state = line.state.lock();
        state.descriptor = Some(descriptor);
        state.attempts += 1;
        let attempt = state.attempts;
        drop(state);
        Some(Grip::Line { line, attempt })
    }
}

// === impl Line ===

impl Line {
    /// What tells this line of its connection's end.
    pub(in crate::proxy) fn tracer(self: &Arc<Self>) -> Tracer {
        Tracer(Box::new(Tap(Arc::clone(self))))
    }

    /// Takes a descriptor of the socket that will be connected.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub(in crate::proxy) fn hold(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        self.state.lock().socket = Some(socket);
        Ok(())
    }

    /// Uses the connection while it is this attempt's.
    fn with<R>(&self, attempt: u64, with: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        let state = self.state.lock();
        let socket = state.socket.as_ref().filter(|_| state.attempts == attempt)?;
        Some(with(socket.as_fd()))
    }

    fn close(&self) {
        let descriptor = {
            let mut state = self.state.lock();
            state.socket = None;
            state.descriptor.take()
        };
        if let (Some(descriptor), Some(lines)) = (descriptor, self.lines.upgrade()) {
            lines.open.lock().remove(&descriptor);
        }
    }
}

// === impl Grip ===

impl Grip {
    /// Whether bytes have come that nobody has read yet: then it is not the backend who is silent.
    pub(super) fn has_unread(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match self {
            Self::Line { line, attempt } => {
                let read = line.with(*attempt, |socket| recv(socket, &mut [0; 1], flags));
                read.is_some_and(|read| read.is_ok_and(|(bytes, _)| bytes > 0))
            }
            Self::Relay(relay) => relay.has_unread(),
        }
    }

    /// Ends the connection, if this attempt still has it.
    pub(super) fn cut(&self) {
        match self {
            Self::Line { line, attempt } => {
                if let Some(Err(error)) = line.with(*attempt, |socket| shutdown(socket, Shutdown::Both)) {
                    log::debug!("a connection had ended before it was cut: {error}");
                }
            }
            Self::Relay(relay) => relay.cut(),
        }
    }

    /// Keeps back what is written next, until what is returned is dropped. None where that cannot be done.
    pub(in crate::proxy) fn cork(&self) -> Option<Cork> {
        let Self::Line { line, attempt } = self else { return None };
        line.with(*attempt, |socket| set_corked(socket, true))?.ok()?;
        Some(Cork { line: Arc::clone(line), attempt: *attempt })
    }
}

// === impl Cork ===

impl Drop for Cork {
    fn drop(&mut self) {
        // One that has ended needs it no more.
        let _ = self.line.with(self.attempt, |socket| set_corked(socket, false));
    }
}

#[cfg(target_os = "linux")]
fn set_corked(socket: BorrowedFd<'_>, is_corked: bool) -> rustix::io::Result<()> {
    set_tcp_cork(socket, is_corked)
}

/// Elsewhere it goes in two pieces.
#[cfg(not(target_os = "linux"))]
fn set_corked(_: BorrowedFd<'_>, _: bool) -> rustix::io::Result<()> {
    Err(rustix::io::Errno::NOSYS)
}

// === impl Tap ===

impl Tracing for Tap {
    // Pingora's descriptor is not known yet; `Lines::grip` is told.
    fn on_connected(&self) {}

    // Before the descriptor is closed.
    fn on_disconnected(&self) {
        self.0.close();
    }

    fn boxed_clone(&self) -> Box<dyn Tracing> {
        Box::new(Self(Arc::clone(&self.0)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn the_attempt_that_has_a_connection_can_cut_it() {
        let ((mut near, mut far), lines) = (connection(), Arc::new(Lines::default()));
        let line = lines.line();
        line.hold(&near).unwrap();
        let first = lines.grip(Arc::clone(&line), false, near.as_raw_fd()).unwrap();
        far.write_all(b"x").unwrap();
        near.peek(&mut [0]).unwrap();
        assert!(first.has_unread(), "a byte waits");
        let second = lines.grip(lines.line(), true, near.as_raw_fd()).unwrap();
        first.cut();
        near.read_exact(&mut [0]).unwrap();
        near.write_all(b"y").expect("the connection has gone over to the second attempt");
        assert!(!second.has_unread());
        second.cut();
        assert_eq!(near.read(&mut [0]).unwrap(), 0, "both ends see the end");
        far.read_exact(&mut [0]).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_descriptor_that_was_given_away_again_is_not_touched() {
        let ((near, _far), lines) = (connection(), Arc::new(Lines::default()));
        let line = lines.line();
        line.hold(&near).unwrap();
        let grip = lines.grip(Arc::clone(&line), false, near.as_raw_fd()).unwrap();
        line.tracer().0.on_disconnected();
        grip.cut();
        (&near).write_all(b"y").expect("whoever has the number now keeps the connection");
        assert!(lines.open.lock().is_empty(), "nothing is kept of it");
        assert!(lines.grip(lines.line(), true, near.as_raw_fd()).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_written_under_a_cork_goes_when_it_is_drawn() {
        let ((mut near, mut far), lines) = (connection(), Arc::new(Lines::default()));
        let line = lines.line();
        line.hold(&near).unwrap();
        let grip = lines.grip(line, false, near.as_raw_fd()).unwrap();
        let cork = grip.cork().unwrap();
        near.write_all(b"header").unwrap();
        far.set_nonblocking(true).unwrap();
        assert_eq!(far.read(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.write_all(b"body").unwrap();
        drop(cork);
        far.set_nonblocking(false).unwrap();
        let mut both = [0; 16];
        assert_eq!(far.read(&mut both).unwrap(), 10, "in one piece");
        assert_eq!(&both[..10], b"headerbody");
    }
}
