//! What a caller has used, and what one of its requests is charged.
//!
//! A request is charged in three steps, each of which may refuse it: its place among the concurrent ones and one of the
//! minute's requests as soon as its caller is known; its prompt tokens when they have been counted; the uncached ones of
//! them when a backend was chosen. All are estimates, put right when the request has ended ([`Charge::settle`]): tokens of
//! the answer are added then, and a limit may be overdrawn by them. A request that no backend served costs no tokens.

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
        room(&self.usage.0.lock().requests, self.key.limits.requests_per_minute, now)
    }

    /// What is left of the tokens of this minute, if they are limited.
    pub fn token_room(&self, now: Moment) -> Option<Room> {
        room(&self.usage.0.lock().tokens, self.key.limits.tokens_per_minute, now)
    }

    /// What is left of the uncached tokens of this minute, if they are limited.
    pub fn uncached_room(&self, now: Moment) -> Option<Room> {
        room(&self.usage.0.lock().uncached, self.key.limits.uncached_tokens_per_minute, now)
    }
}

fn settle(bucket: &mut Bucket, taken: u64, actual: u64, limit: Option<NonZeroU32>, now: Moment) {
    if let Some(allowed) = limit {
        bucket.settle(taken, actual, allowed, now);
    }
}

fn room(bucket: &Bucket, limit: Option<NonZeroU32>, now: Moment) -> Option<Room> {
    limit.map(|allowed| Room { allowed, left: bucket.left(allowed, now), full_in: bucket.full_in(now) })
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
mod tests {
    use super::*;
    use crate::auth::{Callers, KeyDigest};
    use crate::config::{Auth, Key, KeyLimits, Priority};
    use crate::testing::config;
    use proptest::prelude::*;

    fn caller(limits: KeyLimits) -> Arc<Caller> {
        let key = Key {
            label: "a".into(),
            digests: vec![KeyDigest::of(b"one")],
            limits,
            models: None,
            pools: None,
            priority: Priority::Normal,
        };
        let auth = Auth { keys_file: Some("/keys".into()), keys: [key].into() };
        Arc::clone(Callers::new(&auth).named("a").unwrap())
    }

    fn limits(requests: u32, concurrent: u32, tokens: u32, uncached: u32) -> KeyLimits {
        KeyLimits {
            requests_per_minute: NonZeroU32::new(requests),
            concurrent_requests: NonZeroU32::new(concurrent),
            tokens_per_minute: NonZeroU32::new(tokens),
            uncached_tokens_per_minute: NonZeroU32::new(uncached),
        }
    }

    const NOW: Moment = Moment::ORIGIN;

    #[test]
    fn each_limit_refuses_on_its_own_and_says_which() {
        let refusal = |limits, prompt: u64, uncached: u64| {
            let caller = caller(limits);
            let mut held = Vec::new();
            for _ in 0..2 {
                let begun = caller.begin(NOW).and_then(|mut charge| {
                    charge.take_tokens(prompt, NOW)?;
                    charge.take_uncached(uncached, NOW)?;
                    Ok(charge)
                });
                match begun {
                    Ok(charge) => held.push(charge),
                    Err(limited) => return Some(limited.kind),
                }
            }
            None
        };
        assert_eq!(refusal(limits(0, 0, 0, 0), u64::MAX, u64::MAX), None, "nothing is limited");
        assert_eq!(refusal(limits(1, 0, 0, 0), 0, 0), Some(LimitKind::Requests));
        assert_eq!(refusal(limits(0, 1, 0, 0), 0, 0), Some(LimitKind::Concurrent));
        assert_eq!(refusal(limits(0, 0, 10, 0), 6, 6), Some(LimitKind::Tokens));
        assert_eq!(refusal(limits(0, 0, 0, 10), 6, 6), Some(LimitKind::UncachedTokens));
        assert_eq!(refusal(limits(2, 2, 12, 12), 6, 6), None, "the last of each is still given");
    }

    #[test]
    fn a_refusal_by_concurrency_costs_no_request() {
        let caller = caller(limits(2, 1, 0, 0));
        let held = caller.begin(NOW).unwrap();
        assert_eq!(caller.begin(NOW).unwrap_err().kind, LimitKind::Concurrent);
        drop(held);
        assert!(caller.begin(NOW).is_ok());
    }

    #[test]
    fn a_request_is_settled_by_what_it_used() {
        let caller = caller(limits(0, 0, 100, 100));
        let mut charge = caller.begin(NOW).unwrap();
        charge.take_tokens(50, NOW).unwrap();
        charge.take_uncached(50, NOW).unwrap();
        charge.settle(Spent { prompt: 40, uncached: 8, output: 20 }, NOW);
        let left = || (caller.token_room(NOW).unwrap().left, caller.uncached_room(NOW).unwrap().left);
        assert_eq!(left(), (40, 92));
        drop(charge);
        assert_eq!(left(), (40, 92), "it is settled once");
        let mut failed = caller.begin(NOW).unwrap();
        failed.take_tokens(30, NOW).unwrap();
        failed.settle(Spent::default(), NOW);
        assert_eq!(left(), (40, 92), "what was not served costs nothing");
        assert_eq!(caller.request_room(NOW), None, "without a limit there is nothing to say");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin(u64),
        Settle(usize, u64),
        Drop(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0_u64..50).prop_map(Step::Begin),
            (0_usize..8, 0_u64..50).prop_map(|(at, spent)| Step::Settle(at, spent)),
            (0_usize..8).prop_map(Step::Drop),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn what_is_taken_is_the_sum_of_what_charges_say(steps in steps()) {
            let caller = caller(limits(0, 5, 1000, 0));
            // Charges that are held, and what those that ended have cost.
            let (mut held, mut ended): (Vec<(Charge, u64)>, u64) = (Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Begin(prompt) => match caller.begin(NOW) {
                        Ok(mut charge) => {
                            let taken = if charge.take_tokens(prompt, NOW).is_ok() { prompt } else { 0 };
                            held.push((charge, taken));
                        }
                        Err(limited) => {
                            prop_assert_eq!((limited.kind, held.len()), (LimitKind::Concurrent, 5));
                        }
                    },
                    Step::Settle(at, spent) if at < held.len() => {
                        held[at].0.settle(Spent { prompt: spent, ..Spent::default() }, NOW);
                        held[at].1 = spent;
                    }
                    Step::Drop(at) if at < held.len() => ended += held.swap_remove(at).1,
                    Step::Settle(..) | Step::Drop(_) => {}
                }
                let taken = ended + held.iter().map(|(_, taken)| taken).sum::<u64>();
                prop_assert_eq!(caller.token_room(NOW).unwrap().left, 1000_u64.saturating_sub(taken));
                prop_assert_eq!(caller.in_flight() as usize, held.len());
            }
        }
    }
}
