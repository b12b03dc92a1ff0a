//! One engine's stream of batches, made whole: each is applied once and in order, or everything is forgotten.
//!
//! A PUB socket keeps nothing for those who come late and drops what a slow reader does not take, and an engine that
//! starts again counts from 0. So whenever something may be missing (at the start, after a lost connection, at a gap) the
//! engine is asked for a replay, and what comes live in the meantime waits. A replay begins with the last message that was
//! applied, if there is one: only if it is the same as then, by a fingerprint, is it the same process that goes on. What a
//! replay cannot give is not guessed: all is forgotten and built up from what comes.
//!
//! Invariant: what was applied since the last [`Sink::clear`] is a run without gaps of what one process sent. The one
//! exception lasts until the end of a connection to a process that is gone, of which the last bytes may arrive after a
//! replay by its successor; the next replay finds it. Pure: no sockets, no clock.

mod history;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
mod waiting;

use super::{Batch, Decoder, Fault};
use history::{History, Print};
use waiting::Waiting;

/// Takes what an engine tells of its cache.
pub trait Sink {
    /// What has happened, in order.
    fn apply(&mut self, batch: &Batch);

    /// Nothing that was told holds any more.
    fn clear(&mut self);

    /// Whether what was told is current from now on: the connection is there, and no replay is under way.
    fn set_live(&mut self, _is_live: bool) {}
}

/// The state of one engine's stream.
#[derive(Debug)]
pub struct Stream {
    can_replay: bool,
    phase: Phase,
    history: History,
    /// The last live message of this connection; its successors have higher numbers.
    last_live: Option<u64>,
    waiting: Waiting,
    /// Whether the sink may hold anything.
    is_filled: bool,
    decoder: Decoder,
    batch: Batch,
    counts: Counts,
}

/// Ask the engine for a replay from this number on. A replay that is under way is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the stream waits for the replay"]
pub struct Replay {
    /// The number of the first message wanted.
    pub from: u64,
}

/// What has happened to a stream so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live messages received.
    pub messages: u64,
    /// Times that live messages were missing.
    pub gaps: u64,
    /// Times that another process of the engine went on.
    pub restarts: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Replays that broke off or took too long.
    pub failed_replays: u64,
    /// Times that everything was forgotten.
    pub clears: u64,
    /// Batches that could not be decoded.
    pub undecodable: u64,
    /// Events left out as their kind is not known.
    pub unknown_events: u64,
    /// Events left out as they are not as they should be.
    pub broken_events: u64,
    /// What was wrong with the last of these.
    pub last_fault: Option<Fault>,
    /// The number of the last message applied.
    pub last_seq: Option<u64>,
}

#[derive(Debug)]
enum Phase {
    /// There is no connection.
    Lost,
    /// Messages are applied as they come.
    Live,
    Replaying(Replaying),
}

#[derive(Debug)]
struct Replaying {
    /// The message that must come first, unchanged.
    overlap: Option<(u64, Print)>,
    /// The live message before which something is missing, if that is known.
    target: Option<u64>,
}

// === impl Stream ===

