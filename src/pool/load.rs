//! What this process has in flight at one backend: the one accounting path.
//!
//! [`Load::dispatch`] gives an [`InFlight`] guard; the request counts as pending prefill until its first token, as
//! decoding from then on, and the guard's drop takes it out of whichever it is in, exactly once. Pending work is the
//! sum of a FIFO in the order of dispatch, kept in whole thousandths of a work unit, so that adding and removing in any
//! order leaves exactly 0 when idle. Removal from the middle (an abort) is O(log n).
//!
//! Requests whose answer is not streamed show no first token. Engines serve prompts in order of arrival, so their
//! prefill counts as done when a later request has its first token, or when the learned rate says so; they would
//! otherwise be taken for queued prompts through all of their decoding.
//!
//! **Readers** ([`Load::view`]) take no lock: every change is made under the lock and then stored in atomics. The
//! stores and loads are `Relaxed`, so a reader may see some values from before a change and some from after. Each value
//! was true a moment ago and the view clamps the head to the whole, so a torn view is a view a few nanoseconds old.
//! Decisions of one pool that follow one another ([`super::Pool::decide`]) see each other's dispatches whole, by that
//! lock's ordering. Only while the head is an unstreamed request whose time is up does a reader take the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::number_within;
use super::rate::{RateLearner, RateSums};
use super::recent::Recent;
use crate::time::Moment;

/// The most work one request counts for, in work units: 40 times a million-token prompt of a 70B-class model. Keeps
/// the sum of 18 million requests within 64 bits of thousandths.
pub const MAX_WORK: f64 = 1e9;

/// Progress is stored at most this often for one backend, so that streams on many threads do not fight over a line.
const PROGRESS_STEP: Duration = Duration::from_millis(10);

/// Stands for "no such moment" in an atomic.
const NEVER: u64 = u64::MAX;

/// How the answer to a request arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Token by token: its first token shows the end of its prefill, and silence means that the engine is stuck.
    Streamed,
    /// At once, at its end.
    Whole,
}

/// What is in flight at a backend, and its learned rate.
#[derive(Debug)]
pub struct Load {
    state: Mutex<State>,
    published: Published,
}

/// A reading of a [`Load`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadView {
    /// Work of the requests whose prefill is not done, in work units.
    pub pending_work: f64,
    /// The first of these by itself; the engine is busy with it.
    pub head_work: f64,
    /// How long the engine has been busy with it: since the last first token, or since it came to the head.
    pub head_for: Duration,
    /// Requests past their first token.
    pub decoding: u32,
    /// All requests.
    pub in_flight: u32,
    /// The prompt tokens of all: what the engine reads again, or soon will, for each token it makes.
    pub prompt_tokens: u64,
    /// Requests that were sent there lately, ended ones included ([`Recent`]).
    pub recent: f64,
    /// The learned prefill rate.
    pub rate: RateSums,
}

/// One request in flight; dropped when it is finished, failed or abandoned.
#[derive(Debug)]
#[must_use = "dropping it ends the request's accounting"]
pub struct InFlight {
    load: Arc<Load>,
    ticket: u64,
    prompt_tokens: u32,
    answer: Answer,
    ended: Option<Moment>,
}

/// Written under the lock by whoever changes the state, except `last_progress`; read by anyone. All `Relaxed`.
#[derive(Debug)]
struct Published {
    pending: AtomicU64,
    head: AtomicU64,
    /// Nanoseconds.
    head_since: AtomicU64,
    /// When an unstreamed head counts as prefilled, in nanoseconds; [`NEVER`] for a streamed one.
    head_due: AtomicU64,
    decoding: AtomicU32,
    in_flight: AtomicU32,
    prompt_tokens: AtomicU64,
    /// [`Recent::to_bits`].
    recent: AtomicU64,
    recent_at: AtomicU64,
    /// [`RateSums::to_bits`].
    rate: AtomicU64,
    /// Since when a streamed request has been in flight without a break, in nanoseconds; [`NEVER`] if none is.
    streamed_since: AtomicU64,
    /// The last token seen, in nanoseconds. Written by every stream without the lock: a store that loses to an older
    /// one is off by less than it takes to race.
    last_progress: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    next_ticket: u64,
    /// By ticket, so in the order of dispatch.
    pending: BTreeMap<u64, Pending>,
    /// Sum over `pending`, in thousandths of a work unit.
    pending_milliwork: u64,
    head_since: Moment,
    decoding: u32,
    /// Of all requests, pending ones too.
    prompt_tokens: u64,
    recent: Recent,
    streamed: u32,
    streamed_since: Moment,
    learner: RateLearner,
    /// The latest moment anyone told: what a drop, which has no clock, goes by.
    latest: Moment,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    milliwork: u64,
    answer: Answer,
}

