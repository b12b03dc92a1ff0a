use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use crate::testing::config;

use super::*;
use crate::prefix::BlockHash;

const BLOCK_TOKENS: u32 = 16;

fn parameters(kv_blocks: u32, max_num_seqs: usize) -> Parameters {
    Parameters {
        timing: Timing::REFERENCE,
        block_tokens: BLOCK_TOKENS,
        kv_blocks,
        max_num_seqs,
        step_tokens: 64,
        max_waiting: 1000,
        batching: Batching::Mixed,
        queue_order: QueueOrder::FirstCome,
        noise: Noise::default(),
    }
}

/// Chains of one `family` share their first `shared` blocks.
fn chain(family: u64, member: u64, shared: usize, blocks: usize) -> Vec<BlockHash> {
    let name = |place| if place < shared { family } else { (family + 1) * 1000 + member };
    (0..blocks).map(|place| BlockHash(name(place) << 32 | place as u64)).collect()
}

fn request(family: u64, member: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let blocks = ((prompt_tokens + output_tokens) / BLOCK_TOKENS) as usize;
    Request { chain: chain(family, member, 3, blocks), prompt_tokens, output_tokens }
}

fn millis(count: u64) -> Moment {
    Moment::at(Duration::from_millis(count))
}

/// Runs until nothing is left to do.
fn drain(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(at) = engine.next_event_at() {
        events.extend(engine.advance(at));
    }
    events
}

fn cached_of(events: &[Event], id: RequestId) -> u32 {
    let admitted = |event: &&Event| event.id == id && matches!(event.kind, EventKind::Admitted { .. });
    match events.iter().find(admitted).expect("the request was admitted").kind {
        EventKind::Admitted { cached_tokens } => cached_tokens,
        _ => unreachable!(),
    }
}

// === one engine ===

#[test]
fn a_request_gets_its_first_token_after_its_prefill_and_then_one_a_step() {
    let mut engine = Engine::new(parameters(100, 8));
    let id = engine.submit(request(1, 1, 100, 3), millis(5)).unwrap();
    let events = drain(&mut engine);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    let token = |index| EventKind::Token { index };
    assert_eq!(
        kinds,
        [EventKind::Admitted { cached_tokens: 0 }, token(0), token(1), token(2), EventKind::Finished],
        "a request is admitted, gives its tokens, finishes"
    );
    let step = |prefill, kv| Timing::REFERENCE.step(prefill, 1, kv);
    // 100 tokens with a budget of 64: two chunks.
    let first = millis(5)
        + step(Timing::REFERENCE.prefill_seconds(0, 64), 0)
        + step(Timing::REFERENCE.prefill_seconds(64, 100), 64);
    assert_eq!(events[1].at, first);
    assert_eq!(events[2].at, first + step(0.0, 100));
    assert!(events.iter().all(|event| event.id == id));
    assert_eq!(engine.totals().generated_tokens, 3);
}

#[test]
fn the_next_turn_finds_the_prompt_and_the_answer_of_the_last() {
    let mut engine = Engine::new(parameters(100, 8));
    let first = Request { chain: chain(1, 1, 99, 6), prompt_tokens: 70, output_tokens: 27 };
    engine.submit(first, millis(0)).unwrap();
    drain(&mut engine);
    let second = Request { chain: chain(1, 1, 99, 8), prompt_tokens: 130, output_tokens: 1 };
    let id = engine.submit(second, millis(9000)).unwrap();
    let events = drain(&mut engine);
    assert_eq!(
        cached_of(&events, id),
        96,
        "70 + 27 tokens fill six blocks, of which all are computed but the last token"
    );
}

#[test]
fn a_prompt_that_is_cached_whole_still_computes_its_last_token() {
    let mut engine = Engine::new(parameters(100, 8));
    for _ in 0..2 {
        engine.submit(request(1, 1, 64, 1), millis(0)).unwrap();
        drain(&mut engine);
    }
    let id = engine.submit(request(1, 1, 64, 1), millis(9000)).unwrap();
    assert_eq!(cached_of(&drain(&mut engine), id), 48, "three of four blocks");
}

#[test]
fn the_cache_forgets_the_least_recently_used_first_and_tails_before_heads() {
    let mut engine = Engine::new(parameters(12, 8));
    let prompt = |family| Request { chain: chain(family, 0, 99, 4), prompt_tokens: 64, output_tokens: 0 };
    for (turn, family) in [1, 2, 3, 1].into_iter().enumerate() {
        engine.submit(prompt(family), millis(turn as u64 * 1000)).unwrap();
        drain(&mut engine);
    }
    // 12 blocks: families 1, 2 and 3 filled the cache, and 1 was used again. Six more blocks push out 2 and half of 3.
    let other = Request { chain: chain(7, 0, 99, 6), prompt_tokens: 96, output_tokens: 0 };
    engine.submit(other, millis(9000)).unwrap();
    drain(&mut engine);
    let matched: Vec<usize> = [1, 2, 3, 7].iter().map(|&f| engine.matched_blocks(&prompt(f).chain)).collect();
    assert_eq!(matched, [4, 0, 2, 4], "what was used again stays, the oldest goes whole, the next from its tail");
}

