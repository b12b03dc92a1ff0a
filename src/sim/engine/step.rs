//! One step: what takes part in it, how long it lasts, what comes of it.

use std::time::Duration;

use super::Engine;
use super::batch::Sequence;
use super::parameters::Batching;
use super::queue::Waiting;
use super::request::{Event, EventDetail, EventKind};
use super::timing::{Timing, bounded};
use crate::time::Moment;

/// The step in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) starts_at: Moment,
    pub(super) ends_at: Moment,
    pub(super) prefill_tokens: u32,
    /// Whether the decoding sequences take part.
    pub(super) is_decoding: bool,
}

/// The prefill of a step while it is being chosen.
struct Prefill {
    timing: Timing,
    budget: u32,
    tokens: u32,
    seconds: f64,
    sequences: usize,
    kv_tokens: u64,
}

// === impl Engine ===

impl Engine {
    /// Chooses what the step that starts `at` computes. Leaves the engine idle if there is nothing.
    pub(super) fn start_step(&mut self, at: Moment, events: &mut Vec<Event>) {
        let decoding = self.batch.decoding as u32;
        let budget = match self.parameters.batching {
            Batching::Mixed => self.parameters.step_tokens.saturating_sub(decoding),
            Batching::PrefillFirst => self.parameters.step_tokens,
        };
        let mut prefill = Prefill::new(self.parameters.timing, budget);
        if self.batch.prefilling() > 0 {
            let waits = self.batch.sequences.iter_mut().filter(|sequence| !sequence.is_decoding());
            waits.for_each(|sequence| prefill.add(sequence));
        }
        self.admit(at, &mut prefill, events);
        if self.batch.len() == 0 {
            self.look_again(at);
            return;
        }
        let is_decoding = match self.parameters.batching {
            Batching::Mixed => true,
            Batching::PrefillFirst => prefill.tokens == 0,
        };
        let (sequences, kv_tokens) =
            if is_decoding { (self.batch.len(), self.batch.kv_tokens) } else { (prefill.sequences, prefill.kv_tokens) };
        let length = self.parameters.timing.step(prefill.seconds, sequences, kv_tokens);
        let ends_at = at + self.stretch(length);
        self.step = Some(Step { starts_at: at, ends_at, prefill_tokens: prefill.tokens, is_decoding });
    }

    /// Applies the step to all sequences, at its end.
    pub(super) fn finish_step(&mut self, step: Step, events: &mut Vec<Event>) {
        self.totals.computed_tokens += u64::from(step.prefill_tokens);
        if step.prefill_tokens > 0 {
            self.totals.prefill_busy += step.ends_at.since(step.starts_at);
        }
        let mut sequences = std::mem::take(&mut self.batch.sequences);
        sequences.retain_mut(|sequence| {
            let stays = !sequence.is_aborted && !self.finish_sequence(sequence, step, events);
            if !stays {
                self.batch.discount(sequence);
                self.cache.lock().release(&sequence.blocks);
            }
            stays
        });
        self.batch.sequences = sequences;
    }

    /// Takes from the queue while budget, slots and blocks last.
    fn admit(&mut self, at: Moment, prefill: &mut Prefill, events: &mut Vec<Event>) {
        let has_slot = |engine: &Self| engine.batch.len() < engine.parameters.max_num_seqs;
        if prefill.budget == 0 || !has_slot(self) || self.queue.first_at().is_none_or(|first| first > at) {
            return;
        }
        self.queue.rank(at, &self.cache.lock());
        while prefill.budget > 0 && has_slot(self) {
            let Some(mut admitted) = self.admit_next(at, events) else { break };
            prefill.add(&mut admitted);
            self.batch.push(admitted);
        }
    }

