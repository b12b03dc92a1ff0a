//! What signals ask for.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal, by its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGTERM: finish what is in flight, then end.
    Stop,
    /// SIGINT: end now.
    Quit,
    /// SIGUSR2: let a new process take over.
    Upgrade,
}

/// The signals that the process answers. SIGQUIT, by which a Pingora server would end whether or not another process is
/// there to take over, does nothing.
#[derive(Debug)]
pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    user_2: Signal,
}

// === impl Signals ===

impl Signals {
    /// Takes the signals over from their default actions, most of which end the process.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next signal that asks for something.
    pub(super) async fn next(&mut self) -> Request {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => return Request::Reload,
                _ = self.terminate.recv() => return Request::Stop,
                _ = self.interrupt.recv() => return Request::Quit,
                _ = self.user_2.recv() => return Request::Upgrade,
                _ = self.quit.recv() => log::warn!("SIGQUIT is ignored; SIGTERM stops, SIGHUP reloads, SIGUSR2 upgrades"),
            }
        }
    }
}
