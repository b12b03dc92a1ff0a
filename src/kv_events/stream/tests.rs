//! What a stream does about each kind of trouble.

use serde_json::json;

use super::*;

/// The names of the removed blocks, which the tests use as marks of batches.
#[derive(Debug, Default)]
struct Recorder(Vec<u64>);

impl Sink for Recorder {
    fn apply(&mut self, batch: &Batch) {
        self.0.extend(batch.hashes.iter().map(|hash| hash.0));
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Message `seq` of process `process` is marked with `100 * process + seq`.
fn payload(process: u64, seq: u64) -> Vec<u8> {
    rmp_serde::to_vec(&json!([1.0, [["BlockRemoved", [100 * process + seq]]], 0])).unwrap()
}

struct Test {
    stream: Stream,
    sink: Recorder,
}

impl Test {
    fn new(can_replay: bool) -> Self {
        Self { stream: Stream::new(can_replay), sink: Recorder::default() }
    }

    /// Connected, everything up to `next` replayed.
    fn at(next: u64) -> Self {
        let mut test = Self::new(true);
        assert_eq!(test.stream.connected(), Some(Replay { from: 0 }));
        test.replayed(1, 0..next);
        assert_eq!(test.ended(), None);
        test
    }

    fn live(&mut self, process: u64, seqs: std::ops::Range<u64>) -> Option<Replay> {
        seqs.filter_map(|seq| self.stream.live(seq, &payload(process, seq), &mut self.sink)).last()
    }

    fn replayed(&mut self, process: u64, seqs: std::ops::Range<u64>) -> Option<Replay> {
        seqs.filter_map(|seq| self.stream.replayed(seq, &payload(process, seq), &mut self.sink)).last()
    }

    fn ended(&mut self) -> Option<Replay> {
        self.stream.replay_ended(&mut self.sink)
    }

    fn failed(&mut self) -> Option<Replay> {
        self.stream.replay_failed(&mut self.sink)
    }

    fn applied(&self) -> &[u64] {
        &self.sink.0
    }
}

#[test]
fn at_the_start_everything_is_replayed_and_what_comes_meanwhile_follows() {
    let mut test = Test::new(true);
    assert_eq!(test.stream.connected(), Some(Replay { from: 0 }));
    assert_eq!(test.live(1, 2..4), None);
    assert_eq!(test.replayed(1, 0..3), None);
    assert_eq!(test.applied(), [100, 101, 102], "live messages wait for the replay's end");
    assert_eq!(test.ended(), None);
    assert_eq!(test.live(1, 4..5), None);
    assert_eq!(test.applied(), [100, 101, 102, 103, 104]);
    assert_eq!(test.stream.counts().clears, 0);
}

#[test]
fn a_live_message_that_comes_after_its_replay_is_not_applied_twice() {
    let mut test = Test::at(3);
    assert_eq!(test.live(1, 1..5), None);
    assert_eq!(test.applied(), [100, 101, 102, 103, 104]);
    assert_eq!(test.stream.counts().restarts, 0);
}

#[test]
fn a_gap_is_closed_by_a_replay_that_begins_with_what_is_known() {
    let mut test = Test::at(3);
    assert_eq!(test.live(1, 5..7), Some(Replay { from: 2 }));
    assert_eq!(test.replayed(1, 2..6), None);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), [100, 101, 102, 103, 104, 105, 106]);
    assert_eq!((test.stream.counts().gaps, test.stream.counts().clears), (1, 0));
}

#[test]
fn what_was_published_between_a_replay_and_the_subscription_is_asked_for_again() {
    let mut test = Test::new(true);
    let _ = test.stream.connected();
    test.live(1, 2..3);
    test.replayed(1, 0..1);
    assert_eq!(test.ended(), Some(Replay { from: 0 }), "1 is missing before 2");
    test.replayed(1, 0..2);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), [100, 101, 102]);
}

#[test]
fn a_replay_that_does_not_reach_back_far_enough_begins_anew() {
    let mut test = Test::at(3);
    test.live(1, 9..10);
    test.replayed(1, 6..10);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), [106, 107, 108, 109]);
    assert_eq!(test.stream.counts().clears, 1);
}

#[test]
fn a_replay_that_does_not_close_its_gap_is_not_asked_for_for_ever() {
    let mut test = Test::at(3);
    assert_eq!(test.live(1, 5..6), Some(Replay { from: 2 }));
    test.replayed(1, 2..3);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), [105]);
}

#[test]
fn a_jump_back_is_another_process() {
    let mut test = Test::at(3);
    test.live(1, 3..5);
    assert_eq!(test.live(2, 1..2), Some(Replay { from: 0 }));
    assert_eq!(test.applied(), [0; 0], "nothing of the old one holds");
    test.replayed(2, 0..2);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), [200, 201]);
    assert_eq!(test.stream.counts().restarts, 1);
}

