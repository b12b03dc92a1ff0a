//! Every metric of the program, declared in one place: names, units and bounded labels.
//!
//! Counters and histograms are written where things happen; gauges of pools and backends are read from the published
//! snapshot at scrape time (`admin`), so they cannot drift from it.

mod hedges;
mod labels;
mod process;
mod queue;
mod register;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::pool::{Change, TimeLimit, Trust, TrustReason};
use crate::routing::Detour;
use crate::tokens::NotTokenized;

pub use hedges::{HedgeMetrics, HedgeOutcome};
pub use labels::{BackendLabels, PoolLabels, Reason, RetryCause, ShadowLabels};
use labels::{LimitLabels, ReloadLabels, RequestLabels, RetryLabels, TokenizerLabels, TrustLabels};
pub use queue::{PriorityLabels, QueueMetrics};

/// Upper bounds of time to first token, seconds: from a warm short prompt to a cold very long one.
const TTFT_BUCKETS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0];

/// Upper bounds of a request's whole time, seconds.
const DURATION_BUCKETS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 180.0, 600.0];

/// One finished request, as the metrics see it.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// Pool and, where one was chosen, the last backend.
    pub labels: BackendLabels,
    /// Status sent downstream, or 499 when the client left first.
    pub status: u16,
    /// How it ended.
    pub reason: Reason,
    /// Seconds until the first token was sent downstream; streamed replies only.
    pub ttft_seconds: Option<f64>,
    /// Seconds from the request header to the end.
    pub duration_seconds: f64,
    /// Attempts made at backends.
    pub attempts: u32,
}

/// Tokens of one served request.
#[derive(Debug, Clone, Copy)]
pub struct TokenRecord {
    /// Prompt tokens, estimated at the decision.
    pub prompt: u64,
    /// Cached tokens, predicted at the decision.
    pub predicted_cached: u64,
    /// Prompt and cached tokens that the engine reported.
    pub actual: Option<(u64, u64)>,
}

/// The outcome of tokenizing where nothing was in the way.
const TOKENIZED: &str = "tokenized";

