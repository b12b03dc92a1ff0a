//! Runs the model of an engine in real time.
//!
//! One task sleeps until the model's next event and publishes what happened; requests watch their own progress. A
//! request's ticket aborts it when dropped, so that a client that goes away needs no code of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::engine::{Engine, Event, EventKind, Load, Parameters, Rejected, Request, RequestId, Totals};
use super::histogram::Histogram;
use super::publisher::Feed;
use crate::kv_events::EngineHash;
use crate::time::{Moment, now};

/// How far a request has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Prompt tokens found in the prefix cache, once it is admitted.
    pub(super) cached_tokens: Option<u32>,
    /// Tokens that came out.
    pub(super) generated: u32,
    /// Whether that is all.
    pub(super) is_finished: bool,
}

/// What an engine tells of itself.
#[derive(Debug, Clone)]
pub(super) struct Report {
    /// Counted since the start.
    pub(super) totals: Totals,
    /// Held now.
    pub(super) load: Load,
    /// Seconds from submission to the first token.
    pub(super) time_to_first_token: Histogram,
    /// Seconds from submission to the end, of finished requests.
    pub(super) request_time: Histogram,
}

/// An engine that runs. Stops when dropped.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// A request in the engine; dropping it aborts the request unless it has finished.
#[derive(Debug)]
pub(super) struct Ticket {
    id: RequestId,
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when the next event may have come nearer.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    requests: HashMap<RequestId, Watched>,
    time_to_first_token: Histogram,
    request_time: Histogram,
    is_frozen: bool,
    /// Where KV events go, if anywhere.
    feed: Option<Feed>,
}

#[derive(Debug)]
struct Watched {
    submitted_at: Moment,
    progress: watch::Sender<Progress>,
}

// === impl Driver ===

impl Driver {
    /// Starts an engine on the current runtime.
    pub(super) fn start(parameters: Parameters, feed: Option<Feed>) -> Self {
        let mut engine = Engine::new(parameters);
        if feed.is_some() {
            engine.listen(fastrand::u64(..));
        }
        let state = State {
            engine,
            requests: HashMap::new(),
            time_to_first_token: Histogram::time_to_first_token(),
            request_time: Histogram::request_time(),
            is_frozen: false,
            feed,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() });
        let task = tokio::spawn(run(Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Hands a request to the engine.
    pub(super) fn submit(&self, request: Request) -> Result<Ticket, Rejected> {
        let (sender, progress) = watch::channel(Progress::default());
        let id = {
            let mut state = self.shared.state.lock();
            let now = now();
            state.advance(now);
            let id = state.engine.submit(request, now)?;
            state.requests.insert(id, Watched { submitted_at: now, progress: sender });
            id
        };
        self.shared.changed.notify_one();
        Ok(Ticket { id, shared: Arc::clone(&self.shared), progress })
    }

    /// The most tokens a request may have, prompt and answer together.
    pub(super) fn limit_tokens(&self) -> u64 {
        self.shared.state.lock().engine.limit_tokens()
    }

    /// Changes the speed of the steps to come; 1 is normal, 2 takes twice as long.
    pub(super) fn set_slowdown(&self, factor: f64) {
        self.shared.state.lock().engine.set_slowdown(factor);
    }

    /// Stops the model's clock, or lets it go on: steps that were due in between end at once then.
    pub(super) fn set_frozen(&self, is_frozen: bool) {
        self.shared.state.lock().is_frozen = is_frozen;
        self.shared.changed.notify_one();
    }

    /// Empties the prefix cache.
    pub(super) fn clear_cache(&self) {
        let mut state = self.shared.state.lock();
        state.advance(now());
        state.engine.clear_cache();
    }

    /// Empties the prefix cache, and begins KV events anew as another process would.
    pub(super) fn restart_cache(&self) {
        let mut state = self.shared.state.lock();
        state.advance(now());
        state.engine.clear_cache();
        if let Some(feed) = &mut state.feed {
            *feed = feed.next();
            state.engine.listen(fastrand::u64(..));
        }
    }

    /// What the prefix cache has, by the names that KV events use; nothing without KV events.
    pub(super) fn cached_names(&self) -> Vec<EngineHash> {
        let mut state = self.shared.state.lock();
        state.advance(now());
        state.engine.cached_names()
    }

    /// Counters and gauges.
    pub(super) fn report(&self) -> Report {
        let mut state = self.shared.state.lock();
        state.advance(now());
        Report {
            totals: state.engine.totals(),
            load: state.engine.load(),
            time_to_first_token: state.time_to_first_token.clone(),
            request_time: state.request_time.clone(),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut state = shared.state.lock();
            state.advance(now());
            state.engine.next_event_at().filter(|_| !state.is_frozen)
        };
        match next {
            // Timers have a resolution of a millisecond; steps that are shorter are caught up with together.
            Some(at) => {
                let sleep = at.since(now()).max(Duration::from_micros(100));
                tokio::select! {
                    () = tokio::time::sleep(sleep) => {}
                    () = shared.changed.notified() => {}
                }
            }
            None => shared.changed.notified().await,
        }
    }
}

// === impl State ===

impl State {
    fn advance(&mut self, now: Moment) {
        if self.is_frozen {
            return;
        }
        let events = self.engine.advance(now);
        if let Some(feed) = &self.feed {
            self.engine.take_batches().into_iter().for_each(|batch| feed.publish(batch));
        }
        events.into_iter().for_each(|event| self.publish(event));
    }

    fn publish(&mut self, event: Event) {
        let Some(watched) = self.requests.get(&event.id) else { return };
        let waited = event.at.since(watched.submitted_at).as_secs_f64();
        match event.kind {
            EventKind::Admitted { cached_tokens } => {
                watched.progress.send_modify(|progress| progress.cached_tokens = Some(cached_tokens));
            }
            EventKind::Token { index } => {
                if index == 0 {
                    self.time_to_first_token.observe(waited);
                }
                watched.progress.send_modify(|progress| progress.generated = index + 1);
            }
            EventKind::Finished => {
                self.request_time.observe(waited);
                watched.progress.send_modify(|progress| progress.is_finished = true);
                self.requests.remove(&event.id);
            }
        }
    }
}

// === impl Ticket ===

impl Ticket {
    /// How far it is now.
    pub(super) fn progress(&mut self) -> Progress {
        *self.progress.borrow_and_update()
    }

    /// Returns when it is further than [`Ticket::progress`] last said. Never returns for a request of an engine that has
    /// stopped.
    pub(super) async fn changed(&mut self) {
        if self.progress.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let was_live = {
            let mut state = self.shared.state.lock();
            state.advance(now());
            state.requests.remove(&self.id).is_some() && state.engine.abort(self.id)
        };
        if was_live {
            self.shared.changed.notify_one();
        }
    }
}
