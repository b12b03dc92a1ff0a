//! Engine, wire, stream and index together against a naive model: once the stream is quiet, the index claims no block that
//! the engine does not hold.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Batch, EngineHash, Form, Medium, Replay, Sink, Stream, encode};
use crate::locality::{ExactIndex, ExactMatches, ExactTenant};
use crate::prefix::{token_chain, token_root};
use crate::testing::config;

const BLOCK: NonZeroU32 = NonZeroU32::new(4).expect("not zero");

/// A prompt: one choice of a few for each of its blocks.
type Path = Vec<u8>;

#[derive(Debug, Clone)]
enum Step {
    /// A prompt is computed: what of it is not held is stored.
    Compute(Path),
    /// A block is stored once more, in another place.
    Duplicate(prop::sample::Index),
    /// One of the blocks is taken for something else, whatever hangs on it.
    Evict(prop::sample::Index),
    Clear,
    Restart,
    /// The next messages are lost on the way.
    Lose(u8),
}

/// What an engine holds, and how often each block.
struct Engine {
    process: u64,
    held: HashMap<Path, u32>,
    sent: Vec<Bytes>,
    form: Form,
}

struct TenantSink(ExactTenant);

/// The engine and whoever follows it.
struct World {
    engine: Engine,
    stream: Stream,
    sink: TenantSink,
    index: Arc<ExactIndex>,
    /// Messages that a replay reaches back.
    buffer: usize,
    lost: u8,
}

impl Sink for TenantSink {
    fn apply(&mut self, batch: &Batch) {
        self.0.apply(batch);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn set_live(&mut self, _is_live: bool) {}
}

fn ids(path: &[u8]) -> Vec<u32> {
    path.iter().flat_map(|choice| [u32::from(*choice); BLOCK.get() as usize]).collect()
}

impl Engine {
    /// A process gives names of its own.
    fn name(&self, path: &[u8]) -> EngineHash {
        EngineHash(xxh3_64_with_seed(path, self.process))
    }

    fn store(&mut self, path: &[u8], first: usize, batch: &mut Batch) {
        let names: Vec<EngineHash> = (first + 1..=path.len()).map(|end| self.name(&path[..end])).collect();
        let parent = (first > 0).then(|| self.name(&path[..first]));
        batch.push_stored(&names, parent, &ids(&path[first..]), BLOCK, Medium::Gpu);
        (first + 1..=path.len()).for_each(|end| *self.held.entry(path[..end].to_vec()).or_default() += 1);
    }

    fn run(&mut self, step: &Step, batch: &mut Batch) {
        match step {
            Step::Compute(path) => {
                let first = self.matched(path);
                if first < path.len() {
                    self.store(path, first, batch);
                }
            }
            Step::Duplicate(which) => {
                let whole: Vec<Path> =
                    self.sorted().into_iter().filter(|path| self.matched(path) == path.len()).collect();
                if !whole.is_empty() {
                    let path = which.get(&whole);
                    self.store(path, path.len() - 1, batch);
                }
            }
            Step::Evict(which) => {
                let all = self.sorted();
                if !all.is_empty() {
                    let path = which.get(&all);
                    batch.push_removed(&[self.name(path)], Medium::Gpu);
                    let count = self.held.get_mut(path).unwrap();
                    *count -= 1;
                    if *count == 0 {
                        self.held.remove(path);
                    }
                }
            }
            Step::Clear => {
                self.held.clear();
                batch.events.push(super::Event::Cleared);
            }
            Step::Restart => {
                self.process += 1;
                self.held.clear();
                self.sent.clear();
            }
            Step::Lose(_) => {}
        }
    }

    fn sorted(&self) -> Vec<Path> {
        let mut all: Vec<Path> = self.held.keys().cloned().collect();
        all.sort();
        all
    }

    /// Leading blocks that are held.
    fn matched(&self, path: &[u8]) -> usize {
        (1..=path.len()).take_while(|&end| self.held.contains_key(&path[..end])).count()
    }
}

impl World {
    fn new(form: Form, can_replay: bool, buffer: usize) -> Self {
        let index = Arc::new(ExactIndex::new(1 << 22, 7));
        let engine = Engine { process: 1, held: HashMap::new(), sent: Vec::new(), form };
        let sink = TenantSink(index.join());
        let mut world = Self { engine, stream: Stream::new(can_replay), sink, index, buffer, lost: 0 };
        let replay = world.stream.connected();
        world.replay(replay);
        world
    }

    fn run(&mut self, step: &Step) {
        let mut batch = Batch::default();
        self.engine.run(step, &mut batch);
        if let Step::Lose(messages) = step {
            self.lost = *messages;
        }
        if matches!(step, Step::Restart) {
            // A connection does not outlive its process.
            self.stream.lost(&mut self.sink);
            let replay = self.stream.connected();
            self.replay(replay);
        }
        if batch.events.is_empty() {
            return;
        }
        let seq = self.engine.sent.len() as u64;
        let payload = Bytes::from(encode(&batch, self.engine.form));
        self.engine.sent.push(payload.clone());
        if self.lost > 0 {
            self.lost -= 1;
            return;
        }
        let replay = self.stream.live(seq, &payload, &mut self.sink);
        self.replay(replay);
    }

    /// Gives what the engine still has.
    fn replay(&mut self, replay: Option<Replay>) {
        let mut asked = replay;
        while let Some(Replay { from }) = asked.take() {
            let oldest = self.engine.sent.len().saturating_sub(self.buffer) as u64;
            for (seq, payload) in (0..).zip(self.engine.sent.clone()).filter(|(seq, _)| *seq >= from.max(oldest)) {
                asked = asked.or(self.stream.replayed(seq, &payload, &mut self.sink));
            }
            if asked.is_none() {
                asked = self.stream.replay_ended(&mut self.sink);
            }
        }
    }

    /// Leading blocks that the index claims.
    fn claimed(&self, path: &[u8]) -> usize {
        let mut matches = ExactMatches::new();
        self.index.lookup(&token_chain(token_root(None, None), &ids(path), BLOCK), &mut matches);
        matches.levels(self.sink.0.slot()).gpu as usize
    }
}

fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(0..3_u8, 1..7)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => path().prop_map(Step::Compute),
        2 => any::<prop::sample::Index>().prop_map(Step::Duplicate),
        6 => any::<prop::sample::Index>().prop_map(Step::Evict),
        1 => Just(Step::Clear),
        1 => Just(Step::Restart),
        2 => (1..4_u8).prop_map(Step::Lose),
    ]
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn the_index_never_claims_a_block_that_the_engine_does_not_hold(
        steps in prop::collection::vec(step(), 0..60),
        asked in prop::collection::vec(path(), 20),
        (is_sglang, can_replay, buffer) in (any::<bool>(), any::<bool>(), prop_oneof![Just(usize::MAX), 0..8_usize]),
    ) {
        let mut world = World::new(if is_sglang { Form::Sglang } else { Form::Vllm }, can_replay, buffer);
        steps.iter().for_each(|step| world.run(step));
        // The message after which nothing is on its way: it tells of all that was lost before it.
        world.lost = 0;
        world.run(&Step::Compute(vec![9]));
        let all = world.engine.sorted();
        for path in asked.iter().chain(&all) {
            let (claimed, held) = (world.claimed(path), world.engine.matched(path));
            prop_assert!(claimed <= held, "{:?}: {} claimed, {} held", path, claimed, held);
            if can_replay && buffer == usize::MAX {
                prop_assert_eq!(claimed, held, "{:?}: a replay gives all", path);
            }
        }
    }
}
