//! The engine and its cache against plain models of them.

use proptest::prelude::*;

use super::*;
use crate::testing::config;

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn one_at_a_time_it_does_what_a_plain_queue_does(
        requests in prop::collection::vec((0..3u64, 0..3u64, 1..120u32, 0..30u32, 0..300u64), 1..30),
        capacity in 10..30u32,
        queue_order in prop_oneof![Just(QueueOrder::FirstCome), Just(QueueOrder::LongestMatch)],
        batching in prop_oneof![Just(Batching::Mixed), Just(Batching::PrefillFirst)],
    ) {
        let mut engine = Engine::new(Parameters { queue_order, batching, ..parameters(capacity, 1) });
        let (mut now, mut waiting) = (Moment::ORIGIN, Vec::new());
        for (family, member, prompt_tokens, output_tokens, wait) in requests {
            now = now + Duration::from_millis(wait);
            let request = request(family, member, prompt_tokens, output_tokens);
            waiting.push((engine.submit(request.clone(), now).unwrap(), request, now));
        }
        let events = drain(&mut engine);
        let mut plain = PlainQueue { cache: PlainCache::new(capacity), free_from: Moment::ORIGIN };
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let place = plain.next(&waiting, queue_order);
            let (id, request, submitted_at) = waiting.remove(place);
            let (cached_tokens, finished_at) = plain.serve(&request, submitted_at);
            order.push(id);
            prop_assert_eq!(cached_of(&events, id), cached_tokens);
            let finished = events.iter().find(|event| event.id == id && event.kind == EventKind::Finished);
            prop_assert_eq!(finished.unwrap().at, finished_at);
        }
        prop_assert_eq!(admitted(&events), order);
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
                    ids.iter().zip(&chain).for_each(|(&id, &hash)| _ = cache.publish(id, hash));
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
    /// The place of the next among requests in the order of their arrival.
    fn next(&self, waiting: &[(RequestId, Request, Moment)], order: QueueOrder) -> usize {
        let at = waiting[0].2.max(self.free_from);
        let mut best = 0;
        for place in 1..waiting.len() {
            let is_longer = self.matched(&waiting[place].1) > self.matched(&waiting[best].1);
            if order == QueueOrder::LongestMatch && waiting[place].2 <= at && is_longer {
                best = place;
            }
        }
        best
    }

    fn matched(&self, request: &Request) -> usize {
        let findable = ((request.prompt_tokens - 1) / BLOCK_TOKENS) as usize;
        self.cache.matched(&request.chain[..findable.min(request.chain.len())])
    }

    fn serve(&mut self, request: &Request, now: Moment) -> (u32, Moment) {
        let timing = Timing::REFERENCE;
        let matched = self.matched(request);
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