#[test]
fn a_request_waits_for_blocks_and_for_a_sequence_slot_in_order() {
    let mut engine = Engine::new(parameters(8, 2));
    let large = engine.submit(request(1, 1, 90, 6), millis(0)).unwrap(); // 6 of 8 blocks
    let next = engine.submit(request(2, 1, 60, 4), millis(0)).unwrap(); // 4: must wait
    let small = engine.submit(request(3, 1, 10, 4), millis(0)).unwrap(); // 1: fits, but it is not its turn
    engine.advance(millis(0));
    assert_eq!((engine.load().running, engine.load().waiting), (1, 2), "first come, first served, without overtaking");
    let finished: Vec<RequestId> =
        drain(&mut engine).iter().filter(|event| event.kind == EventKind::Finished).map(|event| event.id).collect();
    assert_eq!(finished[0], large);
    assert!(finished.contains(&next) && finished.contains(&small));
}

#[test]
fn an_abort_frees_the_queue_at_once_and_the_batch_at_the_end_of_the_step() {
    let mut engine = Engine::new(parameters(8, 1));
    let running = engine.submit(request(1, 1, 90, 6), millis(0)).unwrap();
    let waiting = engine.submit(request(2, 1, 60, 4), millis(0)).unwrap();
    engine.advance(millis(1));
    assert!(engine.abort(waiting) && engine.abort(running));
    assert!(!engine.abort(waiting) && !engine.abort(running), "a second abort has nothing to do");
    assert_eq!((engine.load().waiting, engine.load().running), (0, 1), "the chunk in progress is finished");
    assert_eq!(engine.load().held_blocks, 6);
    assert_eq!(drain(&mut engine), [], "an aborted request says nothing more");
    assert_eq!((engine.load().running, engine.load().held_blocks), (0, 0));
    assert_eq!((engine.totals().aborted, engine.totals().finished), (2, 0));
}

#[test]
fn what_cannot_fit_is_refused_and_the_queue_is_bounded() {
    let mut engine = Engine::new(Parameters { max_waiting: 2, ..parameters(8, 1) });
    assert_eq!(engine.submit(request(1, 1, 100, 29), millis(0)), Err(Rejected::TooLong { limit_tokens: 128 }));
    assert!(engine.submit(request(1, 1, 100, 28), millis(0)).is_ok());
    assert!(engine.submit(request(1, 2, 1, 1), millis(0)).is_ok());
    assert_eq!(engine.submit(request(1, 3, 1, 1), millis(0)), Err(Rejected::QueueFull));
    assert_eq!(engine.totals().rejected, 1);
}

#[test]
fn a_slowdown_stretches_the_steps_that_follow() {
    let time_of = |factor| {
        let mut engine = Engine::new(parameters(100, 8));
        engine.set_slowdown(factor);
        engine.submit(request(1, 1, 60, 5), Moment::ORIGIN).unwrap();
        drain(&mut engine).last().unwrap().at.since(Moment::ORIGIN).as_secs_f64()
    };
    assert!((time_of(3.0) / time_of(1.0) - 3.0).abs() < 1e-6);
}

#[test]
fn requests_in_a_batch_decode_together() {
    let mut engine = Engine::new(Parameters { step_tokens: 2048, ..parameters(1000, 64) });
    for member in 0..32 {
        engine.submit(request(member, member, 30, 50), Moment::ORIGIN).unwrap();
    }
    let last = drain(&mut engine).last().unwrap().at.since(Moment::ORIGIN);
    assert!(last < Duration::from_millis(1100), "32 requests of 50 tokens took {last:?}, 50 steps of about 16 ms");
}

// === properties ===

#[derive(Debug, Clone)]
enum Operation {
    Submit { family: u64, member: u64, prompt_tokens: u32, output_tokens: u32 },
    Abort { which: prop::sample::Index },
    Advance { micros: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..3u64, 0..4u64, 0..200u32, 0..40u32).prop_map(|(family, member, prompt_tokens, output_tokens)| {
            Operation::Submit { family, member, prompt_tokens, output_tokens }
        }),
        1 => any::<prop::sample::Index>().prop_map(|which| Operation::Abort { which }),
        3 => (0..120_000u64).prop_map(|micros| Operation::Advance { micros }),
    ]
}

