//! What was applied last, so that a message that comes again can be told from another of the same number.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64;

/// How many messages back are remembered: more than pass between a replay's end and the same messages' live arrival.
const KEPT: usize = 1024;

/// Tells payloads apart; they have a time in them, so no two processes send the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print(u64);

/// The messages applied since everything was forgotten.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The number that must follow. None if any may be the first.
    next: Option<u64>,
    /// Of the last messages, up to the one before `next`.
    prints: VecDeque<Print>,
}

// === impl Print ===

impl Print {
    pub(super) fn of(payload: &[u8]) -> Self {
        Self(xxh3_64(payload))
    }
}

// === impl History ===

impl History {
    pub(super) fn next(&self) -> Option<u64> {
        self.next
    }

    /// If there is nothing yet, then the first message has the number 0.
    pub(super) fn begin(&mut self) {
        self.next.get_or_insert(0);
    }

    pub(super) fn push(&mut self, seq: u64, print: Print) {
        if self.prints.len() >= KEPT {
            self.prints.pop_front();
        }
        self.prints.push_back(print);
        self.next = Some(seq.saturating_add(1));
    }

    pub(super) fn last(&self) -> Option<(u64, Print)> {
        Some((self.next?.checked_sub(1)?, *self.prints.back()?))
    }

    /// The message of that number, if it is remembered.
    pub(super) fn at(&self, seq: u64) -> Option<Print> {
        let back = usize::try_from(self.next?.checked_sub(seq)?).ok()?;
        self.prints.get(self.prints.len().checked_sub(back)?).copied()
    }

    pub(super) fn clear(&mut self) {
        self.next = None;
        self.prints.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_messages_are_remembered_by_their_numbers() {
        let mut history = History::default();
        let print = |seq: u64| Print::of(&seq.to_be_bytes());
        assert_eq!((history.next(), history.last(), history.at(0)), (None, None, None));
        let end = 10 + 2 * KEPT as u64;
        (10..end).for_each(|seq| history.push(seq, print(seq)));
        assert_eq!(history.last(), Some((end - 1, print(end - 1))));
        let first = end - KEPT as u64;
        assert!((first..end).all(|seq| history.at(seq) == Some(print(seq))));
        assert_eq!((history.at(first - 1), history.at(end), history.at(end + 1)), (None, None, None));
    }
}
