//! Accepts connections and hands them to a Pingora application.
//!
//! The accept loop is ours, not Pingora's `Server`: an address with port 0 can be asked what it became, connections stay
//! with a worker, listeners stop when the drain says so, and the process ends when its last request does, where `Server`
//! sleeps for its whole grace period.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pingora_core::apps::ServerApp;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::ALPN;
use pingora_core::protocols::{GetSocketDigest, IO, SocketDigest, Ssl};
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::door::Door;
use super::workers::Roster;
use crate::downstream::Downstream;
use crate::tls::Endpoint;

/// How long a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// How long the first bytes of an HTTP/2 connection may take. Clients send them at once; Pingora waits without end, also
/// behind a shorter request of another protocol.
const PREFACE_TIME: Duration = Duration::from_secs(5);
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Between two looks at a preface of which a part has come.
const PREFACE_PAUSE: Duration = Duration::from_millis(20);

/// Bytes of an answer that the system takes for a client and has not sent. Left to itself it takes megabytes for one that
/// does not read: memory that no budget counts, copied in vain, while the engine's tokens seem to be on their way. What is
/// sent and not acknowledged comes on top, so a slow network is used as well as before.
#[cfg(target_os = "linux")]
const MOST_UNSENT_BYTES: u32 = 128 * 1024;

/// Pause after a failed accept: with no file descriptor left, accept fails again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound address and how connections to it are spoken to.
pub struct Listener {
    socket: TcpListener,
    tls: Option<Arc<Endpoint>>,
    awaits_preface: bool,
}

/// Who serves the connections of a listener.
pub(super) enum Staff<A> {
    /// The runtime that the listener is on.
    Here(Arc<A>),
    /// Workers, each with an application of its own.
    Workers(Roster, Vec<Arc<A>>),
}

// === impl Listener ===

impl Listener {
    /// Binds `address`; `tls` makes it a TLS listener.
    ///
    /// # Errors
    /// As `bind(2)`: the address is taken, not local, or not permitted.
    pub async fn bind(address: SocketAddr, tls: Option<Arc<Endpoint>>) -> io::Result<Self> {
        Ok(Self { socket: TcpListener::bind(address).await?, tls, awaits_preface: false })
    }

    /// The same on a socket that listens already.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn over(socket: StdListener, tls: Option<Arc<Endpoint>>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: TcpListener::from_std(socket)?, tls, awaits_preface: false })
    }

    /// The socket once more, for another process. As long as either is open, connections are not refused.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Makes it one for HTTP/2 without TLS: a connection that does not begin soon is closed.
    pub fn awaiting_preface(mut self) -> Self {
        self.awaits_preface = true;
        self
    }

    /// The address in use, with the port that was given for port 0.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts until `stop` becomes true, then closes the socket. Connections go on. Those that `door` has no place for are
    /// closed at once.
    ///
    /// `drain` is what the application is told, and becomes true earlier than `stop`.
    pub(super) async fn serve<A>(
        self,
        staff: Staff<A>,
        door: Door,
        drain: watch::Receiver<bool>,
        mut stop: watch::Receiver<bool>,
    ) where
        A: ServerApp + Send + Sync + 'static,
    {
        let start = |stream, peer: SocketAddr| {
            let Some(place) = door.admit(peer.ip()) else { return };
            let (tls, awaits_preface) = (self.tls.clone(), self.awaits_preface);
            let (drain, state) = (drain.clone(), Arc::clone(door.state()));
            staff.serve(async move |app| {
                if let Some((stream, is_h2)) = begin(stream, peer, tls, awaits_preface).await {
                    let stream = Downstream::new(stream, state, peer, is_h2);
                    converse(Box::new(stream), app, drain).await;
                }
                drop(place);
            });
        };
        let mut is_failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.socket) => accepted,
                _ = stop.wait_for(|stopped| *stopped) => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    is_failing = false;
                    start(stream, peer);
                }
                Err(error) => {
                    if !is_failing {
                        log::error!("accepting connections fails: {error}; trying on");
                    }
                    is_failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        for (stream, peer) in waiting(self.socket) {
            start(stream, peer);
        }
    }
}

/// The next connection, for the runtime where it will be served.
async fn accept(socket: &TcpListener) -> io::Result<(StdStream, SocketAddr)> {
    let (stream, peer) = socket.accept().await?;
    Ok((stream.into_std()?, peer))
}