/// What a caller may conclude from what an engine told it.
#[derive(Default)]
struct Ledger {
    requests: HashMap<RequestId, Entry>,
    last_at: Moment,
}

struct Entry {
    request: Request,
    is_admitted: bool,
    tokens: u32,
    ends: u32,
}

impl Ledger {
    fn apply(&mut self, events: &[Event]) {
        for event in events {
            assert!(event.at >= self.last_at, "events come in order of time");
            self.last_at = event.at;
            let entry = self.requests.get_mut(&event.id).expect("only requests taken in have events");
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
    }
}

fn run(engine: &mut Engine, operations: &[Operation], capacity: u32) -> Ledger {
    let (mut ledger, mut now, mut ids) = (Ledger::default(), Moment::ORIGIN, Vec::new());
    for operation in operations {
        match operation {
            Operation::Submit { family, member, prompt_tokens, output_tokens } => {
                let request = request(*family, *member, *prompt_tokens, *output_tokens);
                if let Ok(id) = engine.submit(request.clone(), now) {
                    ids.push(id);
                    ledger.requests.insert(id, Entry { request, is_admitted: false, tokens: 0, ends: 0 });
                }
            }
            Operation::Abort { which } if !ids.is_empty() => {
                let entry = ledger.requests.get_mut(&ids[which.index(ids.len())]).unwrap();
                let was_live = engine.abort(ids[which.index(ids.len())]);
                assert_eq!(was_live, entry.ends == 0, "what has not ended can be aborted, once");
                entry.ends += u32::from(was_live);
            }
            Operation::Abort { .. } => {}
            Operation::Advance { micros } => {
                now = now + Duration::from_micros(*micros);
                ledger.apply(&engine.advance(now));
                assert!(engine.next_event_at().is_none_or(|at| at > now), "nothing that is due is left");
            }
        }
        assert!(engine.load().held_blocks <= capacity && engine.load().cached_blocks <= capacity as usize);
        assert!(engine.load().running <= 4, "no more sequences than slots");
    }
    ledger.apply(&drain(engine));
    ledger
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn every_request_ends_exactly_once_and_leaves_nothing_behind(
        operations in prop::collection::vec(operation(), 1..80),
        capacity in 1..40u32,
    ) {
        let mut engine = Engine::new(parameters(capacity, 4));
        let ledger = run(&mut engine, &operations, capacity);
        prop_assert!(ledger.requests.values().all(|entry| entry.ends == 1), "each finished or was aborted");
        prop_assert_eq!(engine.load().held_blocks, 0);
        prop_assert_eq!((engine.load().running, engine.load().waiting), (0, 0));
        let totals = engine.totals();
        prop_assert_eq!(totals.submitted, ledger.requests.len() as u64);
        prop_assert_eq!(totals.finished + totals.aborted, totals.submitted);
        prop_assert!(totals.cached_tokens <= totals.queried_tokens);
        let tokens: u64 = ledger.requests.values().map(|entry| u64::from(entry.tokens)).sum();
        prop_assert_eq!(totals.generated_tokens, tokens);
    }

    #[test]
    fn one_at_a_time_it_does_what_a_plain_queue_does(
        requests in prop::collection::vec((0..3u64, 0..3u64, 1..120u32, 0..30u32, 0..300u64), 1..30),
        capacity in 10..30u32,
    ) {
        let mut engine = Engine::new(parameters(capacity, 1));
        let mut plain = PlainQueue { cache: PlainCache::new(capacity), free_from: Moment::ORIGIN };
        let (mut now, mut expected) = (Moment::ORIGIN, Vec::new());
        for (family, member, prompt_tokens, output_tokens, wait) in requests {
            now = now + Duration::from_millis(wait);
            let request = request(family, member, prompt_tokens, output_tokens);
            let id = engine.submit(request.clone(), now).unwrap();
            let (cached_tokens, finished_at) = plain.serve(&request, now);
            expected.push((id, cached_tokens, finished_at));
        }
        let events = drain(&mut engine);
        for (id, cached_tokens, finished_at) in expected {
            prop_assert_eq!(cached_of(&events, id), cached_tokens);
            let finished = events.iter().find(|event| event.id == id && event.kind == EventKind::Finished);
            prop_assert_eq!(finished.unwrap().at, finished_at);
        }
    }

    #[test]
    fn the_cache_does_what_a_list_in_order_of_use_does(
        steps in prop::collection::vec((0..4u64, 0..3u64, 1..9usize, any::<prop::sample::Index>()), 1..120),
        capacity in 1..24u32,
    ) {
        let (mut cache, mut plain) = (BlockCache::new(capacity), PlainCache::new(capacity));
        let mut held: Vec<(Vec<BlockId>, Vec<usize>)> = Vec::new();
        for (family, member, blocks, which) in steps {
            let chain = chain(family, member, 2, blocks);
            prop_assert_eq!(cache.matched(&chain), plain.matched(&chain));
            match (cache.take(&chain, blocks as u32), plain.take(&chain)) {
                (Some(ids), Some(places)) => {
                    ids.iter().zip(&chain).for_each(|(&id, &hash)| cache.publish(id, hash));
                    plain.publish(&places, &chain);
                    held.push((ids, places));
                }
                (None, None) => {}
                (ours, theirs) => prop_assert!(false, "one had room and the other not: {ours:?} {theirs:?}"),
            }
            if which.index(3) > 0 && !held.is_empty() {
                let (ids, places) = held.swap_remove(which.index(held.len()));
                cache.release(&ids);
                plain.release(&places);
            }
            prop_assert_eq!(cache.held() as usize, plain.blocks.iter().filter(|block| block.1 > 0).count());
            prop_assert_eq!(cache.cached(), plain.blocks.iter().filter(|block| block.0.is_some()).count());
        }
    }
}

// === plain models ===

/// Blocks as (hash, references), and the free ones in the order in which they will be taken.
struct PlainCache {
    blocks: Vec<(Option<BlockHash>, u32)>,
    order: Vec<usize>,
}

impl PlainCache {
    fn new(capacity: u32) -> Self {
        Self { blocks: vec![(None, 0); capacity as usize], order: (0..capacity as usize).collect() }
    }

