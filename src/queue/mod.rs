//! Requests that wait because every backend of their pool has as much as it is to have: who goes next, and who is told at
//! once that waiting is no use.
//!
//! Engines have queues of their own, but without a bound, without priorities, and where a request waits there it can no
//! longer go to another backend. So backends are kept at their limits ([`crate::pool::Limits`]), and what is beyond waits
//! here, in the order of:
//!
//! 1. further attempts, which have waited before;
//! 2. the [`Priority`], strictly;
//! 3. within a priority, fair shares of prefill for short and long prompts ([`fair`]);
//! 4. locality, within bounds: room at a backend goes to a request nearby in the order that has its prefix there. A request
//!    that was passed over [`PATIENCE`] times takes whatever comes (delay scheduling: Zaharia et al., EuroSys 2010).
//!
//! A second line of a pool ([`crate::pool::Pool::deferred`]) holds requests that wait although there is room, because their
//! prefill is long: there, within a priority, [`Order::ShortFirst`] is the order.
//!
//! Everything but [`mod@line`] is pure: it is told the time and does nothing but answer. [`Line`] adds what wakes those that
//! wait: one of them at a time has the *turn* to look for room, so that a backend's freed place wakes one request and not
//! all of them, and none is lost between a look and a wait.

mod drain;
mod fair;
mod line;
mod state;

pub use line::{Line, Place, Seat, Turn};
pub use state::{Entered, Refused, Stats};

use std::time::Duration;

/// How often a request is passed over for others that have their prefix where room is. Enough for each of a dozen
/// backends to get room twice or thrice.
const PATIENCE: u32 = 32;

/// How many seconds later a request may come and go first whose prefill takes a second less. With none, first come, first
/// served, long ones make each other wait for longer: docs/routing.md.
const SHORTNESS: u32 = 20;

/// How far behind the next request one is looked for that has its prefix where room is.
const LOOKAHEAD: usize = 64;

/// [`QueueSettings::max_defer`], unless it is set.
pub const MAX_DEFER: Duration = Duration::from_secs(30);

/// What a request costs besides its prefill, in the same units: it takes a place in a batch, whatever its prompt.
const REQUEST_COST: f64 = 256.0;

/// The most that one counts for: a million-token prompt with much context. Keeps sums of them far from overflow.
const MAX_COST: f64 = 1e9;

/// How urgent a request is. Less urgent ones wait for all that are more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others.
    High,
    /// What a request is that says nothing.
    #[default]
    Normal,
    /// After all others.
    Low,
}

/// The size of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSettings {
    /// Most requests that wait.
    pub max_requests: u32,
    /// Most bytes of their bodies.
    pub max_bytes: u64,
    /// How long one may wait for its first token, as far as that is known beforehand.
    pub max_wait: Duration,
    /// How long a request may be deferred because its prefill is long; none if none is.
    pub max_defer: Option<Duration>,
}

/// What a request is to the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticket {
    /// How urgent it is.
    pub priority: Priority,
    /// Whether an attempt of it has failed before.
    pub is_retry: bool,
    /// Its prefill, in work units.
    pub work: f64,
    /// The time that this takes.
    pub prefill: Duration,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Where it would go.
    pub wants: Wants,
    /// How long it may wait from now.
    pub patience: Duration,
}

/// Who goes first within a priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Fair shares of prefill for short and long prompts.
    #[default]
    Fair,
    /// The shortest prefill, by arrival and [`SHORTNESS`] times the prefill's time: nobody waits for one that came so much
    /// later, so all that came in a bounded time are all that go before it.
    ShortFirst,
}

/// Where a request would go, by [`crate::pool::Backend::identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Anywhere.
    Any,
    /// Rather there than elsewhere: its prefix is there.
    Rather(u64),
    /// Nowhere else.
    Only(u64),
}

/// Where there may be room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Anywhere: something has changed.
    Anywhere,
    /// At the backend of this identity.
    At(u64),
}

/// Why a request does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// As many wait as may.
    Full,
    /// What is before it takes longer than it may wait.
    TooLong,
    /// It has waited for as long as it may.
    TimedOut,
    /// A more urgent one has taken its place.
    Displaced,
}

// === impl QueueSettings ===

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            max_requests: 1_024,
            max_bytes: 256 << 20,
            max_wait: Duration::from_secs(30),
            max_defer: Some(MAX_DEFER),
        }
    }
}

// === impl Priority ===

impl Priority {
    /// All, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The name in headers, metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// The priority of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.name().eq_ignore_ascii_case(name))
    }

    fn index(self) -> usize {
        self as usize
    }
}

// === impl Refusal ===

impl Refusal {
    /// All.
    pub const ALL: [Self; 4] = [Self::Full, Self::TooLong, Self::TimedOut, Self::Displaced];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::TooLong => "too_long",
            Self::TimedOut => "timed_out",
            Self::Displaced => "displaced",
        }
    }
}

// === impl Ticket ===

impl Ticket {
    /// What it counts for in the order and in estimates.
    fn cost(&self) -> u64 {
        // What is not a number is no work.
        let work = if self.work > 0.0 { self.work.min(MAX_COST) } else { 0.0 };
        (REQUEST_COST + work) as u64
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
