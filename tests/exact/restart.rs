//! An engine that restarts in place while it is busy: its cache is lost, its connections and requests go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use warmgate::kv_events::Form;
use warmgate::sim::engine::{Parameters, Timing};
use warmgate::sim::{EngineOptions, Fault};

use crate::PLENTY;
use crate::common::eventually;
use crate::fleet::{BLOCK, Fleet, Served, options};

/// Callers at a time. Each asks for prompts of its own, one after the other, so that no prediction counts on what another
/// request is still computing.
const CALLERS: u32 = 4;

/// Prompts of a caller, and their blocks.
const STEMS: u32 = 6;
const STEM_BLOCKS: u32 = 20;

/// How soon after its first new event a restarted engine is believed nothing more.
const NOTICED: Duration = Duration::from_millis(100);

/// A request and when it was sent.
#[derive(Debug, Clone)]
struct Sent {
    at: Instant,
    served: Served,
}

/// What the callers share.
struct Load {
    fleet: Fleet,
    /// In the order in which requests ended.
    log: Mutex<Vec<Sent>>,
    is_over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hit_is_predicted_of_a_cache_that_was_lost_a_moment_after_the_first_new_event() {
    let load = Arc::new(Load::start().await);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(Arc::clone(&load).call(caller));
    }
    eventually("caches are warm", async || load.log.lock().len() >= 150).await;
    let (place, name) = load.busiest().await;
    let injected = Instant::now();
    load.fleet.engines[place].inject(Fault::RestartCache, None).unwrap();
    let told = load.first_event(place).await;
    eventually("the engine is busy again", async || load.hits_since(&name, told + NOTICED) >= 40).await;
    load.is_over.store(true, Relaxed);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }

    let stale = load.stale();
    println!(
        "first event {:?} after the restart; {} requests; stale hits (seconds after the first event, tokens predicted, \
         tokens cached): {:.4?}",
        told - injected,
        load.log.lock().len(),
        stale
            .iter()
            .map(|Sent { at, served }| (seconds_between(told, *at), served.predicted, served.cached))
            .collect::<Vec<_>>(),
    );
    assert!(!stale.is_empty(), "a restart that nobody can know of does no harm: were there hits before it?");
    for sent in stale {
        assert!(sent.served.backend == name && sent.at <= told + NOTICED, "{sent:?}, told at {told:?}");
    }
    let backend = &load.fleet.backends().await[place];
    assert!(backend["kv_events"][0]["restarts"] == 1 && backend["trust"] == "exact", "{backend}");
}

// === impl Load ===

impl Load {
    async fn start() -> Self {
        let engine = options(PLENTY, Form::Vllm);
        // Some 30 ms a request: a load that leaves time for everything else.
        let parameters = Parameters { timing: Timing::from_rates(40_000.0, 400.0), ..engine.parameters };
        let fleet = Fleet::start(vec![EngineOptions { parameters, ..engine }; 3], "").await;
        Self { fleet, log: Mutex::default(), is_over: AtomicBool::new(false) }
    }

    /// Asks for one of the caller's prompts after another, each with an end of its own, until the load is over.
    async fn call(self: Arc<Self>, caller: u32) {
        let mut rng = fastrand::Rng::with_seed(u64::from(caller));
        while !self.is_over.load(Relaxed) {
            let stem = caller * STEMS + rng.u32(0..STEMS);
            let mut ids: Vec<u32> = (0..STEM_BLOCKS * BLOCK).map(|at| stem * 10_000 + at).collect();
            ids.push(rng.u32(..));
            let at = Instant::now();
            let served = self.fleet.complete(&ids, 8).await;
            self.log.lock().push(Sent { at, served });
        }
    }

    /// The backend that served most, as its place and name.
    async fn busiest(&self) -> (usize, String) {
        let name_of = |backend: &Value| backend["name"].as_str().unwrap().to_owned();
        let names = self.fleet.backends().await;
        let served = |name: &str| self.log.lock().iter().filter(|sent| sent.served.backend == name).count();
        names.iter().map(name_of).enumerate().max_by_key(|(_, name)| served(name)).unwrap()
    }

    /// When an engine that has just been restarted is seen to have published something.
    async fn first_event(&self, place: usize) -> Instant {
        while self.fleet.engines[place].state().kv_events.unwrap().next_seq == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        Instant::now()
    }

    /// Hits that were predicted of a backend for requests sent since then.
    fn hits_since(&self, name: &str, since: Instant) -> usize {
        let log = self.log.lock();
        log.iter().filter(|sent| sent.served.backend == name && sent.at > since && sent.served.predicted > 0).count()
    }

    /// Requests of which less was cached than predicted.
    fn stale(&self) -> Vec<Sent> {
        self.log.lock().iter().filter(|sent| sent.served.predicted > sent.served.cached).cloned().collect()
    }
}

/// From `from` to `to`; negative if that was before it.
fn seconds_between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() - from.saturating_duration_since(to).as_secs_f64()
}