    fn find(&self, hash: BlockHash) -> Option<usize> {
        self.blocks.iter().position(|block| block.0 == Some(hash))
    }

    fn matched(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|&&hash| self.find(hash).is_some()).count()
    }

    fn take(&mut self, chain: &[BlockHash]) -> Option<Vec<usize>> {
        let mut places: Vec<usize> = chain.iter().map_while(|&hash| self.find(hash)).collect();
        let free_after = self.order.iter().filter(|place| !places.contains(place)).count();
        if chain.len() - places.len() > free_after {
            return None;
        }
        self.order.retain(|place| !places.contains(place));
        let fresh = chain.len() - places.len();
        for place in self.order.drain(..fresh) {
            self.blocks[place].0 = None;
            places.push(place);
        }
        places.iter().for_each(|&place| self.blocks[place].1 += 1);
        Some(places)
    }

    fn publish(&mut self, places: &[usize], chain: &[BlockHash]) {
        for (&place, &hash) in places.iter().zip(chain) {
            if self.find(hash).is_none() {
                self.blocks[place].0 = Some(hash);
            }
        }
    }

    fn release(&mut self, places: &[usize]) {
        for &place in places.iter().rev() {
            self.blocks[place].1 -= 1;
            if self.blocks[place].1 == 0 {
                let at = if self.blocks[place].0.is_some() { self.order.len() } else { 0 };
                self.order.insert(at, place);
            }
        }
    }
}

/// Serves one request after the other.
struct PlainQueue {
    cache: PlainCache,
    free_from: Moment,
}

impl PlainQueue {
    fn serve(&mut self, request: &Request, now: Moment) -> (u32, Moment) {
        let timing = Timing::REFERENCE;
        let findable = ((request.prompt_tokens - 1) / BLOCK_TOKENS) as usize;
        let matched = self.cache.matched(&request.chain[..findable.min(request.chain.len())]);
        let mut at = now.max(self.free_from);
        let mut computed = matched as u32 * BLOCK_TOKENS;
        while computed < request.prompt_tokens {
            let next = request.prompt_tokens.min(computed + 64);
            at = at + timing.step(timing.prefill_seconds(computed, next), 1, u64::from(computed));
            computed = next;
        }
        for _ in 1..request.output_tokens {
            at = at + timing.step(0.0, 1, u64::from(computed));
            computed += 1;
        }
        self.hold(request, matched, computed);
        self.free_from = at;
        (matched as u32 * BLOCK_TOKENS, at)
    }

    /// Takes the blocks, makes the computed ones findable, gives all back.
    fn hold(&mut self, request: &Request, matched: usize, computed: u32) {
        let total = (request.prompt_tokens + request.output_tokens).div_ceil(BLOCK_TOKENS) as usize;
        // Places that are not matched are named by hashes that nothing else has.
        let mut chain = request.chain[..matched].to_vec();
        chain.extend((matched..total).map(|place| BlockHash(u64::MAX - place as u64)));
        let places = self.cache.take(&chain).expect("an idle cache has room for any request that fits");
        let full = (computed / BLOCK_TOKENS) as usize;
        self.cache.publish(&places[..full], &request.chain[..full]);
        self.cache.release(&places);
    }
}
