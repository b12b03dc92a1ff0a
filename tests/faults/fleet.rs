//! Simulated engines, each behind a [`Tap`], and the real program before them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};
use warmgate::sim::engine::{Parameters, Timing};
use warmgate::sim::{EngineOptions, Fault, SimEngine};

use crate::common_control::client::{Reply, ask, get};
use crate::common_control::engine::Engine;
use crate::common_control::open_metrics::OpenMetrics;
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, eventually};
use crate::ledger::Ledger;
use crate::load::{Habits, Load, Tally};
use crate::service::Service;
use crate::tap::{Tap, Weather};

/// Held by the test that loads the machine: two at a time would be each other's fault.
static TURN: Mutex<()> = Mutex::const_new(());

/// How often the proxy probes.
pub(crate) const PROBE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// What must be at zero when no client is there: gauges by the start of their series.
const GAUGES: [&str; 7] = [
    "warmgate_requests_in_service",
    "warmgate_connections",
    "warmgate_buffered_body_bytes",
    "warmgate_in_flight_requests",
    "warmgate_decoding_requests",
    "warmgate_pending_prefill_tokens",
    "warmgate_queued_requests",
];

/// What stands before a request's id in a line of the access log.
const REQUEST_ID: &str = "\"request_id\":\"";

/// An engine and the way to it.
pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) engine: SimEngine,
    pub(crate) tap: Tap,
}

/// A running fleet. Only one is loaded at a time.
pub(crate) struct Fleet {
    pub(crate) units: Vec<Unit>,
    pub(crate) proxy: Service,
    pub(crate) settings: Settings,
    ledger: Arc<Ledger>,
    scratch: Scratch,
    file: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

// === impl Unit ===

impl Unit {
    fn start(number: usize, ledger: &Arc<Ledger>) -> Self {
        let name = format!("engine-{number}");
        let defaults = EngineOptions::default();
        let parameters = Parameters { timing: Timing::from_rates(20_000.0, 250.0), ..defaults.parameters };
        let options = EngineOptions { name: name.clone(), parameters, seed: number as u64, ..defaults };
        let engine = SimEngine::start(options).unwrap();
        let tap = Tap::open(&name, engine.address(), Arc::clone(ledger));
        Self { name, engine, tap }
    }

    /// Kills it: what it had in flight and in its cache is gone, and nobody listens.
    pub(crate) async fn kill(&self) {
        self.tap.stop().await;
        self.engine.inject(Fault::Restart { down_ms: 0 }, Some(1)).unwrap();
    }

    /// Ends whatever was done to it.
    pub(crate) fn heal(&self) {
        self.engine.clear_faults();
        self.tap.weather(Weather::Fair);
        self.tap.start();
    }

    /// A new process that serves, whatever became of the one before.
    pub(crate) async fn renew(&self) {
        self.kill().await;
        self.heal();
    }
}

// === impl Fleet ===

impl Fleet {
    /// `size` engines behind a proxy that is ready, with quick limits; `change` can set others.
    pub(crate) async fn start(size: usize, change: impl FnOnce(&mut Settings)) -> Self {
        let turn = TURN.lock().await;
        let ledger = Arc::new(Ledger::default());
        let units: Vec<Unit> = (0..size).map(|number| Unit::start(number, &ledger)).collect();
        let mut settings = Settings {
            backends: units.iter().map(|unit| (unit.name.clone(), unit.tap.address())).collect(),
            retry: "{max_attempts: 3, budget: 0.2}".into(),
            health: "{interval: 500ms, timeout: 1s, rise: 1, fall: 2}".into(),
            ejection: "{failures: 5, base: 500ms, max: 2s, stuck_after: 5s}".into(),
            timeouts: "{connect: 500ms, first_token: 3s, between_tokens: 2s, read: 4s, write: 2s}".into(),
            hold_header: true,
            ..Settings::scraped("vllm", std::iter::empty::<&Engine>())
        };
        settings.metrics = "{interval: 500ms, timeout: 1s, stale_after: 3s}".into();
        let scratch = Scratch::new();
        settings.logging = format!("{{access_log: {}}}", scratch.path().join("access.log").display());
        change(&mut settings);
        let file = scratch.file("warmgate.yaml", settings.to_string());
        let proxy = Service::start(&file).await;
        let fleet = Self { units, proxy, settings, ledger, scratch, file, _turn: turn };
        fleet.until_all_serve().await;
        fleet
    }

    pub(crate) fn load(&self, habits: Habits) -> Load {
        Load::start(self.proxy.address(), &self.ledger, habits)
    }

    pub(crate) async fn until_all_serve(&self) {
        eventually("every backend serves", async || self.up().await == self.units.len()).await;
    }

    /// Backends that serve.
    pub(crate) async fn up(&self) -> usize {
        let page = self.metrics().await;
        page.series.iter().filter(|(name, value)| name.starts_with("warmgate_backend_up{") && **value == 1.0).count()
    }

    pub(crate) async fn metrics(&self) -> OpenMetrics {
        OpenMetrics::read(&get(self.proxy.admin(), "/metrics").await.body).unwrap()
    }

    /// Puts a configuration with these backends in force.
    pub(crate) async fn reload(&self, keeps: impl Fn(usize) -> bool) -> Reply {
        let all = self.settings.backends.iter().enumerate();
        let backends = all.filter(|(number, _)| keeps(*number)).map(|(_, backend)| backend.clone()).collect();
        self.apply(&Settings { backends, ..self.settings.clone() }).await
    }

    /// Tries to put these settings in force.
    pub(crate) async fn apply(&self, settings: &Settings) -> Reply {
        let next = self.scratch.file("next", settings.to_string());
        std::fs::rename(next, &self.file).unwrap();
        ask(self.proxy.admin(), "POST", "/reload", "").await
    }

    /// With every client gone: nothing is in flight, nothing is held, and each request was counted once.
    pub(crate) async fn check_rest(&self, tallies: &[&Tally]) {
        for gauge in GAUGES {
            eventually(&format!("{gauge} is 0 at rest"), async || {
                let page = self.metrics().await;
                page.series.iter().filter(|(name, _)| is_of(name, gauge)).all(|(_, value)| *value == 0.0)
            })
            .await;
        }
        let sent: u64 = tallies.iter().map(|tally| tally.sent()).sum();
        eventually("the access log has every request once", async || self.logged() == (sent, sent)).await;
        for tally in tallies {
            let endings = tally.endings();
            assert_eq!(endings.wrong_count, 0, "{:#?}", endings.wrong);
        }
        assert_eq!(self.proxy.first.logged("panicked"), 0, "{:#?}", self.proxy.first.stderr());
    }

    /// Memory of the process that serves, bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.proxy.main())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has one");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    }

    /// The lines of the access log, and the ids in them. (Metrics of a backend go when a reload removes it.)
    fn logged(&self) -> (u64, u64) {
        let log = BufReader::new(File::open(self.access_log()).unwrap());
        let id = |line: String| Some(line.split_once(REQUEST_ID)?.1.split('"').next()?.to_owned());
        let ids: Vec<String> = log.lines().map_while(Result::ok).filter_map(id).collect();
        (ids.len() as u64, ids.iter().collect::<HashSet<_>>().len() as u64)
    }

    fn access_log(&self) -> PathBuf {
        self.scratch.path().join("access.log")
    }
}

fn is_of(series: &str, name: &str) -> bool {
    series.split('{').next() == Some(name)
}
