//! Live messages that wait for the end of a replay.

use std::collections::VecDeque;

use bytes::Bytes;

/// Most messages that wait. What comes beyond is dropped, which is a gap like any other: it is asked for in its turn.
const MAX_MESSAGES: usize = 16 * 1024;

/// Most bytes of these, the largest message always being let in.
const MAX_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    messages: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Something was dropped. What comes after it must not follow what was before it.
    is_full: bool,
}

// === impl Waiting ===

impl Waiting {
    /// Keeps a copy, since a message's bytes are a part of a larger read, all of which they would keep.
    pub(super) fn push(&mut self, seq: u64, payload: &[u8]) {
        let fits = self.messages.len() < MAX_MESSAGES && self.bytes < MAX_BYTES;
        self.is_full |= !fits;
        if !self.is_full {
            self.bytes += payload.len();
            self.messages.push_back((seq, Bytes::copy_from_slice(payload)));
        }
    }

    /// The number of the first one.
    pub(super) fn first(&self) -> Option<u64> {
        self.messages.front().map(|(seq, _)| *seq)
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Bytes)> {
        let first = self.messages.pop_front()?;
        self.bytes -= first.1.len();
        self.is_full &= !self.messages.is_empty();
        Some(first)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
