//! The stream against a model of engine and network: what it has applied is what the present process sent, without gaps.

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::config;

/// Process and number of a message.
type Mark = (u64, u64);

#[derive(Debug, Clone)]
enum Step {
    /// The engine publishes; whether its PUB socket drops it for us.
    Publish { is_dropped: bool },
    /// One live message, or the end of the connection, arrives.
    Arrive,
    /// The engine is replaced by a new process. What is under way still arrives.
    Restart,
    /// The network breaks the connection; what is under way is lost.
    Break,
    /// The connection is made again.
    Connect,
    /// The engine answers the replay that was asked for.
    Answer,
    /// One message of the answer arrives.
    ArriveReplayed,
    /// The replay breaks off.
    FailReplay,
}

#[derive(Debug)]
enum Live {
    Message(u64, Bytes),
    End,
}

#[derive(Debug)]
enum Asked {
    Nothing,
    For(u64),
    Answered(VecDeque<(u64, Bytes)>),
}

struct Recorder(Vec<Mark>);

impl Sink for Recorder {
    fn apply(&mut self, batch: &Batch) {
        self.0.push((batch.hashes[0].0, batch.hashes[1].0));
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

struct World {
    stream: Stream,
    sink: Recorder,
    process: u64,
    /// All that the present process has sent, by number.
    sent: Vec<Bytes>,
    /// How many of these it can replay.
    buffer: usize,
    /// None while there is no connection.
    wire: Option<VecDeque<Live>>,
    asked: Asked,
    has_failed: bool,
}

impl World {
    fn new(can_replay: bool, buffer: usize) -> Self {
        Self {
            stream: Stream::new(can_replay),
            sink: Recorder(Vec::new()),
            process: 0,
            sent: Vec::new(),
            buffer,
            wire: None,
            asked: Asked::Nothing,
            has_failed: false,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Publish { is_dropped } => self.publish(*is_dropped),
            Step::Arrive => self.arrive(),
            Step::Restart => {
                self.process += 1;
                self.sent.clear();
                if let Some(wire) = &mut self.wire {
                    wire.push_back(Live::End);
                }
            }
            Step::Break => self.lose(),
            Step::Connect => self.connect(),
            Step::Answer => self.answer(),
            Step::ArriveReplayed => self.arrive_replayed(),
            Step::FailReplay => {
                if !matches!(self.asked, Asked::Nothing) {
                    self.asked = Asked::Nothing;
                    self.has_failed = true;
                    let replay = self.stream.replay_failed(&mut self.sink);
                    self.ask(replay);
                }
            }
        }
    }

    fn publish(&mut self, is_dropped: bool) {
        let seq = self.sent.len() as u64;
        let event = json!([1.0, [["BlockRemoved", [self.process, seq]]], 0]);
        let payload = Bytes::from(rmp_serde::to_vec(&event).unwrap());
        self.sent.push(payload.clone());
        // A connection that has ended on the other side takes no more.
        if let Some(wire) = &mut self.wire
            && !is_dropped
            && !matches!(wire.back(), Some(Live::End))
        {
            wire.push_back(Live::Message(seq, payload));
        }
    }

    fn arrive(&mut self) {
        match self.wire.as_mut().and_then(VecDeque::pop_front) {
            Some(Live::Message(seq, payload)) => {
                let replay = self.stream.live(seq, &payload, &mut self.sink);
                self.ask(replay);
            }
            Some(Live::End) => self.lose(),
            None => {}
        }
    }

    fn lose(&mut self) {
        if self.wire.take().is_some() {
            self.asked = Asked::Nothing;
            self.stream.lost(&mut self.sink);
        }
    }

    fn connect(&mut self) {
        if self.wire.is_none() {
            self.wire = Some(VecDeque::new());
            let replay = self.stream.connected();
            self.ask(replay);
        }
    }

    fn ask(&mut self, replay: Option<Replay>) {
        if let Some(Replay { from }) = replay {
            self.asked = Asked::For(from);
        }
    }

    fn answer(&mut self) {
        if let Asked::For(from) = self.asked {
            let oldest = self.sent.len().saturating_sub(self.buffer);
            let numbered = (0..).zip(&self.sent).skip(oldest);
            let replies = numbered.filter(|(seq, _)| *seq >= from).map(|(seq, payload)| (seq, payload.clone()));
            self.asked = Asked::Answered(replies.collect());
        }
    }

    fn arrive_replayed(&mut self) {
        let Asked::Answered(replies) = &mut self.asked else { return };
        let replay = match replies.pop_front() {
            Some((seq, payload)) => self.stream.replayed(seq, &payload, &mut self.sink),
            None => {
                self.asked = Asked::Nothing;
                self.stream.replay_ended(&mut self.sink)
            }
        };
        self.ask(replay);
    }

    /// Lets everything that is under way arrive.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let is_quiet = self.wire.as_ref().is_some_and(VecDeque::is_empty) && matches!(self.asked, Asked::Nothing);
            if is_quiet {
                return;
            }
            [Step::Connect, Step::Arrive, Step::Answer, Step::ArriveReplayed].iter().for_each(|step| self.run(step));
        }
        panic!("the stream asks for replays without end");
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::bool::weighted(0.2).prop_map(|is_dropped| Step::Publish { is_dropped }),
        8 => Just(Step::Arrive),
        1 => Just(Step::Restart),
        1 => Just(Step::Break),
        3 => Just(Step::Connect),
        4 => Just(Step::Answer),
        8 => Just(Step::ArriveReplayed),
        1 => Just(Step::FailReplay),
    ]
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn when_it_is_quiet_what_was_applied_is_what_the_process_sent(
        can_replay in any::<bool>(),
        buffer in prop_oneof![Just(0_usize), 1..6_usize, Just(usize::MAX)],
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(can_replay, buffer);
        steps.iter().for_each(|step| world.run(step));
        world.settle();
        world.publish(false);
        world.settle();

        let (process, sent) = (world.process, world.sent.len() as u64);
        let applied = &world.sink.0;
        let first = applied.first().map(|&(_, seq)| seq);
        prop_assert!(first.is_some(), "the last message was seen");
        let suffix: Vec<Mark> = (first.unwrap_or(0)..sent).map(|seq| (process, seq)).collect();
        prop_assert_eq!(applied, &suffix);
        if can_replay && !world.has_failed && buffer >= world.sent.len() {
            prop_assert_eq!(first, Some(0), "a replay could give it all");
        }
    }

    #[test]
    fn at_every_moment_what_was_applied_has_no_gap(
        can_replay in any::<bool>(),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(can_replay, usize::MAX);
        for step in &steps {
            world.run(step);
            let has_gap = world.sink.0.windows(2).any(|pair| pair[1].1 != pair[0].1 + 1);
            prop_assert!(!has_gap, "{:?}", world.sink.0);
        }
    }
}