/// The registry and the handles into it. Written by every part of the program, read by scrapes.
#[derive(Debug)]
pub struct Metrics {
    /// Of the requests that wait.
    pub queue: QueueMetrics,
    /// Of second attempts.
    pub hedges: HedgeMetrics,
    registry: parking_lot::RwLock<Registry>,
    /// Apart, as its names have no prefix.
    process: Registry,
    requests: Family<RequestLabels, Counter>,
    retries: Family<RetryLabels, Counter>,
    attempts: Family<BackendLabels, Counter>,
    time_limits: Family<LimitLabels, Counter>,
    aborted: Family<BackendLabels, Counter>,
    drain_requests: Family<BackendLabels, Counter>,
    ttft: Family<PoolLabels, Histogram, fn() -> Histogram>,
    duration: Family<PoolLabels, Histogram, fn() -> Histogram>,
    prompt_tokens: Family<BackendLabels, Counter>,
    predicted_cached: Family<BackendLabels, Counter>,
    reported_prompt: Family<BackendLabels, Counter>,
    reported_cached: Family<BackendLabels, Counter>,
    reported_predicted: Family<BackendLabels, Counter>,
    spills: Family<PoolLabels, Counter>,
    detour: Family<PoolLabels, Counter<f64, AtomicU64>>,
    saved_prefill: Family<PoolLabels, Counter<f64, AtomicU64>>,
    fail_open: Family<PoolLabels, Counter>,
    retries_denied: Family<PoolLabels, Counter>,
    restarts: Family<BackendLabels, Counter>,
    trust_changes: Family<TrustLabels, Counter>,
    tokenized: Family<TokenizerLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
    reload_ok: Gauge,
    upgrades_failed: Counter,
    access_log_dropped: Counter,
    trace_lines: Counter,
    trace_dropped: Counter,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics, registered, at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            queue: QueueMetrics::new(),
            hedges: HedgeMetrics::default(),
            registry: parking_lot::RwLock::new(Registry::with_prefix("warmgate")),
            process: process::registry(),
            requests: Family::default(),
            retries: Family::default(),
            attempts: Family::default(),
            time_limits: Family::default(),
            aborted: Family::default(),
            drain_requests: Family::default(),
            ttft: Family::new_with_constructor(|| Histogram::new(TTFT_BUCKETS)),
            duration: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            prompt_tokens: Family::default(),
            predicted_cached: Family::default(),
            reported_prompt: Family::default(),
            reported_cached: Family::default(),
            reported_predicted: Family::default(),
            spills: Family::default(),
            detour: Family::default(),
            saved_prefill: Family::default(),
            fail_open: Family::default(),
            retries_denied: Family::default(),
            restarts: Family::default(),
            trust_changes: Family::default(),
            tokenized: Family::default(),
            reloads: Family::default(),
            reload_ok: Gauge::default(),
            upgrades_failed: Counter::default(),
            access_log_dropped: Counter::default(),
            trace_lines: Counter::default(),
            trace_dropped: Counter::default(),
        };
        metrics.register_requests();
        metrics.register_tokens();
        metrics.register_operation();
        metrics.queue.register(metrics.registry.get_mut());
        metrics.hedges.register(metrics.registry.get_mut());
        metrics
    }

    /// Adds values that are read at scrape time.
    pub fn add_collector(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    /// Everything in the OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(16 * 1024);
        // Writing to a String fails only if a metric's own encoding does; what is there is still worth serving.
        let encoded = text::encode_registry(&mut out, &self.process);
        if let Err(error) = encoded.and_then(|()| text::encode(&mut out, &self.registry.read())) {
            log::error!("a metric could not be encoded: {error}");
        }
        out
    }

    /// A pool is there: its series start at zero, as a rate needs to see the first event.
    pub fn introduce_pool(&self, pool: &Arc<str>) {
        let labels = PoolLabels { pool: Arc::clone(pool) };
        let _ = (self.ttft.get_or_create(&labels), self.duration.get_or_create(&labels));
        for family in [&self.spills, &self.fail_open, &self.retries_denied] {
            let _ = family.get_or_create(&labels);
        }
        for family in [&self.detour, &self.saved_prefill] {
            let _ = family.get_or_create(&labels);
        }
        let _ = self.tokenized.get_or_create(&TokenizerLabels { pool: Arc::clone(pool), outcome: TOKENIZED });
        self.queue.introduce(pool);
        self.hedges.introduce(pool);
    }

    /// A backend is there: its series start at zero, but for those by status, which are too many.
    pub fn introduce_backend(&self, labels: &BackendLabels) {
        for family in self.backend_counters() {
            let _ = family.get_or_create(labels);
        }
        for cause in RetryCause::ALL {
            let (pool, backend) = (Arc::clone(&labels.pool), Arc::clone(&labels.backend));
            let _ = self.retries.get_or_create(&RetryLabels { pool, backend, cause });
        }
        for limit in TimeLimit::ALL {
            let _ = self.time_limits.get_or_create(&limit_labels(labels, limit));
        }
        for labels in all_trust_labels(labels) {
            let _ = self.trust_changes.get_or_create(&labels);
        }
    }

    /// A request ended.
    pub fn request_ended(&self, record: &RequestRecord) {
        let BackendLabels { pool, backend } = &record.labels;
        let labels = RequestLabels {
            pool: Arc::clone(pool),
            backend: Arc::clone(backend),
            status: record.status,
            reason: record.reason,
        };
        self.requests.get_or_create(&labels).inc();
        let pool = PoolLabels { pool: Arc::clone(pool) };
        self.duration.get_or_create(&pool).observe(record.duration_seconds);
        if let Some(seconds) = record.ttft_seconds {
            self.ttft.get_or_create(&pool).observe(seconds);
        }
        if record.attempts > 0 {
            self.attempts.get_or_create(&record.labels).inc();
        }
    }

    /// A backend's reply ended; what its prompt cost.
    pub fn tokens(&self, labels: &BackendLabels, tokens: TokenRecord) {
        self.prompt_tokens.get_or_create(labels).inc_by(tokens.prompt);
        self.predicted_cached.get_or_create(labels).inc_by(tokens.predicted_cached);
        if let Some((prompt, cached)) = tokens.actual {
            self.reported_prompt.get_or_create(labels).inc_by(prompt);
            self.reported_cached.get_or_create(labels).inc_by(cached);
            self.reported_predicted.get_or_create(labels).inc_by(tokens.predicted_cached);
        }
    }

    /// An attempt failed and another follows.
    pub fn retried(&self, labels: &BackendLabels, cause: RetryCause) {
        self.attempts.get_or_create(labels).inc();
        let labels = RetryLabels { pool: Arc::clone(&labels.pool), backend: Arc::clone(&labels.backend), cause };
        self.retries.get_or_create(&labels).inc();
    }

    /// A limit of time ended an attempt.
    pub fn time_limit_met(&self, labels: &BackendLabels, limit: TimeLimit) {
        self.time_limits.get_or_create(&limit_labels(labels, limit)).inc();
    }

    /// An engine gave an answer up.
    pub fn answer_aborted(&self, labels: &BackendLabels) {
        self.aborted.get_or_create(labels).inc();
    }

    /// A request was sent to a backend that drains.
    pub fn sent_to_draining(&self, labels: &BackendLabels) {
        self.drain_requests.get_or_create(labels).inc();
    }

    /// A retry was not made for want of budget.
    pub fn retry_denied(&self, pool: &Arc<str>) {
        self.retries_denied.get_or_create(&PoolLabels { pool: Arc::clone(pool) }).inc();
    }

    /// A decision gave up matched blocks for a shorter wait.
    pub fn spilled(&self, pool: &Arc<str>) {
        self.spills.get_or_create(&PoolLabels { pool: Arc::clone(pool) }).inc();
    }

    /// A decision was taken: what it paid for locality, and what it got for it.
    pub fn detoured(&self, pool: &Arc<str>, detour: Detour) {
        let labels = PoolLabels { pool: Arc::clone(pool) };
        self.detour.get_or_create(&labels).inc_by(detour.seconds);
        self.saved_prefill.get_or_create(&labels).inc_by(detour.saved_prefill_seconds);
    }

    /// A decision used backends that are excluded.
    pub fn failed_open(&self, pool: &Arc<str>) {
        self.fail_open.get_or_create(&PoolLabels { pool: Arc::clone(pool) }).inc();
    }

    /// An engine restarted.
    pub fn restarted(&self, labels: &BackendLabels) {
        self.restarts.get_or_create(labels).inc();
    }

    /// A pool's tokenizer was asked for a request's token ids.
    pub fn tokenized(&self, pool: &Arc<str>, failure: Option<NotTokenized>) {
        let outcome = failure.map_or(TOKENIZED, NotTokenized::as_str);
        self.tokenized.get_or_create(&TokenizerLabels { pool: Arc::clone(pool), outcome }).inc();
    }

    /// A belief in what a backend holds was lost, or has come back.
    pub fn trust_changed(&self, labels: &BackendLabels, change: Change) {
        self.trust_changes.get_or_create(&trust_labels(labels, change.belief, change.reason)).inc();
    }

    /// A reload was applied, or refused.
    pub fn reloaded(&self, applied: bool) {
        let outcome = if applied { "applied" } else { "refused" };
        self.reloads.get_or_create(&ReloadLabels { outcome }).inc();
        self.reload_ok.set(i64::from(applied));
    }

    /// An upgrade failed; one that succeeds is seen by another process's start.
    pub fn upgrade_failed(&self) {
        self.upgrades_failed.inc();
    }

    /// Access-log lines were dropped.
    pub fn access_log_dropped(&self, lines: u64) {
        self.access_log_dropped.inc_by(lines);
    }

    /// A block-trace line was written.
    pub fn trace_written(&self) {
        self.trace_lines.inc();
    }

    /// A block-trace line was dropped.
    pub fn trace_dropped(&self) {
        self.trace_dropped.inc();
    }

    /// Drops every series of a pool that was removed, those of its backends aside.
    pub fn forget_pool(&self, pool: &Arc<str>) {
        let labels = PoolLabels { pool: Arc::clone(pool) };
        self.ttft.remove(&labels);
        self.duration.remove(&labels);
        for family in [&self.spills, &self.fail_open, &self.retries_denied] {
            family.remove(&labels);
        }
        for family in [&self.detour, &self.saved_prefill] {
            family.remove(&labels);
        }
        for outcome in [TOKENIZED].into_iter().chain(NotTokenized::WORDS) {
            self.tokenized.remove(&TokenizerLabels { pool: Arc::clone(pool), outcome });
        }
        self.queue.forget(pool);
        self.hedges.forget(pool);
        // Of requests for which no backend was chosen.
        self.forget(&BackendLabels { pool: Arc::clone(pool), backend: Arc::default() });
    }

    /// Drops every series of a backend that was removed.
    pub fn forget(&self, labels: &BackendLabels) {
        for family in self.backend_counters() {
            family.remove(labels);
        }
        let (pool, backend) = (&labels.pool, &labels.backend);
        for cause in RetryCause::ALL {
            self.retries.remove(&RetryLabels { pool: Arc::clone(pool), backend: Arc::clone(backend), cause });
        }
        for limit in TimeLimit::ALL {
            self.time_limits.remove(&limit_labels(labels, limit));
        }
        for labels in all_trust_labels(labels) {
            self.trust_changes.remove(&labels);
        }
        for status in 100..600 {
            for reason in Reason::ALL {
                let (pool, backend) = (Arc::clone(pool), Arc::clone(backend));
                self.requests.remove(&RequestLabels { pool, backend, status, reason });
            }
        }
    }

    fn backend_counters(&self) -> [&Family<BackendLabels, Counter>; 9] {
        [
            &self.attempts,
            &self.aborted,
            &self.drain_requests,
            &self.prompt_tokens,
            &self.predicted_cached,
            &self.reported_prompt,
            &self.reported_cached,
            &self.reported_predicted,
            &self.restarts,
        ]
    }
}

fn limit_labels(labels: &BackendLabels, limit: TimeLimit) -> LimitLabels {
    let BackendLabels { pool, backend } = labels.clone();
    LimitLabels { pool, backend, limit: limit.name() }
}

/// Those of every change that there can be.
fn all_trust_labels(labels: &BackendLabels) -> impl Iterator<Item = TrustLabels> {
    let exact = TrustReason::ALL.map(|reason| trust_labels(labels, Trust::Exact, reason));
    let assumed = [TrustReason::Disagrees, TrustReason::Agrees];
    exact.into_iter().chain(assumed.map(|reason| trust_labels(labels, Trust::Assumed, reason)))
}

fn trust_labels(labels: &BackendLabels, belief: Trust, reason: TrustReason) -> TrustLabels {
    let BackendLabels { pool, backend } = labels.clone();
    TrustLabels { pool, backend, belief: belief.name(), reason: reason.name() }
}

#[cfg(test)]
mod tests;