// === impl Load ===

impl Default for Load {
    fn default() -> Self {
        let published = Published {
            pending: AtomicU64::new(0),
            head: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            head_due: AtomicU64::new(NEVER),
            decoding: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            prompt_tokens: AtomicU64::new(0),
            recent: AtomicU64::new(0),
            recent_at: AtomicU64::new(0),
            rate: AtomicU64::new(RateSums::START.to_bits()),
            streamed_since: AtomicU64::new(NEVER),
            last_progress: AtomicU64::new(0),
        };
        Self { state: Mutex::default(), published }
    }
}

impl Load {
    /// Accounts for a request sent now with this much prefill, in work units (clamped to 0..=[`MAX_WORK`]), and a prompt
    /// of this length.
    pub fn dispatch(self: &Arc<Self>, work: f64, prompt_tokens: u32, answer: Answer, now: Moment) -> InFlight {
        let pending = Pending { milliwork: to_milliwork(work), answer };
        let ticket = self.change(|state| state.dispatch(pending, prompt_tokens, now));
        InFlight { load: Arc::clone(self), ticket, prompt_tokens, answer, ended: None }
    }

    /// The load as of now.
    pub fn view(&self, now: Moment) -> LoadView {
        let published = &self.published;
        if now.as_nanos() >= published.head_due.load(Relaxed) {
            self.change(|state| state.settle(now));
        }
        let pending = published.pending.load(Relaxed);
        LoadView {
            pending_work: from_milliwork(pending),
            head_work: from_milliwork(published.head.load(Relaxed).min(pending)),
            head_for: now.since(Moment::from_nanos(published.head_since.load(Relaxed))),
            decoding: published.decoding.load(Relaxed),
            in_flight: published.in_flight.load(Relaxed),
            prompt_tokens: published.prompt_tokens.load(Relaxed),
            recent: Recent::from_bits(published.recent.load(Relaxed), published.recent_at.load(Relaxed)).count_at(now),
            rate: self.rate(),
        }
    }

    /// Goes on from what another process has learned of the backend: its rate, and how many requests it got lately
    /// ([`LoadView::recent`]).
    pub fn restore(&self, rate: RateSums, recent: f64, now: Moment) {
        self.change(|state| {
            state.learner.restore(rate);
            state.recent = Recent::starting_at(recent, now);
        });
    }

    /// The learned prefill rate.
    pub fn rate(&self) -> RateSums {
        RateSums::from_bits(self.published.rate.load(Relaxed))
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.published.in_flight.load(Relaxed)
    }

    /// For how long the backend has held streamed requests without giving a token; zero if it holds none.
    ///
    /// Counted over all of them: clients that give up and are followed by others do not start it anew.
    pub fn stuck_for(&self, now: Moment) -> Duration {
        match self.published.streamed_since.load(Relaxed) {
            NEVER => Duration::ZERO,
            since => now.since(Moment::from_nanos(since).max(self.last_progress())),
        }
    }

    /// When the last token came; the origin if none has.
    pub fn last_progress(&self) -> Moment {
        Moment::from_nanos(self.published.last_progress.load(Relaxed))
    }

    fn progress(&self, now: Moment) {
        if now.since(self.last_progress()) >= PROGRESS_STEP {
            self.published.last_progress.store(now.as_nanos(), Relaxed);
        }
    }

    /// Runs `change` under the lock and publishes what it made.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let (head, published) = (state.head(), &self.published);
        published.pending.store(state.pending_milliwork, Relaxed);
        published.head.store(head.map_or(0, |head| head.milliwork), Relaxed);
        published.head_since.store(state.head_since.as_nanos(), Relaxed);
        published.head_due.store(state.head_due().map_or(NEVER, Moment::as_nanos), Relaxed);
        published.decoding.store(state.decoding, Relaxed);
        published.in_flight.store(state.in_flight(), Relaxed);
        published.prompt_tokens.store(state.prompt_tokens, Relaxed);
        let (recent, recent_at) = state.recent.to_bits();
        published.recent.store(recent, Relaxed);
        published.recent_at.store(recent_at, Relaxed);
        published.rate.store(state.learner.sums().to_bits(), Relaxed);
        let streamed_since = if state.streamed > 0 { state.streamed_since.as_nanos() } else { NEVER };
        published.streamed_since.store(streamed_since, Relaxed);
        result
    }
}

// === impl LoadView ===

impl LoadView {
    /// A backend with nothing in flight and nothing learned.
    pub const IDLE: Self = Self {
        pending_work: 0.0,
        head_work: 0.0,
        head_for: Duration::ZERO,
        decoding: 0,
        in_flight: 0,
        prompt_tokens: 0,
        recent: 0.0,
        rate: RateSums::START,
    };

