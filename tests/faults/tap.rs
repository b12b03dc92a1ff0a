//! The network in front of one engine: passes bytes on, or does to them what networks and dying hosts do.
//!
//! Its address stays its own while nothing listens there. What passes is entered in the [`Ledger`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::ledger::Ledger;

/// What becomes of bytes and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Everything passes.
    Fair,
    /// Everything passes, this much later in either direction.
    Slow(Duration),
    /// Connections are accepted and nothing passes, nor in those that are open: half-open, as behind a lost route.
    Silent,
    /// Connections are reset, those that are open too.
    Resetting,
}

/// A port in front of an engine.
#[derive(Debug)]
pub(crate) struct Tap {
    address: SocketAddr,
    /// Holds the port; never listens.
    _reservation: TcpSocket,
    wire: Arc<Wire>,
    serving: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Wire {
    name: Arc<str>,
    engine: SocketAddr,
    ledger: Arc<Ledger>,
    weather: watch::Sender<Weather>,
}

/// What is read of one connection's bytes as they pass.
#[derive(Debug, Default)]
struct Reading {
    /// The end of what went to the engine, in case a header line goes on in the next bytes.
    tail: Vec<u8>,
    /// The request in flight on it, and the number of its visit.
    request: Option<(String, usize)>,
    is_stream: bool,
}

const REQUEST_ID: &[u8] = b"\r\nx-request-id: ";

/// More than a header line with a request id has.
const TAIL_BYTES: usize = 128;

// === impl Tap ===

impl Tap {
    /// A tap that passes everything to and from `engine`.
    pub(crate) fn open(name: &str, engine: SocketAddr, ledger: Arc<Ledger>) -> Self {
        let reservation = bound("127.0.0.1:0".parse().unwrap());
        let address = reservation.local_addr().unwrap();
        let wire = Wire { name: name.into(), engine, ledger, weather: watch::Sender::new(Weather::Fair) };
        let tap = Self { address, _reservation: reservation, wire: Arc::new(wire), serving: Mutex::default() };
        tap.start();
        tap
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn weather(&self, weather: Weather) {
        self.wire.weather.send_replace(weather);
    }

    /// Listens, if it does not.
    pub(crate) fn start(&self) {
        let mut serving = self.serving.lock();
        if serving.is_empty() {
            let listener = bound(self.address).listen(1024).unwrap();
            serving.spawn(serve(listener, Arc::clone(&self.wire)));
        }
    }

    /// Refuses connections, and closes those that are open.
    pub(crate) async fn stop(&self) {
        let mut serving = std::mem::take(&mut *self.serving.lock());
        serving.shutdown().await;
    }
}

/// Passes everything between a port of this address and `engine` for as long as the runtime lives; where it listens.
pub(crate) async fn forward(address: SocketAddr, engine: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut downstream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(engine).await?;
                tokio::io::copy_bidirectional(&mut downstream, &mut upstream).await
            });
        }
    });
    address
}

fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// Its end closes all connections.
async fn serve(listener: TcpListener, wire: Arc<Wire>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(connect(stream, Arc::clone(&wire))); }
                // The test's own descriptors are used up for a moment.
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(mut downstream: TcpStream, wire: Arc<Wire>) {
    let mut weather = wire.weather.subscribe();
    let (Ok(mut upstream), Ok(())) = (TcpStream::connect(wire.engine).await, downstream.set_nodelay(true)) else {
        return;
    };
    if upstream.set_nodelay(true).is_err() {
        return;
    }
    let reading = Mutex::new(Reading::default());
    let is_reset = {
        let (from_proxy, to_proxy) = downstream.split();
        let (from_engine, to_engine) = upstream.split();
        tokio::select! {
            biased;
            _ = weather.wait_for(|weather| *weather == Weather::Resetting) => true,
            () = pass(from_proxy, to_engine, &wire, |bytes| reading.lock().request(bytes, &wire)) => false,
            () = pass(from_engine, to_proxy, &wire, |bytes| reading.lock().answer(bytes, &wire)) => false,
        }
    };
    if is_reset {
        let _ = socket2::SockRef::from(&downstream).set_linger(Some(Duration::ZERO));
    }
}

/// Passes on what comes, until either side is closed.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    wire: &Wire,
    mut see: impl FnMut(&[u8]),
) {
    let mut weather = wire.weather.subscribe();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut bytes).await else { return };
        let now = weather.wait_for(|weather| *weather != Weather::Silent).await.map(|now| *now);
        if let Ok(Weather::Slow(time)) = now {
            sleep(time).await;
        }
        see(&bytes[..length]);
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

// === impl Reading ===

impl Reading {
    fn request(&mut self, bytes: &[u8], wire: &Wire) {
        self.tail.extend_from_slice(bytes);
        while let Some(at) = find(&self.tail, REQUEST_ID) {
            let line = &self.tail[at + REQUEST_ID.len()..];
            let Some(end) = find(line, b"\r\n") else { break };
            let id = String::from_utf8_lossy(&line[..end]).into_owned();
            self.tail.drain(..at + REQUEST_ID.len() + end);
            let visit = wire.ledger.came(&id, &wire.name);
            (self.request, self.is_stream) = (Some((id, visit)), false);
        }
        let over = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..over);
    }

    fn answer(&mut self, bytes: &[u8], wire: &Wire) {
        let Some((id, visit)) = &self.request else { return };
        self.is_stream |= find(bytes, b"text/event-stream").is_some();
        let begins: &[u8] = if self.is_stream { br#""delta":{"content":""# } else { b"HTTP/1.1 200" };
        if find(bytes, begins).is_some() {
            wire.ledger.answered(id, *visit);
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
