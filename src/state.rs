//! What the data path, the control loop and the admin listener share.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::access_log::{self, AccessLog};
use crate::auth::Callers;
use crate::budget::ByteBudget;
use crate::config::{self, Config};
use crate::connections::Connections;
use crate::downstream::Faults;
use crate::lifecycle::Lifecycle;
use crate::locality::{ExactIndex, LocalityIndex};
use crate::logging;
use crate::metrics::{BackendLabels, Metrics};
use crate::pool::{Change, Snapshot, TrustReason};
use crate::responses::ResponseOwners;
use crate::shadow::{ShadowMemory, Shadows};
use crate::trace::{self, Recorder};

/// The shadows may have one part in so many of what the real index has, on top of it. Three policies keep a mark for every
/// eighth block, or fewer, with places to spare: 3 to 6 bytes for each block of an engine's cache at most, by policy.
const SHADOW_PART: u64 = 4;

/// One process's shared state. Each field says who writes it; everyone reads.
#[derive(Debug)]
pub struct State {
    /// The view that decisions read. Written by the control loop alone, published whole.
    pub snapshot: ArcSwap<Snapshot>,
    /// The configuration in force. Written by the control loop alone, with the snapshot that follows from it.
    pub config: ArcSwap<Config>,
    /// Who may call. Written by the control loop alone, with the configuration that it follows from.
    pub callers: ArcSwap<Callers>,
    /// What is believed to be cached where. Written by requests (their own blocks) and by the control loop (tenants).
    pub index: Arc<LocalityIndex>,
    /// What engines say is cached where. Written by the tasks that follow their KV events.
    pub events: Arc<ExactIndex>,
    /// What other policies would have got. Replaced by the control loop when pools change, fed by requests.
    pub shadows: ArcSwap<Shadows>,
    /// Room for what the shadows believe to be cached where. Written by requests and by the control loop, through them.
    pub shadow_memory: Arc<ShadowMemory>,
    /// Which backend made a stored response. Written by requests.
    pub responses: ResponseOwners,
    /// The connections of clients. Written by the listeners.
    pub connections: Arc<Connections>,
    /// Messages of clients that were refused before they were requests. Written by connections.
    pub faults: Faults,
    /// Room for request bodies. Written by requests.
    pub bodies: ByteBudget,
    /// Written by all.
    pub metrics: Arc<Metrics>,
    /// Written by requests (their count) and the server (the drain).
    pub lifecycle: Arc<Lifecycle>,
    /// Where requests write their line; replaced by a reload that names another place.
    pub access_log: ArcSwap<AccessLog>,
    /// Where requests write their line of the block trace; replaced by a reload that changes it.
    pub recorder: ArcSwap<Recorder>,
}

/// A file of [`config::Logging`] that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the {what} cannot be opened")]
pub struct LogError {
    /// Which.
    pub what: &'static str,
    /// Why.
    pub source: io::Error,
}

// === impl State ===

impl State {
    /// The state at the start of a process with this configuration: no backend is known yet.
    ///
    /// # Errors
    /// When the access log or the block trace cannot be opened.
    pub fn new(config: Config) -> Result<Self, LogError> {
        let metrics = Arc::new(Metrics::new());
        let access_log = open_access_log(&config.logging, &metrics)?;
        let recorder = open_trace(&config.logging, &Recorder::off(Arc::clone(&metrics)))?;
        let callers = Callers::new(&config.auth);
        Ok(Self {
            snapshot: ArcSwap::default(),
            index: Arc::new(LocalityIndex::new(bytes(config.locality.max_bytes), secret())),
            events: Arc::new(ExactIndex::new(bytes(config.locality.max_event_bytes), secret())),
            shadows: ArcSwap::default(),
            shadow_memory: Arc::new(ShadowMemory::new(bytes(config.locality.max_bytes / SHADOW_PART), secret())),
            responses: ResponseOwners::default(),
            connections: Arc::default(),
            faults: Faults::default(),
            bodies: ByteBudget::new(bytes(config.limits.max_buffered_bytes)),
            metrics,
            lifecycle: Arc::default(),
            access_log: ArcSwap::from_pointee(access_log),
            recorder: ArcSwap::from_pointee(recorder),
            callers: ArcSwap::from_pointee(callers),
            config: ArcSwap::from_pointee(config),
        })
    }

