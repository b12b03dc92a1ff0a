//! What a caller has used, and what one of its requests is charged.
//!
//! A request is charged in three steps, each of which may refuse it: its place among the concurrent ones and one of the
//! minute's requests as soon as its caller is known; its prompt tokens when they have been counted; the uncached ones of
//! them when a backend was chosen. All are estimates, put right when the request has ended ([`Charge::settle`]): tokens
//! of the answer are added then, and a limit may be overdrawn by them. A request that no backend served costs no tokens.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::bucket::Bucket;
use super::callers::Caller;
use crate::time::Moment;

/// When a request that waits for another of the same caller to end may try again: nobody knows how long that takes.
const CONCURRENT_WAIT: Duration = Duration::from_secs(1);

/// What one label has used. Written by its requests.
#[derive(Debug, Default)]
pub(super) struct Usage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    in_flight: u32,
    counts: Counts,
    requests: Bucket,
    tokens: Bucket,
    uncached: Bucket,
}

/// What a label's requests have come to since it was first seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that came with one of its keys.
    pub requests: u64,
    /// Of these, those refused by each limit, in the order of [`LimitKind::ALL`].
    pub limited: [u64; LimitKind::ALL.len()],
    /// Of these, those for a model or a pool that it may not use.
    pub denied: u64,
    /// Tokens of those that were served.
    pub spent: Spent,
}

/// The limits of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests a minute.
    Requests,
    /// Requests at a time.
    Concurrent,
    /// Tokens a minute.
    Tokens,
    /// Uncached prompt tokens a minute.
    UncachedTokens,
}

/// A request beyond a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    /// Which.
    pub kind: LimitKind,
    /// How many it allows.
    pub allowed: NonZeroU32,
    /// When the request may be sent again.
    pub retry_after: Duration,
}

/// What a limit a minute has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Units a minute.
    pub allowed: NonZeroU32,
    /// Of these, what could be taken now.
    pub left: u64,
    /// How long until all of them can be.
    pub full_in: Duration,
}

/// What a request has really used, tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Of the prompt.
    pub prompt: u64,
    /// Of these, the ones that were not cached.
    pub uncached: u64,
    /// Of the answer.
    pub output: u64,
}

/// What a request has taken of its caller's limits. Dropping it gives the place among the concurrent ones back; tokens
/// stay charged as they were estimated, unless they are settled.
#[derive(Debug)]
pub struct Charge {
    caller: Arc<Caller>,
    tokens: u64,
    uncached: u64,
}

// === impl Usage ===

impl Usage {
    pub(super) fn in_flight(&self) -> u32 {
        self.0.lock().in_flight
    }
}

// === impl State ===

impl State {
    /// Takes `units` of a limit, and counts it if they are refused.
    fn take(&mut self, kind: LimitKind, units: u64, limit: Option<NonZeroU32>, now: Moment) -> Result<(), Limited> {
        let Some(allowed) = limit else { return Ok(()) };
        let bucket = match kind {
            LimitKind::Tokens => &mut self.tokens,
            LimitKind::UncachedTokens => &mut self.uncached,
            LimitKind::Requests | LimitKind::Concurrent => &mut self.requests,
        };
        let taken = bucket.take(units, allowed, now);
        taken.map_err(|retry_after| self.refuse(Limited { kind, allowed, retry_after }))
    }

    fn refuse(&mut self, limited: Limited) -> Limited {
        self.counts.limited[limited.kind as usize] += 1;
        limited
    }
}

// === impl Caller ===

impl Caller {
    /// Begins a request.
    ///
    /// # Errors
    /// [`Limited`] by requests a minute or at a time; nothing is charged then.
    pub fn begin(self: &Arc<Self>, now: Moment) -> Result<Charge, Limited> {
        let limits = &self.key.limits;
        let mut state = self.usage.0.lock();
        state.counts.requests += 1;
        if let Some(allowed) = limits.concurrent_requests.filter(|allowed| state.in_flight >= allowed.get()) {
            let kind = LimitKind::Concurrent;
            return Err(state.refuse(Limited { kind, allowed, retry_after: CONCURRENT_WAIT }));
        }
        state.take(LimitKind::Requests, 1, limits.requests_per_minute, now)?;
        state.in_flight += 1;
        Ok(Charge { caller: Arc::clone(self), tokens: 0, uncached: 0 })
    }

