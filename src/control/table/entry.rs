//! One backend in the table: what its probes and scrapes find, and what follows for it.

use std::sync::Arc;

use super::BackendEntry;
use crate::config;
use crate::control::engine::EngineSample;
use crate::control::events::Followed;
use crate::control::probe::Finding;
use crate::control::settings;
use crate::kv_events::Source;
use crate::metrics::BackendLabels;
use crate::pool::{BackendSnapshot, Health, OtherRouters, Pool};
use crate::state::State;
use crate::time::Moment;

// === impl BackendEntry ===

impl BackendEntry {
    /// Whether it is the backend of `config`, however that is spoken to.
    pub(super) fn is_of(&self, config: &config::Backend) -> bool {
        self.config == config::Backend { tls: self.config.tls.clone(), ..config.clone() }
    }

    pub(super) fn observe(&mut self, finding: Finding, state: &State, pool: &Pool) -> bool {
        match finding {
            Finding::Address(address) => self.address = address,
            Finding::Alive => return self.alive(state, pool),
            Finding::Dead { is_refused, is_distrusted, reason } => {
                self.was_refused |= is_refused;
                if is_distrusted {
                    self.tls.note_distrust(&self.config.name, pool.name(), &reason);
                }
                return self.dead(&reason, pool);
            }
            Finding::Sample(sample, now) => self.take_sample(sample, now, state, pool),
            Finding::NotProbed(reason) => {
                log::warn!("backend {} cannot be probed from here: {reason}", self.config.name);
                return false;
            }
            Finding::NoSample(reason) => {
                log::debug!("backend {}: no metrics: {reason}", self.config.name);
                return self.miss_sample(state, pool);
            }
            Finding::Models(models) => self.models = models,
            Finding::MaxRunning(most) => return std::mem::replace(&mut self.engine.max_running, most) != most,
            Finding::EventSources(sources) => return self.follow(sources, state),
        }
        true
    }

    /// Follows what the engine says that it publishes; whether that is news.
    pub(super) fn follow(&mut self, sources: Result<Vec<Source>, String>, state: &State) -> bool {
        match sources {
            Ok(sources) => {
                let was_a_problem = self.events_problem.take().is_some();
                if self.events.is_of(&sources) {
                    return was_a_problem;
                }
                self.events = Followed::start(sources, &self.config.name, &state.events);
            }
            Err(problem) => {
                // An engine that is followed, and cannot be asked just now, is followed still.
                if !self.events.is_of(&[]) || self.events_problem.as_deref() == Some(&*problem) {
                    return false;
                }
                log::warn!("backend {}: no KV events: {problem}", self.config.name);
                self.events_problem = Some(problem.into());
            }
        }
        true
    }

    fn alive(&mut self, state: &State, pool: &Pool) -> bool {
        self.tls.note_trust();
        let was_down = std::mem::take(&mut self.was_refused);
        if was_down && self.probes.health() != Health::Starting {
            // An engine that names its start time or counts is judged by them: a refused probe can have other causes.
            match self.sample.as_ref().is_some_and(EngineSample::identifies_process) {
                true => self.is_unjudged = true,
                false => self.restarted(state, pool, "it was down"),
            }
        }
        match self.probes.observe(true) {
            Some(_) => log::info!("backend {} of pool {} is healthy", self.config.name, pool.name()),
            None => return was_down,
        }
        true
    }

    fn dead(&mut self, reason: &str, pool: &Pool) -> bool {
        let Some(_) = self.probes.observe(false) else { return false };
        log::warn!("backend {} of pool {} is unhealthy: {reason}", self.config.name, pool.name());
        true
    }

    fn take_sample(&mut self, sample: EngineSample, now: Moment, state: &State, pool: &Pool) {
        let was_unjudged = std::mem::take(&mut self.is_unjudged);
        match self.sample.as_ref().map(|earlier| sample.is_restart_after(earlier)) {
            Some(Some(true)) => self.restarted(state, pool, "its metrics say so"),
            Some(None) if was_unjudged => self.restarted(state, pool, "it was down, and has other metrics now"),
            _ => {}
        }
        if let Some(hits) = self.sample.as_ref().and_then(|earlier| sample.cached_tokens_since(earlier)) {
            state.trust_changed(&self.labels(pool), &self.backend.trust().judge_hits(hits));
        }
        self.engine = settings::engine_state(&sample, &self.engine, now);
        self.sample = Some(sample);
    }

    /// A scrape failed; whether that says something. Metrics can be switched off by a restart.
    fn miss_sample(&mut self, state: &State, pool: &Pool) -> bool {
        let was_unjudged = std::mem::take(&mut self.is_unjudged);
        if was_unjudged {
            self.sample = None;
            self.restarted(state, pool, "it was down, and has no metrics now");
        }
        was_unjudged
    }

    /// The engine's cache is gone: so is what was believed of it. What its events told is their stream's affair, which sees
    /// a restart by itself, and may have heard the new process already.
    fn restarted(&mut self, state: &State, pool: &Pool, why: &str) {
        log::info!(
            "backend {} of pool {} has restarted ({why}); its blocks are forgotten",
            self.config.name,
            pool.name()
        );
        self.tenant = state.index.restart(self.tenant);
        state.metrics.restarted(&self.labels(pool));
    }

    pub(super) fn labels(&self, pool: &Pool) -> BackendLabels {
        BackendLabels { pool: Arc::clone(pool.name()), backend: Arc::clone(self.backend.name()) }
    }

    pub(in crate::control) fn snapshot(&self) -> BackendSnapshot {
        BackendSnapshot {
            backend: Arc::clone(&self.backend),
            address: self.address,
            rank: self.config.rank,
            tls: self.tls.upstream(),
            health: self.probes.health(),
            drain: self.leaving.as_ref().map(|leaving| Arc::clone(&leaving.drain)),
            tenant: self.tenant,
            engine: self.engine,
            others: OtherRouters::default(),
            models: Arc::clone(&self.models),
            feeds: self.events.views(),
            feeds_problem: self.events_problem.clone(),
        }
    }
}
