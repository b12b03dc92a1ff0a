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
            None => Ok((Box::new(Wire::new(self.connector.new_stream(peer).await?)), false)),
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