    /// Counts a request for what it may not have.
    pub fn note_denied(&self) {
        self.usage.0.lock().counts.denied += 1;
    }

    /// What its requests have come to.
    pub fn counts(&self) -> Counts {
        self.usage.0.lock().counts
    }

    /// What is left of the requests of this minute, if they are limited.
    pub fn request_room(&self, now: Moment) -> Option<Room> {
        let allowed = self.key.limits.requests_per_minute?;
        Some(room(&self.usage.0.lock().requests, allowed, now))
    }

    /// What is left of the tokens of this minute, if they are limited.
    pub fn token_room(&self, now: Moment) -> Option<Room> {
        let allowed = self.key.limits.tokens_per_minute?;
        Some(room(&self.usage.0.lock().tokens, allowed, now))
    }

    /// What is left of the uncached tokens of this minute, if they are limited.
    pub fn uncached_room(&self, now: Moment) -> Option<Room> {
        let allowed = self.key.limits.uncached_tokens_per_minute?;
        Some(room(&self.usage.0.lock().uncached, allowed, now))
    }
}

fn settle(bucket: &mut Bucket, taken: u64, actual: u64, limit: Option<NonZeroU32>, now: Moment) {
    if let Some(allowed) = limit {
        bucket.settle(taken, actual, allowed, now);
    }
}

fn room(bucket: &Bucket, allowed: NonZeroU32, now: Moment) -> Room {
    Room { allowed, left: bucket.left(allowed, now), full_in: bucket.full_in(now) }
}

// === impl Charge ===

impl Charge {
    /// Whose it is.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Charges the tokens of the prompt.
    ///
    /// # Errors
    /// [`Limited`] by tokens a minute.
    pub fn take_tokens(&mut self, prompt_tokens: u64, now: Moment) -> Result<(), Limited> {
        let limit = self.caller.key.limits.tokens_per_minute;
        let mut state = self.caller.usage.0.lock();
        state.take(LimitKind::Tokens, prompt_tokens, limit, now)?;
        self.tokens += prompt_tokens;
        Ok(())
    }

    /// Charges the prompt tokens that the backend chosen first does not have.
    ///
    /// # Errors
    /// [`Limited`] by uncached tokens a minute.
    pub fn take_uncached(&mut self, uncached_tokens: u64, now: Moment) -> Result<(), Limited> {
        let limit = self.caller.key.limits.uncached_tokens_per_minute;
        let mut state = self.caller.usage.0.lock();
        state.take(LimitKind::UncachedTokens, uncached_tokens, limit, now)?;
        self.uncached += uncached_tokens;
        Ok(())
    }

    /// Puts what was used in the place of what was estimated: once, at the end of the request.
    pub fn settle(&mut self, spent: Spent, now: Moment) {
        let limits = self.caller.key.limits;
        let tokens = spent.prompt.saturating_add(spent.output);
        let mut state = self.caller.usage.0.lock();
        settle(&mut state.tokens, self.tokens, tokens, limits.tokens_per_minute, now);
        settle(&mut state.uncached, self.uncached, spent.uncached, limits.uncached_tokens_per_minute, now);
        let total = &mut state.counts.spent;
        total.prompt += spent.prompt;
        total.uncached += spent.uncached;
        total.output += spent.output;
        drop(state);
        (self.tokens, self.uncached) = (tokens, spent.uncached);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.caller.usage.0.lock().in_flight -= 1;
    }
}

// === impl LimitKind ===

impl LimitKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Requests, Self::Concurrent, Self::Tokens, Self::UncachedTokens];

    /// The label's value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Concurrent => "concurrent_requests",
            Self::Tokens => "tokens",
            Self::UncachedTokens => "uncached_tokens",
        }
    }
}

#[cfg(test)]
mod tests;
