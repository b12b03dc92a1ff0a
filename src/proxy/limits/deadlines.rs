//! When an attempt has to have got further, and by which limit. Pure: `now` is an argument.

use std::time::Duration;

use crate::pool::{TimeLimit, Timeouts};
use crate::time::Moment;

/// How an answer will come, as the request asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy) enum Asked {
    /// Token by token.
    Streamed,
    /// In one piece, at its end.
    Whole,
}

/// The deadline of one attempt, which moves as the answer comes.
#[derive(Debug, Clone)]
pub(in crate::proxy) struct Deadlines {
    timeouts: Timeouts,
    /// When the request was sent.
    sent: Moment,
    /// The end of the whole request.
    end: Option<Moment>,
    phase: Phase,
    /// When the present phase began, or last got further.
    since: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A streamed answer has given nothing yet.
    BeforeToken,
    /// A streamed answer gives tokens.
    Tokens,
    /// An answer that is not streamed, or none yet.
    Reading,
}

// === impl Deadlines ===

impl Deadlines {
    /// Of an attempt that is `sent` at a backend; `end` is that of the whole request.
    pub(in crate::proxy) fn new(timeouts: Timeouts, asked: Asked, sent: Moment, end: Option<Moment>) -> Self {
        let phase = match asked {
            Asked::Streamed => Phase::BeforeToken,
            Asked::Whole => Phase::Reading,
        };
        Self { timeouts, sent, end, phase, since: sent }
    }

    /// The header came: it says whether the answer is streamed.
    pub(in crate::proxy) fn header(&mut self, is_stream: bool, now: Moment) {
        // A stream waits for its first token from the start; the header says nothing of it.
        (self.phase, self.since) = if is_stream { (Phase::BeforeToken, self.sent) } else { (Phase::Reading, now) };
    }

    /// A token came, or a piece of an answer that is not streamed.
    pub(in crate::proxy) fn progress(&mut self, now: Moment) {
        if self.phase == Phase::BeforeToken {
            self.phase = Phase::Tokens;
        }
        self.since = now;
    }

    /// It was not the backend who kept the answer back since then: its time begins anew.
    pub(super) fn excuse(&mut self, now: Moment) {
        self.since = now;
    }

    /// When the time is up, and by which limit.
    pub(in crate::proxy) fn next(&self) -> (Moment, TimeLimit) {
        let (limit, time): (_, Duration) = match self.phase {
            Phase::BeforeToken => (TimeLimit::FirstToken, self.timeouts.first_token),
            Phase::Tokens => (TimeLimit::BetweenTokens, self.timeouts.between_tokens),
            Phase::Reading => (TimeLimit::Read, self.timeouts.read),
        };
        let at = self.since + time;
        match self.end {
            Some(end) if end <= at => (end, TimeLimit::Total),
            _ => (at, limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timeouts() -> Timeouts {
        Timeouts {
            first_token: Duration::from_secs(100),
            between_tokens: Duration::from_secs(10),
            read: Duration::from_secs(50),
            ..Timeouts::default()
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn a_stream_has_a_limit_for_its_first_token_and_another_for_the_pauses_after_it() {
        let mut deadlines = Deadlines::new(timeouts(), Asked::Streamed, at(1), None);
        assert_eq!(deadlines.next(), (at(101), TimeLimit::FirstToken));
        deadlines.header(true, at(2));
        assert_eq!(deadlines.next(), (at(101), TimeLimit::FirstToken), "a header is no token");
        deadlines.progress(at(90));
        assert_eq!(deadlines.next(), (at(100), TimeLimit::BetweenTokens));
        deadlines.progress(at(95));
        assert_eq!(deadlines.next(), (at(105), TimeLimit::BetweenTokens));
    }

    #[test]
    fn an_answer_that_is_not_streamed_has_one_limit_for_each_wait() {
        let mut deadlines = Deadlines::new(timeouts(), Asked::Whole, at(1), None);
        assert_eq!(deadlines.next(), (at(51), TimeLimit::Read));
        deadlines.header(false, at(40));
        assert_eq!(deadlines.next(), (at(90), TimeLimit::Read));
        deadlines.progress(at(80));
        assert_eq!(deadlines.next(), (at(130), TimeLimit::Read));
    }

    #[test]
    fn the_header_decides_whatever_was_asked_for() {
        let mut refused = Deadlines::new(timeouts(), Asked::Streamed, at(1), None);
        refused.header(false, at(2));
        assert_eq!(refused.next(), (at(52), TimeLimit::Read), "an error reply to a streamed request");
        let mut unasked = Deadlines::new(timeouts(), Asked::Whole, at(1), None);
        unasked.header(true, at(2));
        assert_eq!(unasked.next(), (at(101), TimeLimit::FirstToken));
    }

    proptest! {
        #![proptest_config(crate::testing::config(200))]

        #[test]
        fn no_deadline_is_behind_the_end_and_progress_only_helps(
            end in proptest::option::of(1_u64..300),
            steps in proptest::collection::vec((0_u8..3, 0_u64..20), 0..20),
        ) {
            let mut deadlines = Deadlines::new(timeouts(), Asked::Streamed, at(0), end.map(at));
            let mut now = 0;
            for (step, pause) in steps {
                now += pause;
                let before = deadlines.clone();
                match step {
                    0 => deadlines.header(true, at(now)),
                    1 => deadlines.progress(at(now)),
                    _ => deadlines.excuse(at(now)),
                }
                let (deadline, limit) = deadlines.next();
                prop_assert!(end.is_none_or(|end| deadline <= at(end)), "nothing outlives the request");
                prop_assert_eq!(limit == TimeLimit::Total, end.map(at) == Some(deadline), "the end has its own name");
                if step == 1 && before.phase == Phase::Tokens {
                    prop_assert!(deadline >= before.next().0, "a token never makes the deadline come earlier");
                }
            }
        }
    }
}
