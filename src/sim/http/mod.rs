//! The simulated engine's HTTP side: accepts connections while the gate is open, on the current runtime.
//!
//! Framing is Pingora's HTTP/1 server session, one for each request on a connection. The port stays ours while
//! connections are refused: a second socket is bound to it and never listens.

mod body;
mod connection;
mod exchange;
mod generation;
mod plan;
mod reply;
mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::shared::Shared;

/// Connections that the kernel keeps for us while we are busy.
const BACKLOG: u32 = 1024;
/// How long to wait after a failure that will not go away at once, such as a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A port and, while connections are taken, the socket that takes them.
#[derive(Debug)]
pub(in crate::sim) struct Port {
    address: SocketAddr,
    /// Holds the port; never listens.
    _reservation: TcpSocket,
    listener: Option<TcpListener>,
}

// === impl Port ===

impl Port {
    /// Takes the port and begins to listen.
    pub(in crate::sim) fn open(address: SocketAddr) -> io::Result<Self> {
        let reservation = bind(address)?;
        let address = reservation.local_addr()?;
        let listener = Some(bind(address)?.listen(BACKLOG)?);
        Ok(Self { address, _reservation: reservation, listener })
    }

    pub(in crate::sim) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its listener, for who serves at the port by other means; a new one if that was closed.
    pub(in crate::sim) fn take_listener(&mut self) -> Option<TcpListener> {
        self.listener.take().or_else(|| reopen(self.address))
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Lets the reservation and the listener share the port. A second engine cannot: this one listens.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves until the task is dropped.
pub(super) async fn serve(mut port: Port, shared: Arc<Shared>) {
    let slots = Arc::new(Semaphore::new(shared.options.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    let mut gate = shared.gate();
    let mut restarts = 0;
    loop {
        let wanted = *gate.borrow_and_update();
        if wanted.restarts != restarts {
            restarts = wanted.restarts;
            port.listener = None;
            connections.shutdown().await;
        }
        if !wanted.is_open {
            port.listener = None;
        } else if port.listener.is_none() {
            port.listener = reopen(port.address);
        }
        tokio::select! {
            accepted = accept(&port, wanted.is_open, &slots) => {
                // `None`: the listener could not be opened again, and the loop tries once more.
                if let Some((tcp, slot)) = accepted {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        connection::serve(tcp, shared).await;
                        drop(slot);
                    });
                }
            }
            Some(_) = connections.join_next() => {}
            // The sender lives as long as `shared`.
            _ = gate.changed() => {}
        }
    }
}

fn reopen(address: SocketAddr) -> Option<TcpListener> {
    bind(address)
        .and_then(|socket| socket.listen(BACKLOG))
        .inspect_err(|error| log::warn!("the simulated engine cannot listen on {address} again: {error}"))
        .ok()
}

/// The next connection, when there is a slot for it. None ever comes while the gate is closed; `None` comes after a pause
/// if it is open and there is no listener all the same.
async fn accept(port: &Port, is_open: bool, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    if !is_open {
        return std::future::pending().await;
    }
    let Some(listener) = &port.listener else {
        tokio::time::sleep(PAUSE).await;
        return None;
    };
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => return Some((tcp, slot)),
            Err(error) => {
                log::debug!("accept: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
