//! Connections to backends: made by Pingora's connector, and kept here between two requests.
//!
//! Pingora's own pool has a task for each connection that is idle, and asks the system at each use whose it is; together
//! that is a tenth of what a small request costs. Here a kept connection is a value in a list: it is looked at when it is
//! taken, and now and then by one task for all of them, which closes those that were idle for too long and those that the
//! backend has closed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use pingora_core::Result;
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::Stream;
use pingora_core::upstreams::peer::{HttpPeer, Peer};
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use super::exchange;
use super::wire::Wire;
use crate::time::{self, Moment};

/// Most that are kept, over all backends: 64 engines with 256 streams each.
const MAX_KEPT: usize = 16 * 1024;

/// Between two looks at those that nobody takes.
const SWEEP_TIME: Duration = Duration::from_secs(1);

/// The connections of those who serve on one thread.
pub(super) struct Connections {
    connector: Arc<TransportConnector>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By what their peers have in common, each list in the order in which they were given back.
    idle: HashMap<u64, Vec<Idle>, RandomState>,
    count: usize,
    /// Whether a task looks at them.
    is_swept: bool,
}

struct Idle {
    wire: Box<Wire>,
    until: Moment,
}

// === impl Connections ===

impl Connections {
    /// Makes connections by `connector`, which others may have too; keeps none yet.
    pub(super) fn new(connector: Arc<TransportConnector>) -> Self {
        Self { connector, kept: Mutex::default() }
    }

    /// A connection to `peer`, and whether it was kept.
    ///
    /// # Errors
    /// As those of Pingora's connector.
    pub(super) async fn get(&self, peer: &HttpPeer) -> Result<(Box<Wire>, bool)> {
        match self.take(peer.reuse_hash(), time::now()) {
            Some(wire) => Ok((wire, true)),
            None => {
                // In a box: what making one takes would be a part of every request's state, and is moved with it.
                let stream = Box::pin(self.connector.new_stream(peer)).await?;
                Ok((Box::new(Wire::new(stream)), false))
            }
        }
    }

    fn take(&self, key: u64, now: Moment) -> Option<Box<Wire>> {
        // Those that are no good are closed without the lock.
        let mut worn = Vec::new();
        let mut kept = self.kept.lock();
        while let Some(mut idle) = kept.pop(key) {
            if idle.until > now && is_open(&mut idle.wire) {
                drop(kept);
                return Some(idle.wire);
            }
            worn.push(idle);
        }
        drop(kept);
        None
    }