/// The connections that the system has accepted for `socket` and that nobody has taken: closing it would reset them.
fn waiting(socket: TcpListener) -> Vec<(StdStream, SocketAddr)> {
    // It does not block, so it ends where nobody waits.
    socket.into_std().map(|socket| std::iter::from_fn(|| socket.accept().ok()).collect()).unwrap_or_default()
}

// === impl Staff ===

impl<A: Send + Sync + 'static> Staff<A> {
    /// Has a connection served.
    fn serve<F: Future<Output = ()> + Send + 'static>(&self, connection: impl FnOnce(Arc<A>) -> F) {
        match self {
            Self::Here(app) => drop(tokio::spawn(connection(Arc::clone(app)))),
            Self::Workers(roster, apps) => {
                let seat = roster.seat();
                let app = Arc::clone(&apps[seat.worker()]);
                seat.spawn(connection(app));
            }
        }
    }
}

/// Says what is spoken on a connection, and agrees on TLS where the listener has it; the connection, and whether HTTP/2 is
/// spoken.
async fn begin(
    stream: StdStream,
    peer: SocketAddr,
    tls: Option<Arc<Endpoint>>,
    awaits_preface: bool,
) -> Option<(Box<dyn IO>, bool)> {
    let stream = match prepare(stream, peer) {
        Ok(stream) => stream,
        Err(error) => {
            log::debug!("the connection of {peer} is gone: {error}");
            return None;
        }
    };
    let is_h2 = if awaits_preface { preface(&stream).await? } else { false };
    let stream = with_digest(stream, peer);
    let Some(endpoint) = tls else { return Some((Box::new(stream), is_h2)) };
    match endpoint.accept(stream, HANDSHAKE_TIME).await {
        Ok(stream) => {
            let is_h2 = matches!(stream.selected_alpn_proto(), Some(ALPN::H2));
            Some((Box::new(stream), is_h2))
        }
        Err(outcome) => {
            log::debug!("no TLS with {peer}: {}", outcome.name());
            None
        }
    }
}

/// Serves one connection to its end.
async fn converse<A>(stream: Box<dyn IO>, app: Arc<A>, drain: watch::Receiver<bool>)
where
    A: ServerApp + Send + Sync + 'static,
{
    let mut next = Some(stream);
    while let Some(stream) = next {
        next = app.process_new(stream, &drain).await;
    }
}

/// Waits for as many bytes as Pingora looks at, and leaves them where they are: whether they are the preface of HTTP/2.
async fn preface(stream: &TcpStream) -> Option<bool> {
    let arriving = async {
        let mut bytes = [0; PREFACE.len()];
        loop {
            match stream.peek(&mut bytes).await {
                Ok(0) | Err(_) => return None,
                Ok(length) if length == bytes.len() => return Some(bytes == *PREFACE),
                Ok(_) => sleep(PREFACE_PAUSE).await,
            }
        }
    };
    timeout(PREFACE_TIME, arriving).await.unwrap_or(None)
}

/// Makes a connection that of the runtime that is here.
fn prepare(stream: StdStream, peer: SocketAddr) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    if let Err(error) = stream.set_nodelay(true) {
        log::debug!("TCP_NODELAY for {peer}: {error}");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = SockRef::from(&stream).set_tcp_notsent_lowat(MOST_UNSENT_BYTES) {
        log::debug!("TCP_NOTSENT_LOWAT for {peer}: {error}");
    }
    TcpStream::from_std(stream)
}

fn with_digest(stream: TcpStream, peer: SocketAddr) -> L4Stream {
    let digest = SocketDigest::from_raw_fd(std::os::fd::AsRawFd::as_raw_fd(&stream));
    // Known from accept, so it need not be asked for again.
    let _ = digest.peer_addr.set(Some(PeerAddr::Inet(peer)));
    let mut stream = L4Stream::from(stream);
    stream.set_socket_digest(digest);
    stream
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn little_is_taken_for_a_client_that_does_not_read() {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = accept(&listener.socket).await.unwrap();
        let mut stream = prepare(stream, peer).unwrap();
        let (mut taken, mut last) = (0, Instant::now());
        // Until nothing more is taken for a while.
        while let Ok(written) = timeout(Duration::from_millis(500), stream.write(&[0; 16 * 1024])).await {
            taken += written.unwrap();
            last = Instant::now();
            assert!(taken < 1 << 20, "{taken} bytes for nobody");
        }
        assert!(last.elapsed() >= Duration::from_millis(500) && taken > 0);
        drop(client);
    }
}
