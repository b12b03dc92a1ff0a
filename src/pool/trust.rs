//! How far what is believed of a backend's cache may be trusted, judged by what its engine reports.
//!
//! There are two beliefs: *exact*, from the engine's KV events, and *assumed*, from our own decisions. Each is held
//! against the cached tokens that the engine reports with its answers, and is given up when the two disagree for long
//! (events of another engine, a tokenizer that is not the engine's, a cache that is switched off). Predictions go on
//! being made and compared, so that a belief comes back when it is right again. What is left when both are lost is load.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use belief::{Belief, Limits};

mod belief;

/// Exact locality is the engine's own word: half of it wrong is far too much.
const EXACT: Limits = Limits { lost_below: 0.5, regained_from: 0.8 };

/// Assumed locality is a guess that is of use even where it is often wrong.
const ASSUMED: Limits = Limits { lost_below: 0.1, regained_from: 0.3 };

/// Predictions of less say nothing: a chat template's first tokens, the last block that engines compute again.
const MIN_TOKENS: u64 = 64;

/// What locality is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// Nothing: the backend is chosen by its load.
    LoadOnly,
    /// Our own decisions.
    Assumed,
    /// The engine's KV events.
    Exact,
}

/// What was predicted for a request that has been answered. All in tokens of its prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Cached by our own decisions, requests in flight left out.
    pub assumed: u32,
    /// Cached by KV events, where they tell.
    pub exact: Option<ExactPrediction>,
}

/// What KV events predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactPrediction {
    /// What the events say.
    pub at_least: u32,
    /// The same with what requests in flight were computing at that moment.
    pub at_most: u32,
}

/// What is believed, and how that has fared, for another process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TrustRecord {
    assumed: Belief,
    exact: Belief,
}

/// A belief that was lost or has come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Which: [`Trust::Exact`] or [`Trust::Assumed`].
    pub belief: Trust,
    /// Why.
    pub reason: Reason,
}

/// What one comparison changed.
pub type Changes = SmallVec<[Change; 2]>;

/// Why trust changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Lost: what engines report is not what was predicted.
    Disagrees,
    /// Lost: many requests were answered, and no event came.
    Silent,
    /// Regained: predictions are right again.
    Agrees,
    /// Regained: an event came.
    Heard,
}

/// The trust in one backend. Written by the requests that it answers and by the control loop, read by decisions.
#[derive(Debug)]
pub struct TrustMeter {
    /// Whether each belief holds, for readers; written under `state`. Each is of use alone.
    is_exact: AtomicBool,
    is_assumed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    exact: Belief,
    assumed: Belief,
    silence: Silence,
    /// Predictions for answers that told no cached tokens; the engine's metrics will.
    untold: Untold,
}

/// Sums of tokens.
#[derive(Debug, Default)]
struct Untold {
    /// The last answer told no cached tokens.
    is_so: bool,
    assumed: u64,
    exact: u64,
}

/// Requests that were answered while no event came.
#[derive(Debug, Default)]
struct Silence {
    events: u64,
    requests: u32,
    is_long: bool,
}

// === impl Trust ===

impl Trust {
    /// The word for logs, metrics and `/backends`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LoadOnly => "load_only",
            Self::Assumed => "assumed",
            Self::Exact => "exact",
        }
    }
}

// === impl Reason ===

impl Reason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Disagrees, Self::Silent, Self::Agrees, Self::Heard];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disagrees => "disagrees",
            Self::Silent => "silent",
            Self::Agrees => "agrees",
            Self::Heard => "heard",
        }
    }

    /// Whether trust was lost.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Disagrees | Self::Silent)
    }
}

// === impl TrustMeter ===

impl TrustMeter {
    /// What to read locality from; `is_live` tells whether the backend's KV events are followed without a gap.
    pub fn trust(&self, is_live: bool) -> Trust {
        if is_live && self.is_exact.load(Relaxed) {
            Trust::Exact
        } else if self.is_assumed.load(Relaxed) {
            Trust::Assumed
        } else {
            Trust::LoadOnly
        }
    }