    /// Takes the next of the queue if its blocks can be had.
    fn admit_next(&mut self, at: Moment, events: &mut Vec<Event>) -> Option<Sequence> {
        let place = self.queue.next(at)?;
        let (matched, blocks) = {
            let mut cache = self.cache.lock();
            let next = self.queue.at(place)?;
            let matched = next.match_blocks(&cache);
            (matched, cache.take(&next.request.chain[..matched], next.total_blocks)?)
        };
        let Waiting { id, request, .. } = self.queue.take(place)?;
        self.totals.queried_tokens += u64::from(request.prompt_tokens);
        let sequence = Sequence::new(id, request, blocks, matched, self.parameters.block_tokens);
        let cached_tokens = sequence.computed;
        self.totals.cached_tokens += u64::from(cached_tokens);
        events.push(Event { id, at, kind: EventKind::Admitted { cached_tokens } });
        Some(sequence)
    }

    /// An idle engine whose queue cannot be admitted: others that share the cache hold its blocks and will not say when
    /// they free them. It tries again after as long as an empty step takes.
    fn look_again(&mut self, at: Moment) {
        if self.queue.first_at().is_some_and(|first| first <= at) {
            let pause = self.parameters.timing.step(0.0, 0, 0);
            self.free_from = at + bounded(pause.as_secs_f64() * self.slowdown);
        }
    }

    /// A step's length as slow and as uneven as the engine is.
    fn stretch(&mut self, length: Duration) -> Duration {
        let noise = self.parameters.noise;
        let factor = if noise.share > 0.0 { noise.draw(&mut self.rng) } else { 1.0 };
        bounded(length.as_secs_f64() * self.slowdown * factor)
    }

    /// Applies a step to one sequence; true if it has finished.
    fn finish_sequence(&mut self, sequence: &mut Sequence, step: Step, events: &mut Vec<Event>) -> bool {
        let was_decoding = sequence.is_decoding();
        let computed = if was_decoding { u32::from(step.is_decoding) } else { std::mem::take(&mut sequence.scheduled) };
        if computed == 0 {
            return false;
        }
        sequence.computed += computed;
        self.batch.kv_tokens += u64::from(computed);
        if sequence.computed >= sequence.full_at {
            sequence.publish(&mut self.cache.lock(), self.parameters.block_tokens);
        }
        if !was_decoding {
            if !sequence.is_prefilled() {
                return false;
            }
            self.totals.prompt_tokens += u64::from(sequence.request.prompt_tokens);
        }
        self.emit(sequence, step.ends_at, events)
    }

    /// Lets a token out, if there are any to come; true if it was the last.
    fn emit(&mut self, sequence: &mut Sequence, at: Moment, events: &mut Vec<Event>) -> bool {
        let (id, index) = (sequence.id, sequence.generated);
        if index < sequence.request.output_tokens {
            if index == 0 {
                self.batch.decoding += 1;
            }
            if index == 0 || self.detail == EventDetail::Tokens {
                events.push(Event { id, at, kind: EventKind::Token { index } });
            }
            sequence.generated += 1;
            self.totals.generated_tokens += 1;
        }
        let is_finished = sequence.generated >= sequence.request.output_tokens;
        if is_finished {
            events.push(Event { id, at, kind: EventKind::Finished });
            self.totals.finished += 1;
        }
        is_finished
    }
}

// === impl Prefill ===

impl Prefill {
    fn new(timing: Timing, budget: u32) -> Self {
        Self { timing, budget, tokens: 0, seconds: 0.0, sequences: 0, kv_tokens: 0 }
    }

    /// Gives a sequence that is not yet decoding its share of the step.
    fn add(&mut self, sequence: &mut Sequence) {
        sequence.scheduled = (sequence.request.prompt_tokens - sequence.computed).min(self.budget);
        if sequence.scheduled == 0 {
            return;
        }
        self.budget -= sequence.scheduled;
        self.tokens += sequence.scheduled;
        self.seconds += self.timing.prefill_seconds(sequence.computed, sequence.computed + sequence.scheduled);
        self.sequences += 1;
        self.kv_tokens += u64::from(sequence.computed);
    }
}
