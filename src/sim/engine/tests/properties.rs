//! Whatever is done to a fleet of engines, each request ends once and each block is given back.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::testing::config;

/// More events in one run than any of these has.
const MAX_EVENTS: usize = 1_000_000;

#[derive(Debug, Clone)]
enum Operation {
    Submit { engine: usize, family: u64, member: u64, prompt_tokens: u32, output_tokens: u32 },
    Abort { which: prop::sample::Index },
    Crash { engine: usize },
    Advance { micros: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (0..ENGINES, 0..3u64, 0..4u64, 0..200u32, 0..40u32).prop_map(
            |(engine, family, member, prompt_tokens, output_tokens)| {
                Operation::Submit { engine, family, member, prompt_tokens, output_tokens }
            }
        ),
        3 => any::<prop::sample::Index>().prop_map(|which| Operation::Abort { which }),
        1 => (0..ENGINES).prop_map(|engine| Operation::Crash { engine }),
        9 => (0..120_000u64).prop_map(|micros| Operation::Advance { micros }),
    ]
}

fn manners() -> impl Strategy<Value = (Batching, QueueOrder, Noise)> {
    (
        prop_oneof![Just(Batching::Mixed), Just(Batching::PrefillFirst)],
        prop_oneof![Just(QueueOrder::FirstCome), Just(QueueOrder::LongestMatch)],
        prop_oneof![Just(Noise::default()), Just(Noise { share: 0.2, seed: 5 })],
    )
}

const ENGINES: usize = 3;

/// Engines, and what a caller may conclude from what they told it.
struct Fleet {
    engines: Vec<Engine>,
    is_cache_shared: bool,
    requests: HashMap<(usize, RequestId), Entry>,
    ids: Vec<(usize, RequestId)>,
    last_at: Moment,
}

struct Entry {
    request: Request,
    is_admitted: bool,
    tokens: u32,
    ends: u32,
}

impl Fleet {
    fn new(parameters: Parameters, is_cache_shared: bool) -> Self {
        let cache = Arc::new(Mutex::new(BlockCache::new(parameters.kv_blocks)));
        let engine = |_| match is_cache_shared {
            true => Engine::with_cache(parameters, Arc::clone(&cache)),
            false => Engine::new(parameters),
        };
        Self {
            engines: (0..ENGINES).map(engine).collect(),
            is_cache_shared,
            requests: HashMap::new(),
            ids: Vec::new(),
            last_at: Moment::ORIGIN,
        }
    }

    fn run(&mut self, operations: &[Operation]) {
        let mut now = Moment::ORIGIN;
        for operation in operations {
            match *operation {
                Operation::Submit { engine, family, member, prompt_tokens, output_tokens } => {
                    let request = request(family, member, prompt_tokens, output_tokens);
                    if let Ok(id) = self.engines[engine].submit(request.clone(), now) {
                        self.ids.push((engine, id));
                        let entry = Entry { request, is_admitted: false, tokens: 0, ends: 0 };
                        self.requests.insert((engine, id), entry);
                    }
                }
                Operation::Abort { which } if !self.ids.is_empty() => self.abort(self.ids[which.index(self.ids.len())]),
                Operation::Abort { .. } => {}
                Operation::Crash { engine } => {
                    for id in self.engines[engine].crash() {
                        self.requests.get_mut(&(engine, id)).unwrap().ends += 1;
                    }
                }
                Operation::Advance { micros } => {
                    now = now + Duration::from_micros(micros);
                    self.advance(now);
                }
            }
            self.check();
        }
        self.advance(Moment::from_nanos(u64::MAX));
        self.check();
    }

    fn abort(&mut self, (engine, id): (usize, RequestId)) {
        let entry = self.requests.get_mut(&(engine, id)).unwrap();
        let was_live = self.engines[engine].abort(id);
        assert_eq!(was_live, entry.ends == 0, "what has not ended can be aborted, once");
        entry.ends += u32::from(was_live);
    }