    /// Takes over log settings. A file of the access log is opened anew even if it is the same: it may have been moved
    /// aside. The block trace rotates its files itself, and goes on if its settings are the same.
    ///
    /// # Errors
    /// When the access log or the block trace cannot be opened; nothing has changed then.
    pub fn set_logging(&self, old: &config::Logging, new: &config::Logging) -> Result<(), LogError> {
        let is_log_new = old.access_log != new.access_log || matches!(new.access_log, config::AccessLog::File(_));
        let access_log = is_log_new.then(|| open_access_log(new, &self.metrics)).transpose()?;
        let is_trace_new = old.block_trace != new.block_trace;
        let recorder = is_trace_new.then(|| open_trace(new, &self.recorder.load())).transpose()?;
        if let Some(opened) = access_log {
            self.access_log.store(Arc::new(opened));
        }
        if let Some(opened) = recorder {
            self.recorder.store(Arc::new(opened));
        }
        if old.level != new.level {
            logging::set_level(new.level);
        }
        Ok(())
    }

    /// Waits until the lines of requests are written, for a few seconds at most: for the end of the process. Blocks.
    pub fn flush_logs(&self) {
        self.access_log.load().flush();
        self.recorder.load().flush();
    }

    /// Counts and logs that trust in a backend has changed.
    pub fn trust_changed(&self, labels: &BackendLabels, changes: &[Change]) {
        for change in changes {
            self.metrics.trust_changed(labels, *change);
            let (pool, backend, belief) = (&labels.pool, &labels.backend, change.belief.name());
            match change.reason {
                TrustReason::Disagrees => log::warn!(
                    "backend {backend} of pool {pool}: {belief} locality is no longer trusted: the cached tokens that the \
                     engine reports are not those that were predicted"
                ),
                TrustReason::Silent => log::warn!(
                    "backend {backend} of pool {pool}: {belief} locality is no longer trusted: many requests were \
                     answered, and no KV event came; does the engine publish them?"
                ),
                TrustReason::Agrees => log::info!(
                    "backend {backend} of pool {pool}: {belief} locality is trusted again: predictions come true"
                ),
                TrustReason::Heard => {
                    log::info!("backend {backend} of pool {pool}: {belief} locality is trusted again: KV events come")
                }
            }
        }
    }

    /// Takes over changed callers. Those that stay keep what they have used.
    pub fn set_callers(&self, auth: &config::Auth) {
        self.callers.store(Arc::new(self.callers.load().next(auth)));
    }

    /// Takes over changed bounds of what is shared.
    pub fn set_bounds(&self, config: &Config) {
        self.bodies.resize(bytes(config.limits.max_buffered_bytes));
    }
}

fn open_access_log(logging: &config::Logging, metrics: &Arc<Metrics>) -> Result<AccessLog, LogError> {
    let target = match &logging.access_log {
        config::AccessLog::Off => access_log::Target::Off,
        config::AccessLog::Stdout => access_log::Target::Stdout,
        config::AccessLog::Stderr => access_log::Target::Stderr,
        config::AccessLog::File(path) => access_log::Target::File(path.clone()),
    };
    let named = |source| LogError { what: "access log", source };
    AccessLog::open(&target, Arc::clone(metrics)).map_err(named)
}

fn open_trace(logging: &config::Logging, before: &Recorder) -> Result<Recorder, LogError> {
    let target = logging.block_trace.as_ref().map(|trace| {
        let config::BlockTrace { file, max_bytes, files } = trace.clone();
        trace::Target { file, max_bytes, files }
    });
    before.next(target.as_ref()).map_err(|source| LogError { what: "block trace", source })
}

/// A number that nobody can guess: the standard library's keys come from the system. Not `fastrand`, which is seeded by the
/// time, and whose numbers clients see as request ids.
fn secret() -> u64 {
    RandomState::new().hash_one(())
}

/// As much as this machine can address.
fn bytes(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
