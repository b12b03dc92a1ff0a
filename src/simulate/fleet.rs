//! The engines of a simulated fleet, and when each of them has something to do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::workload::Turn;
use crate::sim::engine::{
    BlockCache, Engine, Event, EventDetail, EventKind, Noise, Parameters, Rejected, Request, RequestId,
};
use crate::time::Moment;

/// All engines. Requests are named by the caller's numbers.
pub(super) struct Fleet {
    parameters: Parameters,
    /// The cache that all engines share, if they do.
    shared: Option<Arc<Mutex<BlockCache>>>,
    engines: Vec<Engine>,
    numbers: Vec<HashMap<RequestId, usize>>,
    /// The event that the caller was told to come back for, by engine.
    awaited: Vec<Option<Moment>>,
    events: Vec<Event>,
}

/// Something that happened to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Progress {
    pub(super) number: usize,
    pub(super) at: Moment,
    pub(super) kind: EventKind,
}

// === impl Fleet ===

impl Fleet {
    /// No engine yet; those to come have these parameters, noise apart, which is each one's own.
    pub(super) fn new(parameters: Parameters, shared: Option<Arc<Mutex<BlockCache>>>) -> Self {
        Self { parameters, shared, engines: Vec::new(), numbers: Vec::new(), awaited: Vec::new(), events: Vec::new() }
    }

    /// One more engine, idle and with an empty cache, unless it shares one.
    pub(super) fn add(&mut self) {
        let noise = self.parameters.noise;
        let noise = Noise { seed: noise.seed.wrapping_add(self.engines.len() as u64), ..noise };
        let parameters = Parameters { noise, ..self.parameters };
        let mut engine = match &self.shared {
            Some(cache) => Engine::with_cache(parameters, Arc::clone(cache)),
            None => Engine::new(parameters),
        };
        engine.set_detail(EventDetail::Milestones);
        self.engines.push(engine);
        self.numbers.push(HashMap::new());
        self.awaited.push(None);
    }

    pub(super) fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Gives a request to an engine.
    pub(super) fn submit(&mut self, backend: usize, turn: &Turn, number: usize, now: Moment) -> Result<(), Rejected> {
        let request = Request {
            chain: turn.chain.to_vec(),
            prompt_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            content: None,
        };
        let id = self.engines[backend].submit(request, now)?;
        self.numbers[backend].insert(id, number);
        Ok(())
    }

    /// When to advance this engine, if the caller does not know it yet.
    pub(super) fn next_step(&mut self, backend: usize) -> Option<Moment> {
        let next = self.engines[backend].next_event_at();
        let is_new = next != self.awaited[backend];
        self.awaited[backend] = next;
        next.filter(|_| is_new)
    }

    /// Lets an engine go on to `now` if that is what it waits for; appends what happened to `progress`.
    pub(super) fn advance(&mut self, backend: usize, now: Moment, progress: &mut Vec<Progress>) {
        if self.awaited[backend] != Some(now) {
            return;
        }
        self.awaited[backend] = None;
        self.events.clear();
        self.engines[backend].advance_into(now, &mut self.events);
        let numbers = &mut self.numbers[backend];
        for event in &self.events {
            let is_last = event.kind == EventKind::Finished;
            let number = if is_last { numbers.remove(&event.id) } else { numbers.get(&event.id).copied() };
            progress.extend(number.map(|number| Progress { number, at: event.at, kind: event.kind }));
        }
    }

    /// The engine process ends and another takes its place. What it was at, in the order in which it came.
    pub(super) fn restart(&mut self, backend: usize) -> Vec<usize> {
        self.awaited[backend] = None;
        let mut lost = self.engines[backend].crash();
        lost.sort_unstable();
        let numbers = &mut self.numbers[backend];
        lost.iter().filter_map(|id| numbers.remove(id)).collect()
    }

    pub(super) fn slow_down(&mut self, backend: usize, factor: f64) {
        self.engines[backend].set_slowdown(factor);
    }

    /// Time that all engines together have spent in steps with prefill.
    pub(super) fn prefill_busy(&self) -> Duration {
        self.engines.iter().map(|engine| engine.totals().prefill_busy).sum()
    }
}