impl Stream {
    /// A stream of which nothing is known, to a sink that holds nothing of it. `can_replay`: whether the engine has a
    /// replay endpoint.
    pub fn new(can_replay: bool) -> Self {
        Self {
            can_replay,
            phase: Phase::Lost,
            history: History::default(),
            last_live: None,
            waiting: Waiting::default(),
            is_filled: false,
            decoder: Decoder::default(),
            batch: Batch::default(),
            counts: Counts::default(),
        }
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether it waits for a replay.
    pub fn is_replaying(&self) -> bool {
        matches!(self.phase, Phase::Replaying(_))
    }

    /// There is a connection, and the subscription was sent.
    pub fn connected(&mut self) -> Option<Replay> {
        self.last_live = None;
        self.waiting.clear();
        self.phase = Phase::Live;
        self.can_replay.then(|| self.ask())
    }

    /// The connection is gone. Without replay, nobody could say whether the same process goes on after it.
    pub fn lost(&mut self, sink: &mut impl Sink) {
        self.waiting.clear();
        self.phase = Phase::Lost;
        if !self.can_replay {
            self.forget(sink);
        }
    }

    /// A live message.
    pub fn live(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) -> Option<Replay> {
        self.counts.messages += 1;
        let goes_back = self.last_live.is_some_and(|last| seq <= last);
        self.last_live = Some(seq);
        if goes_back {
            self.waiting.clear();
            self.restarted(sink);
            if self.can_replay {
                self.waiting.push(seq, payload);
                return Some(self.ask());
            }
        }
        if self.is_replaying() {
            self.waiting.push(seq, payload);
            return None;
        }
        self.take(seq, payload, sink)
    }

    /// A message of the replay.
    pub fn replayed(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) -> Option<Replay> {
        let Phase::Replaying(replaying) = &mut self.phase else { return None };
        if let Some((at, print)) = replaying.overlap {
            if seq < at {
                return None;
            }
            replaying.overlap = None;
            if seq == at && print == Print::of(payload) {
                return None;
            }
            if seq == at {
                self.restarted(sink);
                return Some(self.ask());
            }
            // The engine no longer has what came between.
            self.forget(sink);
        }
        match self.history.next() {
            Some(next) if seq < next => return None,
            Some(next) if seq > next => self.forget(sink),
            _ => {}
        }
        self.apply(seq, payload, sink);
        None
    }

    /// The replay is complete.
    pub fn replay_ended(&mut self, sink: &mut impl Sink) -> Option<Replay> {
        let Phase::Replaying(replaying) = std::mem::replace(&mut self.phase, Phase::Live) else { return None };
        if replaying.overlap.is_some() {
            // Whoever answered has never sent what was applied last.
            self.restarted(sink);
            return Some(self.ask());
        }
        self.history.begin();
        self.drain(replaying.target, sink)
    }

    /// The replay broke off, or took too long.
    pub fn replay_failed(&mut self, sink: &mut impl Sink) -> Option<Replay> {
        if !self.is_replaying() {
            return None;
        }
        self.counts.failed_replays += 1;
        self.phase = Phase::Live;
        self.forget(sink);
        self.drain(None, sink)
    }

    /// Applies what has waited, up to what is missing again.
    fn drain(&mut self, target: Option<u64>, sink: &mut impl Sink) -> Option<Replay> {
        while let Some(seq) = self.waiting.first() {
            if self.history.next().is_some_and(|next| seq > next) {
                if target != Some(seq) {
                    self.counts.gaps += 1;
                    return Some(self.ask());
                }
                // The replay was to close this very gap and has not.
                self.forget(sink);
            }
            let (seq, payload) = self.waiting.pop()?;
            if let Some(replay) = self.take(seq, &payload, sink) {
                return Some(replay);
            }
        }
        None
    }

    /// Applies a live message if it is the next one.
    fn take(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) -> Option<Replay> {
        let next = self.history.next().unwrap_or(seq);
        if seq < next {
            return self.compare(seq, payload, sink);
        }
        if seq > next {
            self.counts.gaps += 1;
            if self.can_replay {
                self.waiting.push(seq, payload);
                return Some(self.ask());
            }
            self.forget(sink);
        }
        self.apply(seq, payload, sink);
        None
    }

    /// A live message that a replay has given already. If it is not the same, two processes are mixed up.
    fn compare(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) -> Option<Replay> {
        if self.history.at(seq).is_none_or(|print| print == Print::of(payload)) {
            return None;
        }
        self.waiting.clear();
        self.restarted(sink);
        Some(self.ask())
    }

    /// Asks for what follows the last message applied, or for everything.
    fn ask(&mut self) -> Replay {
        self.counts.replays += 1;
        let overlap = self.history.last();
        self.phase = Phase::Replaying(Replaying { overlap, target: self.waiting.first() });
        Replay { from: overlap.map_or(0, |(seq, _)| seq) }
    }

    fn apply(&mut self, seq: u64, payload: &[u8], sink: &mut impl Sink) {
        self.history.push(seq, Print::of(payload));
        self.counts.last_seq = Some(seq);
        match self.decoder.decode(payload, &mut self.batch) {
            Ok(left_out) => {
                self.counts.unknown_events += left_out.unknown;
                self.counts.broken_events += left_out.broken;
                self.counts.last_fault = left_out.fault.or(self.counts.last_fault);
                self.is_filled = true;
                sink.apply(&self.batch);
            }
            // It may have told of removals; a replay would tell the same.
            Err(_) => {
                self.counts.undecodable += 1;
                self.empty(sink);
            }
        }
    }

    fn restarted(&mut self, sink: &mut impl Sink) {
        self.counts.restarts += 1;
        self.forget(sink);
    }

    fn forget(&mut self, sink: &mut impl Sink) {
        self.history.clear();
        self.empty(sink);
    }

    fn empty(&mut self, sink: &mut impl Sink) {
        if self.is_filled {
            self.is_filled = false;
            self.counts.clears += 1;
            sink.clear();
        }
    }
}