#[test]
fn a_restart_during_an_absence_shows_by_the_replay_alone() {
    // The new process has sent less than the old one, as much, and more.
    for (sent, replies) in [(2, 0..0), (3, 2..3), (6, 2..6)] {
        let mut test = Test::at(3);
        test.stream.lost(&mut test.sink);
        assert_eq!(test.applied().len(), 3, "as long as the engine may be the same, what it told is kept");
        assert_eq!(test.stream.connected(), Some(Replay { from: 2 }));
        let asked = test.replayed(2, replies.start..replies.end.min(3)).or_else(|| test.ended());
        assert_eq!(asked, Some(Replay { from: 0 }), "{sent} sent");
        test.replayed(2, 0..sent);
        assert_eq!(test.ended(), None);
        assert_eq!(test.applied(), (200..200 + sent).collect::<Vec<_>>());
        assert_eq!((test.stream.counts().restarts, test.stream.counts().clears), (1, 1));
    }
}

#[test]
fn the_same_process_goes_on_after_a_lost_connection() {
    let mut test = Test::at(3);
    test.stream.lost(&mut test.sink);
    let _ = test.stream.connected();
    test.replayed(1, 2..5);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), [100, 101, 102, 103, 104]);
    assert_eq!(test.stream.counts().clears, 0);
}

#[test]
fn a_replay_by_another_process_than_the_live_messages_is_noticed() {
    let mut test = Test::at(0);
    test.live(1, 4..5);
    test.replayed(2, 0..5);
    assert_eq!(test.ended(), Some(Replay { from: 0 }), "the fourth message is not the one that came live");
    assert_eq!(test.applied(), [0; 0]);
}

#[test]
fn without_replay_a_gap_or_a_lost_connection_means_to_begin_anew() {
    let mut test = Test::new(false);
    assert_eq!(test.stream.connected(), None);
    assert_eq!(test.live(1, 7..9), None);
    assert_eq!(test.applied(), [107, 108]);
    assert_eq!(test.live(1, 10..12), None);
    assert_eq!(test.applied(), [110, 111]);
    assert_eq!(test.live(2, 3..5), None);
    assert_eq!(test.applied(), [203, 204]);
    test.stream.lost(&mut test.sink);
    assert_eq!(test.applied(), [0; 0]);
    assert_eq!(test.stream.connected(), None);
    assert_eq!(test.live(2, 5..6), None);
    assert_eq!(test.applied(), [205]);
}

#[test]
fn a_failed_replay_leaves_what_comes_live() {
    let mut test = Test::at(3);
    test.live(1, 5..7);
    test.replayed(1, 2..4);
    assert_eq!(test.failed(), None);
    assert_eq!(test.applied(), [105, 106]);
    assert_eq!(test.stream.counts().failed_replays, 1);
    assert_eq!(test.live(1, 7..8), None);
    assert_eq!(test.applied(), [105, 106, 107]);
}

#[test]
fn answers_that_come_when_none_is_waited_for_change_nothing() {
    let mut test = Test::at(3);
    assert_eq!(test.replayed(2, 0..9), None);
    assert_eq!((test.ended(), test.failed()), (None, None));
    assert_eq!(test.applied(), [100, 101, 102]);
}

#[test]
fn a_batch_that_cannot_be_read_forgets_what_was_told_and_does_not_stop_the_rest() {
    let mut test = Test::at(3);
    assert_eq!(test.stream.live(3, b"\xc1", &mut test.sink), None);
    assert_eq!(test.live(1, 4..6), None);
    assert_eq!(test.applied(), [104, 105]);
    assert_eq!((test.stream.counts().undecodable, test.stream.counts().gaps), (1, 0));
}

#[test]
fn what_waits_is_bounded_and_what_did_not_fit_is_asked_for() {
    let mut test = Test::new(true);
    let _ = test.stream.connected();
    test.live(1, 0..18_000);
    assert_eq!(test.stream.waiting.first(), Some(0));
    let Some(Replay { from }) = test.ended().or_else(|| test.live(1, 18_000..18_001)) else { panic!("a gap") };
    assert!((1..18_000).contains(&from), "all that had waited was applied: {from}");
    test.replayed(1, from..18_001);
    assert_eq!(test.ended(), None);
    assert_eq!(test.applied(), (100..=18_100).collect::<Vec<_>>());
}

#[test]
fn the_highest_numbers_overflow_nothing() {
    let mut test = Test::new(false);
    let _ = test.stream.connected();
    test.stream.live(u64::MAX - 1, &payload(1, 0), &mut test.sink);
    test.stream.live(u64::MAX, &payload(1, 1), &mut test.sink);
    test.stream.live(u64::MAX, &payload(1, 2), &mut test.sink);
    assert_eq!(test.applied(), [102], "the same number again is another process");
}
