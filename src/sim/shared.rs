//! What the connections of one simulated engine share, and the faults that concern the engine as a whole.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::fault::{Fault, Faults, Order};
use super::options::EngineOptions;
use super::process::Process;
use super::publisher::Publisher;
use super::tokens::Tokens;

/// Bodies are accounted in pieces of this size.
pub(super) const PAGE_BYTES: usize = 4096;

/// Whether connections are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) is_open: bool,
    /// Connections made before the last restart are dead.
    pub(super) restarts: u64,
    /// Counts closings, so that the end of an earlier one does not open a later one.
    closings: u64,
}

/// The engine behind the connections.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: EngineOptions,
    pub(super) tokens: Tokens,
    /// One permit for each page of body that may still be held.
    pub(super) pages: Arc<Semaphore>,
    /// Written by restarts alone.
    process: ArcSwap<Process>,
    gate: watch::Sender<Gate>,
    /// Of KV events, if there are any.
    publisher: Option<Arc<Publisher>>,
    conditions: Mutex<Conditions>,
}

#[derive(Debug)]
struct Conditions {
    faults: Faults,
    slowdown: f64,
    is_frozen: bool,
    /// It was told to stop, as by [`Fault::Sigterm`].
    is_stopping: bool,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(options: EngineOptions, tokens: Tokens, publisher: Option<Arc<Publisher>>) -> Arc<Self> {
        let pages = (options.max_buffered_bytes / PAGE_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            pages: Arc::new(Semaphore::new(pages)),
            process: ArcSwap::new(Process::start(options.parameters, 1, publisher.as_ref().map(Publisher::feed))),
            gate: watch::Sender::new(Gate { is_open: true, restarts: 0, closings: 0 }),
            conditions: Mutex::new(Conditions {
                faults: Faults::default(),
                slowdown: 1.0,
                is_frozen: false,
                is_stopping: false,
            }),
            publisher,
            tokens,
            options,
        })
    }

    pub(super) fn publisher(&self) -> Option<&Arc<Publisher>> {
        self.publisher.as_ref()
    }

    pub(super) fn process(&self) -> Arc<Process> {
        self.process.load_full()
    }

    pub(super) fn gate(&self) -> watch::Receiver<Gate> {
        self.gate.subscribe()
    }

    /// Brings a fault about. The error is for people.
    pub(super) fn inject(self: &Arc<Self>, order: Order) -> Result<(), String> {
        match order.fault {
            Fault::Refuse { for_ms } => self.close(0, for_ms.map(Duration::from_millis)),
            Fault::Restart { down_ms } => self.restart(Duration::from_millis(down_ms)),
            Fault::Slow { factor } => {
                self.conditions.lock().slowdown = factor;
                self.process().driver.set_slowdown(factor);
            }
            Fault::Freeze => {
                self.conditions.lock().is_frozen = true;
                self.process().driver.set_frozen(true);
            }
            Fault::Sigterm => {
                self.conditions.lock().is_stopping = true;
                self.process().driver.set_frozen(true);
            }
            Fault::ClearCache => self.process().driver.clear_cache(),
            Fault::RestartCache => self.process().driver.restart_cache(),
            _ if order.fault.is_of_kv_events() => match &self.publisher {
                Some(publisher) => publisher.inject(Some(order)),
                None => return Err(String::from("the engine publishes no KV events: start it with --kv-events")),
            },
            _ => {
                if !self.conditions.lock().faults.add(order) {
                    return Err(String::from("too many faults are waiting for their turn"));
                }
            }
        }
        Ok(())
    }

    /// Ends every fault. Requests that hang because of one go on hanging, except after a freeze or a SIGTERM.
    pub(super) fn clear(&self) {
        {
            let mut conditions = self.conditions.lock();
            conditions.faults.clear();
            (conditions.slowdown, conditions.is_frozen, conditions.is_stopping) = (1.0, false, false);
        }
        if let Some(publisher) = &self.publisher {
            publisher.inject(None);
        }
        self.process().driver.set_slowdown(1.0);
        self.process().driver.set_frozen(false);
        self.gate.send_modify(|gate| gate.is_open = true);
    }

    /// Whether it was told to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.conditions.lock().is_stopping
    }

    pub(super) fn strike<T>(&self, choose: impl FnOnce(&mut Faults) -> T) -> T {
        choose(&mut self.conditions.lock().faults)
    }

    /// The faults in force.
    pub(super) fn faults(&self) -> Vec<Order> {
        let conditions = self.conditions.lock();
        let mut list = conditions.faults.list();
        list.extend(self.publisher.as_ref().and_then(|publisher| publisher.fault()));
        if conditions.slowdown != 1.0 {
            list.push(Order { fault: Fault::Slow { factor: conditions.slowdown }, count: None });
        }
        if conditions.is_frozen {
            list.push(Order { fault: Fault::Freeze, count: None });
        }
        if conditions.is_stopping {
            list.push(Order { fault: Fault::Sigterm, count: None });
        }
        if !self.gate.borrow().is_open {
            list.push(Order { fault: Fault::Refuse { for_ms: None }, count: None });
        }
        list
    }

    fn restart(self: &Arc<Self>, down: Duration) {
        let feed = self.publisher.as_ref().map(Publisher::feed);
        let process = Process::start(self.options.parameters, self.process().generation + 1, feed);
        // A new process is not frozen, but no faster than the old one.
        let mut conditions = self.conditions.lock();
        (conditions.is_frozen, conditions.is_stopping) = (false, false);
        process.driver.set_slowdown(conditions.slowdown);
        drop(conditions);
        self.process.store(process);
        if down.is_zero() {
            self.gate.send_modify(|gate| gate.restarts += 1);
        } else {
            self.close(1, Some(down));
        }
    }

    /// Refuses connections, for a time or until cleared; with `restarts` also ends those there are.
    fn close(self: &Arc<Self>, restarts: u64, duration: Option<Duration>) {
        self.gate.send_modify(|gate| {
            *gate = Gate { is_open: false, restarts: gate.restarts + restarts, closings: gate.closings + 1 };
        });
        let closing = self.gate.borrow().closings;
        let Some(duration) = duration else { return };
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            if let Some(shared) = shared.upgrade() {
                shared.gate.send_if_modified(|gate| {
                    let is_ours = !gate.is_open && gate.closings == closing;
                    gate.is_open |= is_ours;
                    is_ours
                });
            }
        });
    }
}
