//! One life of a simulated engine's process: what a restart throws away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;

use super::driver::Driver;
use super::engine::Parameters;
use super::publisher::Feed;

/// The engine and what has been counted about its requests.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) driver: Driver,
    /// 1 for the first process, one more after each restart.
    pub(super) generation: u64,
    /// Seconds since the epoch.
    pub(super) started_at: f64,
    counters: Counters,
    received: Mutex<VecDeque<Received>>,
}

/// Written by the connections' tasks, read by anyone.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    in_flight: AtomicU64,
    served: AtomicU64,
    aborted: AtomicU64,
    rejected: AtomicU64,
    faulted: AtomicU64,
    stalled: AtomicU64,
    bodies: AtomicU64,
    body_bytes: AtomicU64,
}

/// Counts of requests that carry a prompt. `requests` is the sum of `in_flight` and the four ways to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Whose header was read.
    pub requests: u64,
    /// Not ended yet.
    pub in_flight: u64,
    /// Answered to the end.
    pub served: u64,
    /// Given up by the client.
    pub aborted: u64,
    /// Answered with an error for a reason of their own.
    pub rejected: u64,
    /// Ended by a fault that was asked for.
    pub faulted: u64,
    /// In flight, held by a fault without being in the engine.
    pub stalled: u64,
    /// Bodies read to their end.
    pub bodies: u64,
    /// Bytes in them.
    pub body_bytes: u64,
}

/// A request whose body was read to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Received {
    /// With its query.
    pub target: String,
    /// Names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// Length of the body.
    pub body_bytes: u64,
    /// xxh3-64 of the body, 16 hexadecimal digits.
    pub body_xxh3: String,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Served,
    Aborted,
    Rejected,
    Faulted,
}

/// A request in flight. Counts as aborted unless told otherwise.
#[derive(Debug)]
pub(super) struct InFlight {
    process: Arc<Process>,
    outcome: Outcome,
    is_stalled: bool,
}

/// Requests remembered for those who want to see what arrived.
const MAX_RECEIVED: usize = 64;

// === impl Process ===

impl Process {
    pub(super) fn start(parameters: Parameters, generation: u64, feed: Option<Feed>) -> Arc<Self> {
        Arc::new(Self {
            driver: Driver::start(parameters, feed),
            generation,
            started_at: unix_seconds(),
            counters: Counters::default(),
            received: Mutex::default(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.counters.requests.fetch_add(1, Relaxed);
        self.counters.in_flight.fetch_add(1, Relaxed);
        InFlight { process: Arc::clone(self), outcome: Outcome::Aborted, is_stalled: false }
    }

    pub(super) fn record(&self, request: Received) {
        self.counters.bodies.fetch_add(1, Relaxed);
        self.counters.body_bytes.fetch_add(request.body_bytes, Relaxed);
        let mut received = self.received.lock();
        if received.len() >= MAX_RECEIVED {
            received.pop_front();
        }
        received.push_back(request);
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.received.lock().iter().cloned().collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let counters = &self.counters;
        Counts {
            requests: counters.requests.load(Relaxed),
            in_flight: counters.in_flight.load(Relaxed),
            served: counters.served.load(Relaxed),
            aborted: counters.aborted.load(Relaxed),
            rejected: counters.rejected.load(Relaxed),
            faulted: counters.faulted.load(Relaxed),
            stalled: counters.stalled.load(Relaxed),
            bodies: counters.bodies.load(Relaxed),
            body_bytes: counters.body_bytes.load(Relaxed),
        }
    }
}

// === impl InFlight ===

impl InFlight {
    pub(super) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// From now on it hangs.
    pub(super) fn stall(&mut self) {
        self.is_stalled = true;
        self.process.counters.stalled.fetch_add(1, Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let counters = &self.process.counters;
        let ended = match self.outcome {
            Outcome::Served => &counters.served,
            Outcome::Aborted => &counters.aborted,
            Outcome::Rejected => &counters.rejected,
            Outcome::Faulted => &counters.faulted,
        };
        ended.fetch_add(1, Relaxed);
        counters.in_flight.fetch_sub(1, Relaxed);
        counters.stalled.fetch_sub(u64::from(self.is_stalled), Relaxed);
    }
}

/// The wall clock, for what engines say about themselves.
pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