    /// All that is due by `now`, in the order of time.
    fn advance(&mut self, now: Moment) {
        for _ in 0..MAX_EVENTS {
            let due = |engine: &Engine| engine.next_event_at().filter(|&at| at <= now);
            let next = (0..ENGINES).filter_map(|engine| Some((due(&self.engines[engine])?, engine))).min();
            let Some((at, engine)) = next else { return };
            for event in self.engines[engine].advance(at) {
                self.apply(engine, &event);
            }
            let next = self.engines[engine].next_event_at();
            assert!(next.is_none_or(|next| next > at), "nothing that was due is left");
        }
        panic!("the engines go on for ever");
    }

    fn apply(&mut self, engine: usize, event: &Event) {
        assert!(event.at >= self.last_at, "events come in order of time");
        self.last_at = event.at;
        let entry = self.requests.get_mut(&(engine, event.id)).expect("only requests taken in have events");
        assert_eq!(entry.ends, 0, "nothing happens after the end");
        match event.kind {
            EventKind::Admitted { cached_tokens } => {
                assert!(!entry.is_admitted, "admitted once");
                entry.is_admitted = true;
                assert!(cached_tokens < entry.request.prompt_tokens.max(1), "cached tokens are part of the prompt");
            }
            EventKind::Token { index } => {
                assert!(entry.is_admitted && index == entry.tokens, "tokens are counted without gaps");
                entry.tokens += 1;
            }
            EventKind::Finished => {
                assert_eq!(entry.tokens, entry.request.output_tokens, "it finishes with all its tokens");
                entry.ends += 1;
            }
        }
    }

    /// What is counted is what a walk over the sequences counts.
    fn check(&self) {
        let blocks = |engine: &Engine| -> Vec<BlockId> {
            engine.batch.sequences.iter().flat_map(|sequence| sequence.blocks.iter().copied()).collect()
        };
        let all: HashSet<BlockId> = self.engines.iter().flat_map(blocks).collect();
        for engine in &self.engines {
            let held = if self.is_cache_shared { all.clone() } else { blocks(engine).into_iter().collect() };
            assert_eq!(engine.load().held_blocks as usize, held.len(), "a block is held while a request runs on it");
            assert!(engine.load().held_blocks <= engine.parameters.kv_blocks);
            assert!(engine.load().cached_blocks <= engine.parameters.kv_blocks as usize);
            assert!(engine.load().running <= 4, "no more sequences than slots");
            let sequences = &engine.batch.sequences;
            assert_eq!(engine.batch.decoding, sequences.iter().filter(|sequence| sequence.is_decoding()).count());
            let computed = sequences.iter().map(|sequence| u64::from(sequence.computed)).sum::<u64>();
            assert_eq!(engine.batch.kv_tokens, computed);
        }
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn every_request_ends_exactly_once_and_leaves_nothing_behind(
        operations in prop::collection::vec(operation(), 1..100),
        capacity in 1..60u32,
        (batching, queue_order, noise) in manners(),
        is_cache_shared in any::<bool>(),
    ) {
        let parameters = Parameters { batching, queue_order, noise, ..parameters(capacity, 4) };
        let mut fleet = Fleet::new(parameters, is_cache_shared);
        fleet.run(&operations);
        prop_assert!(fleet.requests.values().all(|entry| entry.ends == 1), "each finished, was aborted or was lost");
        for (place, engine) in fleet.engines.iter().enumerate() {
            let load = engine.load();
            prop_assert_eq!((load.held_blocks, load.running, load.waiting), (0, 0, 0));
            let totals = engine.totals();
            let own = || fleet.requests.iter().filter(|((engine, _), _)| *engine == place).map(|(_, entry)| entry);
            prop_assert_eq!(totals.submitted, own().count() as u64);
            prop_assert_eq!(totals.finished + totals.aborted, totals.submitted);
            prop_assert_eq!(totals.generated_tokens, own().map(|entry| u64::from(entry.tokens)).sum::<u64>());
            let known = totals.cached_tokens + totals.computed_tokens;
            prop_assert!(known <= totals.queried_tokens, "no prompt token is both found and computed");
            prop_assert!(totals.aborted > 0 || known == totals.queried_tokens, "and each is one of the two");
        }
    }
}
