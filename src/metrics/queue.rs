//! The metrics of pools' queues; how many wait at present is read at scrape time (`admin`).

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::PoolLabels;
use crate::queue::{Priority, Refusal};

/// Upper bounds of a wait, seconds.
const WAIT_BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 120.0];

/// Upper bounds of how many go before a request when it begins to wait.
const AHEAD_BUCKETS: [f64; 10] = [0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];

/// Identifies the series of a pool's requests of one priority.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PriorityLabels {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The priority's name.
    pub priority: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    pool: Arc<str>,
    priority: &'static str,
    reason: &'static str,
}

/// What is counted of those that wait, or are not let.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    wait: Family<PriorityLabels, Histogram, fn() -> Histogram>,
    ahead: Family<PoolLabels, Histogram, fn() -> Histogram>,
    refusals: Family<RefusalLabels, Counter>,
    deferral: Family<PoolLabels, Histogram, fn() -> Histogram>,
}

// === impl QueueMetrics ===

impl QueueMetrics {
    pub(super) fn new() -> Self {
        Self {
            wait: Family::new_with_constructor(|| Histogram::new(WAIT_BUCKETS)),
            ahead: Family::new_with_constructor(|| Histogram::new(AHEAD_BUCKETS)),
            refusals: Family::default(),
            deferral: Family::new_with_constructor(|| Histogram::new(WAIT_BUCKETS)),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "queue_wait_seconds",
            "Time that requests waited because every backend was full, however it ended",
            self.wait.clone(),
        );
        registry.register(
            "queue_requests_ahead",
            "Requests that were to go before one when it began to wait",
            self.ahead.clone(),
        );
        registry.register(
            "queue_refusals",
            "Requests refused because every backend was full, by why they did not wait or no longer",
            self.refusals.clone(),
        );
        registry.register(
            "deferral_seconds",
            "Time that requests waited because their prefill was long and the backends were busy",
            self.deferral.clone(),
        );
    }

    pub(super) fn introduce(&self, pool: &Arc<str>) {
        let _ = self.ahead.get_or_create(&PoolLabels { pool: Arc::clone(pool) });
        let _ = self.deferral.get_or_create(&PoolLabels { pool: Arc::clone(pool) });
        for priority in Priority::ALL {
            let _ = self.wait.get_or_create(&priority_labels(pool, priority));
            for reason in Refusal::ALL {
                let _ = self.refusals.get_or_create(&refusal_labels(pool, priority, reason));
            }
        }
    }

    pub(super) fn forget(&self, pool: &Arc<str>) {
        self.ahead.remove(&PoolLabels { pool: Arc::clone(pool) });
        self.deferral.remove(&PoolLabels { pool: Arc::clone(pool) });
        for priority in Priority::ALL {
            self.wait.remove(&priority_labels(pool, priority));
            for reason in Refusal::ALL {
                self.refusals.remove(&refusal_labels(pool, priority, reason));
            }
        }
    }

    /// A request began to wait behind so many.
    pub fn entered(&self, pool: &Arc<str>, ahead: usize) {
        self.ahead.get_or_create(&PoolLabels { pool: Arc::clone(pool) }).observe(ahead as f64);
    }

    /// A request has waited.
    pub fn waited(&self, pool: &Arc<str>, priority: Priority, time: Duration) {
        self.wait.get_or_create(&priority_labels(pool, priority)).observe(time.as_secs_f64());
    }

    /// A request was deferred for so long.
    pub fn deferred(&self, pool: &Arc<str>, time: Duration) {
        self.deferral.get_or_create(&PoolLabels { pool: Arc::clone(pool) }).observe(time.as_secs_f64());
    }

    /// A request was refused.
    pub fn refused(&self, pool: &Arc<str>, priority: Priority, reason: Refusal) {
        self.refusals.get_or_create(&refusal_labels(pool, priority, reason)).inc();
    }
}

fn priority_labels(pool: &Arc<str>, priority: Priority) -> PriorityLabels {
    PriorityLabels { pool: Arc::clone(pool), priority: priority.name() }
}

fn refusal_labels(pool: &Arc<str>, priority: Priority, reason: Refusal) -> RefusalLabels {
    RefusalLabels { pool: Arc::clone(pool), priority: priority.name(), reason: reason.name() }
}
