//! Listening sockets that were there before this process: its predecessor's, or systemd's (`LISTEN_FDS`).
//!
//! A predecessor's are found by who connects there and the address as configured, so that port 0 keeps its port.
//! systemd's have no such name and are found by the address that they really have.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use serde::{Deserialize, Serialize};

use super::Listening;

/// Who connects to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Clients.
    Clients,
    /// Operators: the admin listener.
    Operators,
}

/// A listener of this process, once more: what it hands over.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) listening: Listening,
    pub(crate) socket: OwnedFd,
}

/// Sockets that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    handed: Vec<(Listening, TcpListener)>,
    activated: Vec<(SocketAddr, TcpListener)>,
    /// What systemd passed besides, and why it is not used.
    refused: Vec<String>,
}

// === impl Sockets ===

impl Sockets {
    /// Of a predecessor.
    pub(crate) fn handed(handed: Vec<(Listening, TcpListener)>) -> Self {
        Self { handed, ..Self::default() }
    }

    /// Of systemd, by the environment; none without one. Others than TCP sockets are left alone. To be called while there
    /// is one thread: it takes the variables out of the environment, so that no process started from here takes them for
    /// its own.
    pub(crate) fn activated() -> Self {
        let mut passed = ListenFd::from_env();
        let (mut activated, mut refused) = (Vec::new(), Vec::new());
        for place in 0..passed.len() {
            let taken = passed.take_tcp_listener(place).and_then(|socket| socket.map(with_address).transpose());
            match taken {
                Ok(found) => activated.extend(found),
                Err(error) => refused.push(format!("socket {place} of LISTEN_FDS: {error}; a TCP socket is expected")),
            }
        }
        Self { handed: Vec::new(), activated, refused }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.handed.is_empty() && self.activated.is_empty()
    }

    /// The socket for a listener of the configuration, if there is one.
    pub(crate) fn take(&mut self, wanted: Listening) -> Option<TcpListener> {
        if let Some(at) = self.handed.iter().position(|(listening, _)| *listening == wanted) {
            return Some(self.handed.remove(at).1);
        }
        let at = self.activated.iter().position(|(address, _)| *address == wanted.address)?;
        Some(self.activated.remove(at).1)
    }

    /// What systemd passed and nobody took, in sentences.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        let unclaimed = self.activated.iter().map(|(address, _)| {
            format!("the socket of systemd on {address}: no listener of the configuration has exactly this address")
        });
        self.refused.iter().cloned().chain(unclaimed)
    }
}

fn with_address(socket: TcpListener) -> io::Result<(SocketAddr, TcpListener)> {
    Ok((socket.local_addr()?, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> (SocketAddr, TcpListener) {
        with_address(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap()
    }

    fn any_port(role: Role) -> Listening {
        Listening { role, address: "127.0.0.1:0".parse().unwrap() }
    }

    #[test]
    fn a_predecessors_are_found_by_role_and_configured_address_each_once() {
        let (first, first_socket) = bound();
        let (second, second_socket) = bound();
        let (admin, admin_socket) = bound();
        let mut sockets = Sockets::handed(vec![
            (any_port(Role::Clients), first_socket),
            (any_port(Role::Operators), admin_socket),
            (any_port(Role::Clients), second_socket),
        ]);
        let elsewhere = Listening { role: Role::Clients, address: first };
        assert!(sockets.take(elsewhere).is_none(), "the configuration had another address");
        let mut take = |role| sockets.take(any_port(role)).map(|socket| socket.local_addr().unwrap());
        assert_eq!(take(Role::Operators), Some(admin));
        assert_eq!((take(Role::Clients), take(Role::Clients), take(Role::Clients)), (Some(first), Some(second), None));
    }

    #[test]
    fn systemds_are_found_by_the_address_that_they_have() {
        let (address, socket) = bound();
        let (other, other_socket) = bound();
        let mut sockets = Sockets { activated: vec![(address, socket), (other, other_socket)], ..Sockets::default() };
        assert!(sockets.take(any_port(Role::Clients)).is_none());
        assert!(sockets.take(Listening { role: Role::Operators, address }).is_some());
        assert!(sockets.take(Listening { role: Role::Clients, address }).is_none(), "it is taken");
        let unused: Vec<_> = sockets.unused().collect();
        assert!(unused.len() == 1 && unused[0].contains(&other.to_string()), "{unused:?}");
    }
}