    /// Pending work less what the engine has done of the head at this rate, in work units.
    pub fn queued_work(&self, rate: f64) -> f64 {
        let done = (self.head_for.as_secs_f64() * rate).min(self.head_work);
        (self.pending_work - done).max(0.0)
    }
}

// === impl InFlight ===

impl InFlight {
    /// The first token came (the first data event of a stream; the body of a whole answer): from pending to decoding.
    /// Later calls count as progress only.
    pub fn first_token(&mut self, now: Moment) {
        self.load.change(|state| state.first_token(self.ticket, now));
        self.load.progress(now);
    }

    /// A later token came. Response headers are no progress: engines send them before the prefill.
    pub fn progress(&self, now: Moment) {
        self.load.progress(now);
    }

    /// Ends the request's accounting, as a drop does, and says when it was: if it was still pending, the engine is
    /// known to be free for the next one from then on.
    pub fn finish(mut self, now: Moment) {
        self.ended = Some(now);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let last_progress = self.load.last_progress();
        self.load.change(|state| {
            let ended = self.ended.unwrap_or_else(|| state.latest.max(last_progress));
            state.release(self, ended);
        });
    }
}

// === impl State ===

impl State {
    fn dispatch(&mut self, pending: Pending, prompt_tokens: u32, now: Moment) -> u64 {
        self.settle(now);
        self.recent.add(now);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if self.pending.is_empty() {
            self.head_since = now;
        }
        self.pending.insert(ticket, pending);
        self.pending_milliwork += pending.milliwork;
        self.prompt_tokens += u64::from(prompt_tokens);
        self.learner.dispatched(from_milliwork(pending.milliwork), now);
        if pending.answer == Answer::Streamed {
            if self.streamed == 0 {
                self.streamed_since = now;
            }
            self.streamed += 1;
        }
        ticket
    }

    fn first_token(&mut self, ticket: u64, now: Moment) {
        self.latest = self.latest.max(now);
        if !self.pending.contains_key(&ticket) {
            return;
        }
        while let Some((&head, &pending)) = self.pending.first_key_value() {
            if head >= ticket || pending.answer == Answer::Streamed {
                break;
            }
            self.prefilled(head, false, now);
        }
        let is_observed = self.pending.get(&ticket).is_some_and(|pending| pending.answer == Answer::Streamed);
        self.prefilled(ticket, is_observed, now);
        self.head_since = self.head_since.max(now);
    }

    fn release(&mut self, request: &InFlight, now: Moment) {
        let (ticket, answer) = (request.ticket, request.answer);
        self.latest = self.latest.max(now);
        let was_head = self.pending.first_key_value().is_some_and(|(&head, _)| head == ticket);
        if let Some(pending) = self.pending.remove(&ticket) {
            self.pending_milliwork -= pending.milliwork;
            self.learner.abandoned(from_milliwork(pending.milliwork), was_head, now);
            if was_head {
                self.head_since = self.head_since.max(now);
            }
        } else {
            self.decoding -= 1;
        }
        self.prompt_tokens -= u64::from(request.prompt_tokens);
        if answer == Answer::Streamed {
            self.streamed -= 1;
        }
    }

    /// Moves unstreamed requests whose time is up from the head of the queue to decoding.
    fn settle(&mut self, now: Moment) {
        self.latest = self.latest.max(now);
        while let Some(due) = self.head_due().filter(|&due| due <= now) {
            let Some((&head, _)) = self.pending.first_key_value() else { return };
            self.prefilled(head, false, due);
            self.head_since = due;
        }
    }

    fn prefilled(&mut self, ticket: u64, is_observed: bool, at: Moment) {
        if let Some(pending) = self.pending.remove(&ticket) {
            self.pending_milliwork -= pending.milliwork;
            self.decoding += 1;
            self.learner.prefilled(from_milliwork(pending.milliwork), is_observed, at);
        }
    }

    fn head(&self) -> Option<Pending> {
        self.pending.first_key_value().map(|(_, &pending)| pending)
    }

    /// When the head counts as prefilled if nothing is heard of it: never, if it is streamed.
    fn head_due(&self) -> Option<Moment> {
        let head = self.head().filter(|head| head.answer == Answer::Whole)?;
        let seconds = from_milliwork(head.milliwork) / self.learner.sums().rate();
        Some(self.head_since + Duration::from_secs_f64(seconds))
    }

    fn in_flight(&self) -> u32 {
        // More than four thousand million requests do not fit in memory.
        self.decoding + self.pending.len() as u32
    }
}

/// Not a number counts as no work.
fn to_milliwork(work: f64) -> u64 {
    (number_within(0.0, MAX_WORK, work) * 1_000.0).round() as u64
}

fn from_milliwork(milliwork: u64) -> f64 {
    milliwork as f64 / 1_000.0
}

#[cfg(test)]
mod tests;
