//! What a listener is told is what the cache holds.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::kv_events::{EngineHash, Event as KvEvent};
use crate::prefix::{token_block, token_chain, token_root};
use crate::testing::config;

const BLOCK: NonZeroU32 = NonZeroU32::new(BLOCK_TOKENS).unwrap();

/// A request for tokens of which those of one `family` share the first 48.
fn request_of(family: u32, member: u32, prompt_tokens: u32, output_tokens: u32) -> Request {
    let id = |place| if place < 48 { family * 1000 + place } else { (family * 10 + member) * 100_000 + place };
    let tokens: Vec<u32> = (0..prompt_tokens + output_tokens).map(id).collect();
    let chain = token_chain(token_root(None, None), &tokens, BLOCK);
    let content = Some(Arc::new(Content { tokens, ..Content::default() }));
    Request { chain, prompt_tokens, output_tokens, content }
}

/// What a listener believes: names and the blocks that they stand for.
#[derive(Default)]
struct Listener {
    held: HashMap<EngineHash, BlockHash>,
    stored: usize,
}

impl Listener {
    fn apply(&mut self, batch: &crate::kv_events::Batch) {
        assert!(!batch.events.is_empty(), "a step without events has no batch");
        for event in &batch.events {
            match event {
                KvEvent::Stored(stored) => {
                    // The parent may have been found under this name in a block that is gone.
                    let mut parent = match stored.parent {
                        Some(parent) => self.held.get(&parent).copied(),
                        None => Some(token_root(None, None)),
                    };
                    let tokens = batch.tokens[stored.tokens.clone()].chunks_exact(BLOCK_TOKENS as usize);
                    assert_eq!(tokens.len(), stored.hashes.len());
                    for (&name, tokens) in batch.hashes[stored.hashes.clone()].iter().zip(tokens) {
                        parent = parent.map(|parent| token_block(parent, tokens, None));
                        let hash = parent.unwrap_or(BlockHash(0));
                        assert_eq!(self.held.insert(name, hash), None, "a block is stored once");
                        self.stored += 1;
                    }
                }
                KvEvent::Removed(removed) => {
                    for name in &batch.hashes[removed.hashes.clone()] {
                        assert!(self.held.remove(name).is_some(), "only what was stored is removed");
                    }
                }
                KvEvent::Cleared => self.held.clear(),
            }
        }
    }

    fn check(&self, engine: &Engine) {
        let names: HashSet<EngineHash> = engine.cached_names().into_iter().collect();
        assert_eq!(self.held.keys().copied().collect::<HashSet<_>>(), names);
        assert_eq!(names.len(), engine.load().cached_blocks);
    }
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn a_naive_listener_knows_what_the_cache_holds(
        steps in prop::collection::vec((0..12u32, 0..3u32, 0..3u32, 1..120u32, 0..60u32, 0..80u64), 1..60),
        capacity in 12..40u32,
    ) {
        let (mut engine, mut listener) = (Engine::new(parameters(capacity, 4)), Listener::default());
        engine.listen(7);
        let (mut now, mut last) = (Moment::ORIGIN, None);
        for (what, family, member, prompt_tokens, output_tokens, wait) in steps {
            match (what, last.take()) {
                (0, _) => engine.clear_cache(),
                (1, Some(id)) => _ = engine.abort(id),
                _ => last = engine.submit(request_of(family, member, prompt_tokens, output_tokens), now).ok(),
            }
            now = now + Duration::from_millis(wait);
            engine.advance(now);
            engine.take_batches().iter().for_each(|batch| listener.apply(batch));
        }
        // A clearing is told with the next step.
        engine.submit(request_of(9, 9, 17, 0), now).unwrap();
        drain(&mut engine);
        engine.take_batches().iter().for_each(|batch| listener.apply(batch));
        prop_assert!(listener.stored > 0);
        listener.check(&engine);
    }
}

#[test]
fn a_step_tells_what_it_removed_before_what_it_stored_and_tails_go_first() {
    let mut engine = Engine::new(parameters(4, 4));
    engine.listen(1);
    engine.submit(request_of(1, 1, 64, 0), millis(0)).unwrap();
    drain(&mut engine);
    let first = engine.take_batches();
    assert_eq!(first.len(), 1, "one step, one batch");
    let KvEvent::Stored(stored) = &first[0].events[0] else { panic!("{first:?}") };
    assert_eq!((stored.parent, stored.hashes.len(), first[0].tokens.len()), (None, 4, 64));
    engine.submit(request_of(2, 1, 40, 0), millis(1000)).unwrap();
    drain(&mut engine);
    let second = engine.take_batches();
    let kinds: Vec<bool> = second[0].events.iter().map(|event| matches!(event, KvEvent::Removed(_))).collect();
    assert_eq!(kinds, [true, true, true, false]);
    let removed: Vec<EngineHash> = second[0].hashes[..3].to_vec();
    assert_eq!(removed, [first[0].hashes[3], first[0].hashes[2], first[0].hashes[1]]);
}

#[test]
fn blocks_filled_by_decoding_hang_on_the_prompt() {
    let mut engine = Engine::new(parameters(10, 4));
    engine.listen(1);
    engine.submit(request_of(1, 1, 20, 30), millis(0)).unwrap();
    drain(&mut engine);
    let batches = engine.take_batches();
    // The last token is never computed, so 49 of 50 are in the cache.
    assert_eq!(batches.len(), 3, "the prompt's block, and two that decoding filled");
    for pair in batches.windows(2) {
        let KvEvent::Stored(stored) = &pair[1].events[0] else { panic!("{pair:?}") };
        assert_eq!(stored.parent, pair[0].hashes.last().copied());
    }
}

#[test]
fn a_clearing_is_told_with_the_next_step_and_what_ran_leaves_nothing() {
    let mut engine = Engine::new(parameters(20, 4));
    engine.listen(1);
    engine.submit(request_of(1, 1, 40, 40), millis(0)).unwrap();
    engine.advance(millis(30));
    engine.take_batches();
    engine.clear_cache();
    assert_eq!((engine.take_batches(), engine.load().cached_blocks), (Vec::new(), 0));
    drain(&mut engine);
    let batches = engine.take_batches();
    assert_eq!((batches.len(), &batches[0].events[..]), (1, &[KvEvent::Cleared][..]), "{batches:?}");
    assert_eq!((engine.load().cached_blocks, engine.load().held_blocks), (0, 0));
    let id = engine.submit(request_of(1, 1, 40, 0), millis(9000)).unwrap();
    assert_eq!(cached_of(&drain(&mut engine), id), 0);
}

#[test]
fn another_process_has_other_names() {
    let names = |seed| {
        let mut engine = Engine::new(parameters(10, 4));
        engine.listen(seed);
        engine.submit(request_of(1, 1, 40, 0), millis(0)).unwrap();
        drain(&mut engine);
        engine.take_batches().remove(0).hashes
    };
    assert_eq!(names(1), names(1));
    assert!(names(1).iter().all(|name| !names(2).contains(name)));
}
