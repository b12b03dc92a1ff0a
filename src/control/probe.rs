//! The tasks that ask one backend: is it there, what does its engine say, which models does it serve, how many requests at once.
//!
//! Each backend has its own, with its own timers, so that a slow or dead one delays nobody else; and the scrape has a
//! task of its own beside the probe's, so that a hanging `/metrics` says nothing of health. They only report; the
//! control loop decides. The probe is a `HealthCheck` of Pingora's; its own `HttpHealthCheck` would read the system's
//! certificates once a backend (see CONTRIBUTING.md for what else of it is not used).

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr as PeerAddr;
use pingora_core::{Error, ErrorType, Result};
use pingora_load_balancing::Backend as Target;
use pingora_load_balancing::health_check::HealthCheck;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::discovery;
use super::engine::EngineSample;
use super::event_sources::{self, RankSource, discover};
use super::server_info;
use crate::client::{Client, ClientError, Connections, distrust, is_ours};
use crate::config;
use crate::kv_events::Source;
use crate::pool::{ModelEntry, Origin};
use crate::time::{self, Moment};
use crate::tls::Upstream;

/// How often a backend is probed until its first good probe, if `interval` is longer: it should serve soon after it can.
const STARTING_INTERVAL: Duration = Duration::from_millis(500);

/// How often a backend is asked what changes with its engine only: which models it serves, how many requests it runs.
const ASK_INTERVAL: Duration = Duration::from_secs(30);

/// How long that may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a backend is asked where it publishes KV events, once it has said so.
const EVENTS_INTERVAL: Duration = Duration::from_secs(30);

/// Which backend a report is about: its number in the control loop's table, never given twice.
pub(super) type BackendId = u64;

/// What a task found out.
#[derive(Debug)]
pub(super) enum Finding {
    /// Where the backend is reached now; none if its name has no address.
    Address(Option<SocketAddr>),
    /// A good probe.
    Alive,
    /// A bad probe.
    Dead {
        /// Whether nobody listened there: its engine is down.
        is_refused: bool,
        /// Whether one side does not trust the other's certificate, which waiting does not mend.
        is_distrusted: bool,
        /// What went wrong.
        reason: String,
    },
    /// No probe, for a reason that is not the backend's.
    NotProbed(String),
    /// A scrape.
    Sample(EngineSample, Moment),
    /// A scrape that failed.
    NoSample(String),
    /// The models served.
    Models(Arc<[ModelEntry]>),
    /// How many requests the engine runs at once; none if it does not say so any more.
    MaxRunning(Option<NonZeroU32>),
    /// Where the engine publishes KV events, or why that is not known.
    EventSources(Result<Vec<Source>, String>),
}

/// A finding and whom it is about.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) backend: BackendId,
    pub(super) finding: Finding,
}

/// What the tasks need to know of a backend.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) id: BackendId,
    pub(super) connections: Connections,
    pub(super) origin: Origin,
    /// How it is spoken to, if over TLS.
    pub(super) tls: Option<Arc<Upstream>>,
    pub(super) health: config::Health,
    pub(super) metrics: config::Metrics,
    /// What the backend wants to hear from us.
    pub(super) api_key: Option<config::Secret>,
    /// The data-parallel rank that it is, if its engine has several.
    pub(super) rank: Option<u32>,
    /// Whether its engine knows how to say how many requests it runs at once.
    pub(super) tells_max_running: bool,
    /// Whether its engine is to say where it publishes KV events.
    pub(super) is_asked_for_events: bool,
}

impl Watched {
    fn client(&self, limit: Duration) -> Client {
        let client = Client::new(Arc::clone(&self.connections), self.origin.clone(), limit);
        client.with_tls(self.tls.clone()).with_key(self.api_key.as_ref())
    }

    fn read(&self, metrics: &[u8]) -> EngineSample {
        let text = String::from_utf8_lossy(metrics);
        self.rank.map_or_else(|| EngineSample::read(&text), |rank| EngineSample::read_rank(&text, rank))
    }
}

/// The active probe: a GET that must succeed, over a new connection.
struct HttpGet {
    client: Client,
    path: String,
    health: config::Health,
}

