//! A backend's drain: it takes no new work, its conversations may go on until a deadline, and then it empties.
//!
//! ```text
//! Conversations --deadline--> Emptying --nothing in flight--> Drained
//!       +---- nothing in flight, and nothing lives there ---->--+
//! ```
//!
//! The phase follows from the time and from what is there, so nothing has to be published when it changes. Which requests
//! belong to a conversation that lives there is for `routing` to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::time::Moment;

/// The drain of one backend; shared by all snapshots while it lasts.
#[derive(Debug)]
pub struct Drain {
    cause: DrainCause,
    since: Moment,
    deadline: Moment,
    /// Requests sent there since. Written by requests, read by reports; `Relaxed`.
    requests: AtomicU64,
}

/// Why a backend drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainCause {
    /// The operator asked for it, and ends it.
    Operator,
    /// A reload removed the backend; one that puts it back ends it.
    Removed,
}

/// How far a drain has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// Conversations may go on.
    Conversations,
    /// Nothing is sent there; what is in flight may end.
    Emptying,
    /// Nothing is there any more.
    Drained,
}

// === impl Drain ===

impl Drain {
    /// Begins `now`; conversations may go on for `time`.
    pub fn begin(cause: DrainCause, time: Duration, now: Moment) -> Arc<Self> {
        Arc::new(Self { cause, since: now, deadline: now + time, requests: AtomicU64::new(0) })
    }

    /// Why.
    pub fn cause(&self) -> DrainCause {
        self.cause
    }

    /// When it began.
    pub fn since(&self) -> Moment {
        self.since
    }

    /// Until when conversations may go on.
    pub fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Whether conversations may still go on.
    pub fn admits(&self, now: Moment) -> bool {
        now < self.deadline
    }

    /// A request was sent there.
    pub fn note_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Requests sent there since it began.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// How far it has come, with so many requests in flight; `is_home`: whether any conversation may live there.
    pub fn phase(&self, in_flight: u32, is_home: bool, now: Moment) -> DrainPhase {
        match (self.admits(now) && is_home, in_flight) {
            (true, _) => DrainPhase::Conversations,
            (false, 0) => DrainPhase::Drained,
            (false, _) if self.admits(now) => DrainPhase::Conversations,
            (false, _) => DrainPhase::Emptying,
        }
    }
}

// === impl DrainCause, DrainPhase ===

impl DrainCause {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Removed => "removed",
        }
    }
}

impl DrainPhase {
    /// The name in reports and in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Conversations => "conversations",
            Self::Emptying => "emptying",
            Self::Drained => "drained",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn the_phases_follow_one_another() {
        let drain = Drain::begin(DrainCause::Operator, Duration::from_secs(60), at(10));
        let phase = |in_flight, seconds| drain.phase(in_flight, true, at(seconds));
        assert_eq!(phase(3, 10), DrainPhase::Conversations);
        assert_eq!(phase(0, 69), DrainPhase::Conversations, "a conversation may come back");
        assert_eq!(phase(1, 70), DrainPhase::Emptying);
        assert_eq!(phase(0, 70), DrainPhase::Drained);
    }

    #[test]
    fn where_nothing_lives_nothing_is_waited_for() {
        let drain = Drain::begin(DrainCause::Removed, Duration::from_secs(60), at(10));
        assert_eq!(drain.phase(0, false, at(11)), DrainPhase::Drained);
        assert_eq!(drain.phase(1, false, at(11)), DrainPhase::Conversations, "what is in flight will live there");
    }

    #[test]
    fn no_time_is_at_once() {
        let drain = Drain::begin(DrainCause::Operator, Duration::ZERO, at(10));
        assert!(!drain.admits(at(10)));
        assert_eq!(drain.phase(1, true, at(10)), DrainPhase::Emptying);
    }
}