    /// Keeps a connection on which nothing is under way, for the next request to its peer.
    pub(super) fn keep(self: &Arc<Self>, peer: &HttpPeer, stream: Stream) {
        let time = peer.options.idle_timeout.unwrap_or(Duration::MAX);
        let Ok(mut wire) = stream.into_any().downcast::<Wire>() else { return };
        if time.is_zero() || !is_open(&mut wire) {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.count >= MAX_KEPT {
            return;
        }
        kept.push(peer.reuse_hash(), Idle { wire, until: time::now() + time });
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes those that are of no use any more; whether there are others.
    fn sweep(&self, now: Moment) -> bool {
        let mut kept = self.kept.lock();
        let worn = kept.remove(|idle| idle.until <= now || !is_open(&mut idle.wire));
        kept.is_swept = kept.count > 0;
        let is_swept = kept.is_swept;
        drop(kept);
        drop(worn);
        is_swept
    }
}

// === impl Kept ===

impl Kept {
    fn push(&mut self, key: u64, idle: Idle) {
        self.idle.entry(key).or_default().push(idle);
        self.count += 1;
    }

    /// The one that was given back last: it is the least likely to be closed just now.
    fn pop(&mut self, key: u64) -> Option<Idle> {
        let idle = self.idle.get_mut(&key)?.pop()?;
        self.count -= 1;
        Some(idle)
    }

    fn remove(&mut self, mut is_worn: impl FnMut(&mut Idle) -> bool) -> Vec<Idle> {
        let mut worn = Vec::new();
        for list in self.idle.values_mut() {
            worn.extend(list.extract_if(.., &mut is_worn));
        }
        self.idle.retain(|_, list| !list.is_empty());
        self.count -= worn.len();
        worn
    }
}

/// Whether the other side has neither closed the connection nor said anything on it.
fn is_open(wire: &mut Wire) -> bool {
    exchange::now(wire.read(&mut [0])).is_none()
}

async fn sweep(connections: Weak<Connections>) {
    loop {
        sleep(SWEEP_TIME).await;
        if !connections.upgrade().is_some_and(|connections| connections.sweep(time::now())) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn connections() -> Arc<Connections> {
        Arc::new(Connections::new(Arc::new(TransportConnector::new(None))))
    }

    fn peer(port: u16, idle: Duration) -> HttpPeer {
        let mut peer = HttpPeer::new(("127.0.0.1", port), false, String::new());
        peer.options.idle_timeout = Some(idle);
        peer
    }

    /// Keeps a new connection to `peer`; the backend's end of it.
    fn keep(connections: &Arc<Connections>, peer: &HttpPeer) -> DuplexStream {
        let (near, far) = duplex(64);
        connections.keep(peer, Box::new(Wire::new(Box::new(near))));
        far
    }

    /// Whether `wire` leads to `far`.
    async fn leads_to(wire: &mut Wire, far: &mut DuplexStream) -> bool {
        wire.write_all(b"x").await.is_ok() && exchange::now(far.read(&mut [0; 8])).is_some()
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_one_that_was_given_back_last_is_taken_first_and_only_for_its_peer() {
        let (connections, one, other) = (connections(), peer(1, HOUR), peer(2, HOUR));
        let (mut first, mut second) = (keep(&connections, &one), keep(&connections, &one));
        assert!(connections.take(other.reuse_hash(), time::now()).is_none());
        for far in [&mut second, &mut first] {
            let mut wire = connections.take(one.reuse_hash(), time::now()).unwrap();
            assert!(leads_to(&mut wire, far).await);
        }
        assert!(connections.take(one.reuse_hash(), time::now()).is_none());
    }

    #[tokio::test]
    async fn what_the_backend_has_closed_or_spoken_on_is_not_taken() {
        let (connections, peer) = (connections(), peer(1, HOUR));
        let mut good = keep(&connections, &peer);
        drop(keep(&connections, &peer));
        let mut loud = keep(&connections, &peer);
        loud.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        let mut wire = connections.take(peer.reuse_hash(), time::now()).unwrap();
        assert!(leads_to(&mut wire, &mut good).await);
        assert_eq!(connections.kept.lock().count, 0);
    }

    #[tokio::test]
    async fn nothing_is_kept_for_longer_than_its_time() {
        let (connections, short, long) = (connections(), peer(1, Duration::from_secs(4)), peer(2, HOUR));
        let (mut first, _second) = (keep(&connections, &short), keep(&connections, &long));
        let mut never = keep(&connections, &peer(3, Duration::ZERO));
        assert_eq!(never.read(&mut [0; 8]).await.unwrap(), 0, "closed at once");
        let later = time::now() + Duration::from_secs(5);
        assert!(connections.sweep(later), "another is left");
        assert_eq!(first.read(&mut [0; 8]).await.unwrap(), 0, "closed, though nobody asked for it");
        assert!(connections.take(long.reuse_hash(), later + 2 * HOUR).is_none());
        assert!(!connections.sweep(later), "nobody is left to look at");
    }

    #[tokio::test]
    async fn so_many_are_kept_and_no_more() {
        let (connections, peer) = (connections(), peer(1, HOUR));
        let _kept: Vec<DuplexStream> = (0..MAX_KEPT).map(|_| keep(&connections, &peer)).collect();
        let mut refused = keep(&connections, &peer);
        assert_eq!(refused.read(&mut [0; 8]).await.unwrap(), 0, "closed at once");
        assert_eq!(connections.kept.lock().count, MAX_KEPT);
    }

    #[tokio::test(start_paused = true)]
    async fn they_are_looked_at_for_as_long_as_there_are_some() {
        let (connections, peer) = (connections(), peer(1, HOUR));
        for _ in 0..2 {
            drop(keep(&connections, &peer));
            let far = keep(&connections, &peer);
            assert!(connections.kept.lock().is_swept);
            sleep(SWEEP_TIME * 2).await;
            assert_eq!(connections.kept.lock().count, 1);
            drop(far);
            sleep(SWEEP_TIME * 2).await;
            assert!(!connections.kept.lock().is_swept);
        }
    }
}