/// A backend's tasks; dropping it ends them.
#[derive(Debug)]
pub(super) struct Tasks(Vec<AbortHandle>);

// === impl Tasks ===

impl Tasks {
    /// Starts the tasks of one backend.
    pub(super) fn start(watched: &Watched, reports: &mpsc::Sender<Report>) -> Self {
        let (address, addresses) = watch::channel(None);
        let mut tasks = vec![tokio::spawn(probe(watched.clone(), address, reports.clone())).abort_handle()];
        let mut ask = |path, read| {
            let asking = ask_at(path, read, watched.clone(), addresses.clone(), reports.clone());
            tasks.push(tokio::spawn(asking).abort_handle());
        };
        ask("/v1/models", |body, _| Finding::Models(ModelEntry::read_list(body)));
        if watched.tells_max_running {
            ask(server_info::PATH, |body, rank| Finding::MaxRunning(server_info::max_running(body, rank)));
        }
        if watched.metrics.enabled {
            tasks.push(tokio::spawn(scrape(watched.clone(), addresses.clone(), reports.clone())).abort_handle());
        }
        if watched.is_asked_for_events {
            tasks.push(tokio::spawn(find_events(watched.clone(), addresses, reports.clone())).abort_handle());
        }
        Self(tasks)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

// === impl HttpGet ===

impl HttpGet {
    fn new(watched: &Watched) -> Self {
        let health = watched.health.clone();
        Self { client: watched.client(health.timeout).connecting_anew(), path: health.path.clone(), health }
    }
}

#[async_trait]
impl HealthCheck for HttpGet {
    async fn check(&self, target: &Target) -> Result<()> {
        let Some(&address) = target.addr.as_inet() else {
            return Error::e_explain(ErrorType::SocketError, "not an internet address");
        };
        match self.client.get(address, &self.path).await {
            Ok(_) => Ok(()),
            Err(ClientError::Connection(error)) => Err(error),
            Err(ClientError::Status(status)) => Error::e_explain(ErrorType::HTTPStatus(status), "not a success"),
            Err(error) => Error::e_explain(ErrorType::ReadError, error.to_string()),
        }
    }

    fn health_threshold(&self, success: bool) -> usize {
        let threshold = if success { self.health.rise } else { self.health.fall };
        threshold.get() as usize
    }
}

// === the tasks; each ends when the control loop does ===

async fn probe(watched: Watched, address: watch::Sender<Option<SocketAddr>>, reports: mpsc::Sender<Report>) {
    let check = HttpGet::new(&watched);
    let mut was_alive = false;
    loop {
        let resolving = timeout(watched.health.timeout, discovery::resolve(&watched.origin));
        let resolved = resolving.await.unwrap_or_default();
        if address.send_if_modified(|known| std::mem::replace(known, resolved) != resolved) {
            send(&reports, watched.id, Finding::Address(resolved)).await;
        }
        let finding = match resolved {
            Some(resolved) => check_once(&check, resolved, watched.health.timeout).await,
            None => dead(format!("{} has no address", watched.origin.host)),
        };
        was_alive |= matches!(finding, Finding::Alive);
        if !send(&reports, watched.id, finding).await {
            return;
        }
        let interval = watched.health.interval;
        sleep(jittered(if was_alive { interval } else { interval.min(STARTING_INTERVAL) })).await;
    }
}

async fn check_once(check: &HttpGet, address: SocketAddr, limit: Duration) -> Finding {
    let target = Target { addr: PeerAddr::Inet(address), weight: 1, ext: http::Extensions::new() };
    match timeout(limit, check.check(&target)).await {
        Ok(Ok(())) => Finding::Alive,
        // Our own want of a socket (no file descriptor is left) says nothing of the backend.
        Ok(Err(error)) if is_ours(&error) => Finding::NotProbed(describe(&error)),
        Ok(Err(error)) => {
            let is_refused = *error.etype() == ErrorType::ConnectRefused;
            Finding::Dead { is_refused, is_distrusted: distrust(&error).is_some(), reason: describe(&error) }
        }
        Err(_) => dead(format!("no reply within {limit:?}")),
    }
}

/// A bad probe that says nothing more.
fn dead(reason: String) -> Finding {
    Finding::Dead { is_refused: false, is_distrusted: false, reason }
}

async fn scrape(watched: Watched, mut addresses: watch::Receiver<Option<SocketAddr>>, reports: mpsc::Sender<Report>) {
    let client = watched.client(watched.metrics.timeout);
    loop {
        let Some(address) = known(&mut addresses).await else { return };
        let finding = match client.get(address, &watched.metrics.path).await {
            Ok(body) => Finding::Sample(watched.read(&body), time::now()),
            Err(error) => Finding::NoSample(error.to_string()),
        };
        if !send(&reports, watched.id, finding).await {
            return;
        }
        sleep(jittered(watched.metrics.interval)).await;
    }
}

/// Asks at `path`, again and again, and reports what `read` makes of it for the backend's rank.
async fn ask_at(
    path: &'static str,
    read: fn(&[u8], Option<u32>) -> Finding,
    watched: Watched,
    mut addresses: watch::Receiver<Option<SocketAddr>>,
    reports: mpsc::Sender<Report>,
) {
    let client = watched.client(ASK_TIMEOUT);
    let mut wait = STARTING_INTERVAL;
    loop {
        let Some(address) = known(&mut addresses).await else { return };
        match client.get(address, path).await {
            Ok(body) => {
                wait = ASK_INTERVAL;
                if !send(&reports, watched.id, read(&body, watched.rank)).await {
                    return;
                }
            }
            // Not there yet, or never: asked less and less often.
            Err(_) => wait = (wait * 2).min(ASK_INTERVAL),
        }
        sleep(jittered(wait)).await;
    }
}

/// Asks where KV events are published, again and again: an engine that starts anew may publish elsewhere.
async fn find_events(
    watched: Watched,
    mut addresses: watch::Receiver<Option<SocketAddr>>,
    reports: mpsc::Sender<Report>,
) {
    let mut wait = STARTING_INTERVAL;
    loop {
        let Some(address) = known(&mut addresses).await else { return };
        let asked = watched.client(event_sources::LIMIT);
        let found = match discover(&asked, &watched.origin, address, watched.api_key.is_some()).await {
            Ok(discovered) => sources_of(discovered, watched.rank),
            Err(error) => Err(error.to_string()),
        };
        wait = if found.is_ok() { EVENTS_INTERVAL } else { (wait * 2).min(EVENTS_INTERVAL) };
        if !send(&reports, watched.id, Finding::EventSources(found)).await {
            return;
        }
        sleep(jittered(wait)).await;
    }
}

/// The sources of a backend: all that its engine has, or those of the rank that it stands for.
fn sources_of(discovered: Vec<RankSource>, rank: Option<u32>) -> Result<Vec<Source>, String> {
    let ranks = discovered.into_iter();
    let sources: Vec<_> = ranks.filter(|of| rank.is_none_or(|rank| rank == of.rank)).map(|of| of.source).collect();
    match rank {
        Some(rank) if sources.is_empty() => {
            Err(format!("the engine names no event source of rank {rank}: data_parallel_ranks is too high"))
        }
        _ => Ok(sources),
    }
}

/// Waits until the backend has an address; none when the probing task has ended.
async fn known(addresses: &mut watch::Receiver<Option<SocketAddr>>) -> Option<SocketAddr> {
    addresses.wait_for(Option::is_some).await.ok().and_then(|address| *address)
}

/// Whether anyone still listens.
async fn send(reports: &mpsc::Sender<Report>, backend: BackendId, finding: Finding) -> bool {
    reports.send(Report { backend, finding }).await.is_ok()
}

fn describe(error: &Error) -> String {
    if let Some(reason) = distrust(error) {
        return reason;
    }
    match (error.etype(), &error.context) {
        (ErrorType::HTTPStatus(status), _) => format!("status {status}"),
        (ErrorType::ReadError, Some(context)) => context.as_str().to_owned(),
        (other, _) => other.as_str().to_owned(),
    }
}

/// Within a tenth of `interval`, so that the tasks of many backends do not move in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}