    /// Compares a prediction with the cached tokens that the engine reported with its answer.
    pub fn judge(&self, prediction: Prediction, reported: u64) -> Changes {
        self.change(|state| {
            state.untold.is_so = false;
            let expected = u64::from(prediction.assumed);
            let assumed = state.assumed.observe(ASSUMED, expected, expected.min(reported));
            let exact = prediction.exact.and_then(|exact| {
                let (at_least, at_most) = (u64::from(exact.at_least), u64::from(exact.at_most));
                // What requests in flight may explain says nothing for the events.
                match reported {
                    _ if reported > at_most => state.exact.observe(EXACT, reported, at_most),
                    _ => state.exact.observe(EXACT, at_least, at_least.min(reported)),
                }
            });
            [(Trust::Assumed, assumed), (Trust::Exact, exact)]
        })
    }

    /// Compares what was computed, in tokens, with what KV events have named of it since.
    pub fn judge_events(&self, computed: u64, told: u64) -> Changes {
        self.change(|state| [(Trust::Exact, state.exact.observe(EXACT, computed, told))])
    }

    /// Keeps a prediction for an answer that told no cached tokens, for [`judge_hits`](Self::judge_hits).
    pub fn predicted(&self, prediction: Prediction) {
        let mut state = self.state.lock();
        state.untold.is_so = true;
        state.untold.assumed += u64::from(prediction.assumed);
        state.untold.exact += prediction.exact.map_or(0, |exact| u64::from(exact.at_least));
    }

    /// Compares the predictions kept with the cached tokens that the engine's metrics counted in the meantime. Others
    /// may use the engine too, so only too few tell something. Where answers tell their own, they alone count.
    pub fn judge_hits(&self, counted: u64) -> Changes {
        self.change(|state| {
            if !state.untold.is_so {
                return [(Trust::Assumed, None), (Trust::Exact, None)];
            }
            let untold = std::mem::replace(&mut state.untold, Untold { is_so: true, ..Untold::default() });
            let assumed = state.assumed.observe(ASSUMED, untold.assumed, counted);
            let exact = state.exact.observe(EXACT, untold.exact, counted);
            [(Trust::Assumed, assumed), (Trust::Exact, exact)]
        })
    }

    /// Notes that a request with new blocks was answered, when the backend had sent `events` messages in all. So many
    /// in a row as `limit` without a message lose exact locality, until one comes.
    pub fn answered(&self, events: u64, limit: u32) -> Option<Change> {
        self.change(|state| [(Trust::Exact, state.silence.observe(events, limit))]).pop()
    }

    /// What is believed now. Silence is left out: who listens anew has heard nothing yet.
    pub fn record(&self) -> TrustRecord {
        let state = self.state.lock();
        TrustRecord { assumed: state.assumed, exact: state.exact }
    }

    /// Goes on from there.
    pub fn restore(&self, record: TrustRecord) {
        self.change(|state| {
            (state.assumed, state.exact) = (record.assumed.made_sound(), record.exact.made_sound());
            [(Trust::Assumed, None), (Trust::Exact, None)]
        });
    }

    fn change<const N: usize>(&self, observe: impl FnOnce(&mut State) -> [(Trust, Option<Reason>); N]) -> Changes {
        let mut state = self.state.lock();
        let changes = observe(&mut state);
        self.is_exact.store(state.exact.is_held() && !state.silence.is_long, Relaxed);
        self.is_assumed.store(state.assumed.is_held(), Relaxed);
        drop(state);
        changes.into_iter().filter_map(|(belief, reason)| Some(Change { belief, reason: reason? })).collect()
    }
}

impl Default for TrustMeter {
    fn default() -> Self {
        Self { is_exact: AtomicBool::new(true), is_assumed: AtomicBool::new(true), state: Mutex::default() }
    }
}

// === impl Silence ===

impl Silence {
    fn observe(&mut self, events: u64, limit: u32) -> Option<Reason> {
        if events != self.events {
            let was_long = self.is_long;
            *self = Self { events, requests: 0, is_long: false };
            return was_long.then_some(Reason::Heard);
        }
        self.requests = self.requests.saturating_add(1);
        let was_long = std::mem::replace(&mut self.is_long, self.requests >= limit);
        (self.is_long && !was_long).then_some(Reason::Silent)
    }
}

#[cfg(test)]
mod tests;
