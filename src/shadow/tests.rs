//! Behaviour of a pool's shadow as a whole.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::locality::{LocalityIndex, Matches, Tenant};
use crate::pool::{LoadView, OtherRouters};
use crate::prefix::BlockHash;
use crate::testing::config;

pub(super) const BLOCK_TOKENS: u64 = 16;

/// An idle candidate that holds nothing and prefills at `rate`.
pub(super) fn candidate(index: usize, rate: f64) -> Candidate {
    Candidate {
        index,
        identity: index as u64 + 100,
        matched_tokens: 0,
        load: LoadView::IDLE,
        rate,
        others: OtherRouters::default(),
        engine: EngineState::default(),
    }
}

/// A shadow, and the real policy that it follows: in turn unless a test says otherwise.
struct Fixture {
    memory: Arc<ShadowMemory>,
    shadow: Shadow,
    candidates: Vec<Candidate>,
    now: Moment,
}

impl Fixture {
    fn new(backends: usize, capacity_blocks: u32) -> Self {
        let memory = Arc::new(ShadowMemory::new(16 << 20, 1));
        let shadow = Shadow::new(Arc::clone(&memory));
        let candidates: Vec<_> = (0..backends).map(|index| candidate(index, 8_000.0)).collect();
        let fixture = Self { memory, shadow, candidates, now: Moment::ORIGIN };
        fixture.set_backends(&fixture.backends(capacity_blocks));
        fixture
    }

    fn backends(&self, capacity_blocks: u32) -> Vec<ShadowBackend> {
        let backend = |candidate: &Candidate| ShadowBackend {
            identity: candidate.identity,
            tenant: Tenant { slot: candidate.index as u32, generation: 1 },
            capacity_blocks,
        };
        self.candidates.iter().map(backend).collect()
    }

    /// The policy in force is another than `cost`.
    fn set_backends(&self, backends: &[ShadowBackend]) {
        self.shadow.set_backends(backends, PolicyKind::RoundRobin);
    }

    /// A request for `chosen` with this prompt, `millis` after the one before.
    fn send(&mut self, chain: &[BlockHash], chosen: usize, millis: u64) -> Option<ShadowInFlight> {
        self.now = self.now + Duration::from_millis(millis);
        let tokens = chain.len() as u64 * BLOCK_TOKENS;
        let prompts = [Prompt { blocks: chain, tokens, tokens_per_block: BLOCK_TOKENS as f64 }];
        let query = Query { prompt_tokens: tokens as u32, ..Query::default() };
        let (candidates, cost) = (&self.candidates, CostModel::default());
        self.shadow.replay(&Replay { prompts: &prompts, query, candidates, chosen, cost }, self.now)
    }

    fn totals(&self, policy: ShadowPolicy) -> Totals {
        self.shadow.totals()[policy as usize].1
    }

    /// Requests in flight under `least_request` and under `cost`, summed over backends.
    fn in_flight(&self) -> [u32; 2] {
        let mut state = self.shadow.state.lock();
        let least_request = state.sites.iter().map(Site::in_flight).sum();
        let loads =
            state.sites.iter_mut().zip(&self.candidates).map(|(site, seen)| site.load(seen, self.now).in_flight);
        [least_request, loads.sum()]
    }
}

/// `shared` blocks of one kind, then `own` blocks of a conversation.
pub(super) fn chain(kind: u64, shared: usize, conversation: u64, own: usize) -> Vec<BlockHash> {
    let labels = std::iter::repeat_n(kind, shared).chain(std::iter::repeat_n(1 << 32 | conversation, own));
    let next = |parent: &mut u64, label: u64| {
        *parent = (*parent ^ label).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 1;
        Some(BlockHash(*parent))
    };
    labels.scan(0, next).collect()
}

#[test]
fn all_policies_see_the_same_requests_and_cost_finds_more() {
    // 25 documents, of which a cache holds about 8: in turn, each backend sees all of them.
    let mut fixture = Fixture::new(4, 8 * 704);
    for request in 0..200_u64 {
        let prompt = chain(request % 25, 640, request, 64);
        drop(fixture.send(&prompt, request as usize % 4, 400));
    }
    let all = ShadowPolicy::ALL.map(|policy| fixture.totals(policy));
    assert!(all.iter().all(|totals| (totals.requests, totals.prompt_tokens) == (200, 200 * 704 * 16)), "{all:?}");
    let [actual, cost, least_request, round_robin] = all;
    assert_eq!(actual, round_robin, "the real policy goes in turn as well");
    assert!(cost.cached_tokens > 2 * round_robin.cached_tokens, "{cost:?} against {round_robin:?}");
    assert!(cost.ttft_seconds * 2.0 < round_robin.ttft_seconds, "{cost:?} against {round_robin:?}");
    assert!(cost.cached_tokens > least_request.cached_tokens, "{cost:?} against {least_request:?}");
}

#[test]
fn actual_follows_the_real_decision() {
    let mut fixture = Fixture::new(3, 4_000);
    let prompt = chain(1, 80, 0, 0);
    drop(fixture.send(&prompt, 2, 0));
    drop(fixture.send(&prompt, 1, 10_000));
    assert_eq!(fixture.totals(ShadowPolicy::Actual).cached_tokens, 0, "it was at another backend");
    drop(fixture.send(&prompt, 2, 10_000));
    let tokens = 80 * BLOCK_TOKENS - 1;
    assert_eq!(fixture.totals(ShadowPolicy::Actual).cached_tokens, tokens, "all but the last token, which is computed");
}

#[test]
fn the_prompts_of_a_batch_count_together() {
    let fixture = Fixture::new(1, 4_000);
    let (first, second) = (chain(1, 80, 0, 0), chain(2, 40, 0, 0));
    let prompt = |blocks| Prompt { blocks, tokens: 1_500, tokens_per_block: 16.0 };
    let send = |prompts: &[Prompt<'_>]| {
        let query = Query { prompt_tokens: 1_500 * prompts.len() as u32, ..Query::default() };
        let (candidates, cost) = (&fixture.candidates, CostModel::default());
        drop(fixture.shadow.replay(&Replay { prompts, query, candidates, chosen: 0, cost }, Moment::ORIGIN));
        fixture.totals(ShadowPolicy::Actual)
    };
    send(&[prompt(&first)]);
    send(&[prompt(&second)]);
    let both = send(&[prompt(&second), prompt(&first)]);
    assert_eq!((both.requests, both.prompt_tokens, both.cached_tokens), (3, 6_000, (80 + 40) * 16));
}

#[test]
fn least_request_goes_by_what_is_in_flight_until_the_real_request_ends() {
    let mut fixture = Fixture::new(3, 4_000);
    let prompt = chain(1, 80, 0, 0);
    let held: Vec<_> = (0..3).map(|_| fixture.send(&prompt, 0, 10_000)).collect();
    assert_eq!(fixture.in_flight(), [3; 2]);
    let least = |fixture: &Fixture| fixture.totals(ShadowPolicy::LeastRequest).cached_tokens;
    assert_eq!(least(&fixture), 0, "each was at a backend of its own");
    drop(fixture.send(&prompt, 0, 10_000));
    assert!(least(&fixture) > 0, "all have one, so one of them is used again");
    drop(held);
    assert_eq!(fixture.in_flight(), [0; 2]);
}

#[test]
fn round_robin_gives_every_backend_its_share() {
    let mut fixture = Fixture::new(3, 4_000);
    for request in 0..30 {
        drop(fixture.send(&chain(request % 3, 80, 0, 0), 0, 10_000));
    }
    let cached = [ShadowPolicy::Actual, ShadowPolicy::RoundRobin].map(|policy| fixture.totals(policy).cached_tokens);
    assert_eq!(cached, [27 * (80 * BLOCK_TOKENS - 1); 2], "each backend has the prompt that comes in its turn");
}

#[test]
fn a_request_without_prompt_or_for_an_unknown_backend_is_not_replayed() {
    let mut fixture = Fixture::new(2, 4_000);
    assert!(fixture.send(&[], 0, 0).is_none());
    assert!(fixture.send(&chain(1, 80, 0, 0), 7, 0).is_none());
    fixture.candidates[1].identity = 9;
    assert!(fixture.send(&chain(1, 80, 0, 0), 1, 0).is_none(), "it has left the pool");
    assert_eq!(fixture.shadow.totals().map(|(_, totals)| totals), [Totals::default(); 4]);
    assert!(fixture.send(&chain(1, 80, 0, 0), 0, 0).is_some(), "the other is still there");
    let all = ShadowPolicy::ALL.map(|policy| fixture.totals(policy).requests);
    assert_eq!(all, [1; 4], "and all policies use it");
}

#[test]
fn backends_are_found_in_an_older_order_of_the_pool() {
    let mut fixture = Fixture::new(3, 4_000);
    let prompt = chain(1, 80, 0, 0);
    drop(fixture.send(&prompt, 2, 0));
    let mut turned = fixture.backends(4_000);
    turned.rotate_left(1);
    fixture.set_backends(&turned);
    drop(fixture.send(&prompt, 2, 10_000));
    assert!(fixture.totals(ShadowPolicy::Actual).cached_tokens > 0, "it is the same backend at another place");
}

#[test]
fn a_restart_empties_one_backends_caches_and_queue() {
    let mut fixture = Fixture::new(2, 4_000);
    let prompt = chain(1, 768, 0, 0);
    let held = [fixture.send(&prompt, 0, 0), fixture.send(&prompt, 1, 0)];
    let cached = |fixture: &Fixture| fixture.totals(ShadowPolicy::Actual).cached_tokens;
    let mut backends = fixture.backends(4_000);
    backends[0].tenant.generation = 2;
    fixture.set_backends(&backends);
    let waited = fixture.totals(ShadowPolicy::Actual).ttft_seconds;
    drop(fixture.send(&prompt, 0, 0));
    assert_eq!(cached(&fixture), 0, "its cache is gone");
    let waited = fixture.totals(ShadowPolicy::Actual).ttft_seconds - waited;
    assert!((waited - 768.0 * 16.0 / 8_000.0).abs() < 1e-9, "nothing was ahead: {waited}");
    drop(fixture.send(&prompt, 1, 0));
    assert_eq!(cached(&fixture), 768 * 16 - 1, "the other's is not");
    drop(held);
    assert_eq!(fixture.in_flight(), [0; 2], "what was in flight has ended once");
}

#[test]
fn nothing_is_left_of_backends_that_are_removed() {
    let mut fixture = Fixture::new(3, 4_000);
    let held: Vec<_> = (0..9).map(|request| fixture.send(&chain(request, 80, 0, 0), request as usize % 3, 1)).collect();
    assert!(fixture.memory.used_bytes() > 0);
    let backends = fixture.backends(4_000);
    fixture.set_backends(&backends[1..]);
    fixture.set_backends(&backends);
    drop(fixture.send(&chain(0, 80, 0, 0), 0, 10_000));
    assert_eq!(fixture.totals(ShadowPolicy::Actual).cached_tokens, 0, "one that is back begins anew");
    fixture.set_backends(&[]);
    drop(held);
    assert_eq!(fixture.memory.used_bytes(), 0);
}

#[test]
fn a_dropped_shadow_gives_its_memory_back() {
    let mut fixture = Fixture::new(3, 4_000);
    let held = fixture.send(&chain(1, 80, 0, 0), 0, 0);
    let Fixture { memory, shadow, .. } = fixture;
    drop((shadow, held));
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn caches_have_the_engines_size() {
    let mut fixture = Fixture::new(1, 160);
    let (first, second) = (chain(1, 80, 0, 0), chain(2, 120, 0, 0));
    drop(fixture.send(&first, 0, 0));
    drop(fixture.send(&second, 0, 10_000));
    drop(fixture.send(&first, 0, 10_000));
    let cached = fixture.totals(ShadowPolicy::Actual).cached_tokens;
    assert!(cached.abs_diff(40 * BLOCK_TOKENS) < 8 * BLOCK_TOKENS, "of 160 blocks the second has taken 120: {cached}");
    fixture.set_backends(&fixture.backends(80));
    drop(fixture.send(&second, 0, 10_000));
    assert_eq!(fixture.totals(ShadowPolicy::Actual).cached_tokens, cached, "with 80 only the last one is left");
}

#[test]
fn where_cost_is_in_force_it_gets_what_really_happens() {
    let mut fixture = Fixture::new(3, 4_000);
    let prompt = chain(1, 80, 0, 0);
    let both = |fixture: &Fixture| [ShadowPolicy::Actual, ShadowPolicy::Cost].map(|policy| fixture.totals(policy));
    let backends = fixture.backends(4_000);
    fixture.shadow.set_backends(&backends, PolicyKind::Cost);
    for chosen in [0, 0, 1] {
        let held = fixture.send(&prompt, chosen, 10_000);
        assert_eq!(fixture.in_flight(), [1, 0], "nothing has to be known of it");
        drop(held);
    }
    let [actual, cost] = both(&fixture);
    assert_eq!((actual, actual.cached_tokens), (cost, 80 * BLOCK_TOKENS - 1));

    fixture.set_backends(&backends);
    drop(fixture.send(&prompt, 2, 10_000));
    let [actual, cost] = both(&fixture);
    assert_eq!((actual.requests, actual.cached_tokens), (4, 80 * BLOCK_TOKENS - 1), "another policy leaves the cache");
    assert_eq!((cost.requests, cost.cached_tokens), (4, 2 * (80 * BLOCK_TOKENS - 1)), "cost would have gone on");

    fixture.shadow.set_backends(&backends, PolicyKind::Cost);
    drop(fixture.send(&prompt, 2, 10_000));
    assert_eq!(both(&fixture).map(|totals| totals.requests), [5; 2]);
    assert_eq!(both(&fixture).map(|totals| totals.cached_tokens / (80 * BLOCK_TOKENS - 1)), [2, 3], "counters go on");
}

#[test]
fn memory_is_bounded_and_what_there_is_goes_to_all_policies_alike() {
    let mut fixture = Fixture::new(2, 1 << 20);
    fixture.memory = Arc::new(ShadowMemory::new(20 << 10, 1));
    fixture.shadow = Shadow::new(Arc::clone(&fixture.memory));
    fixture.set_backends(&fixture.backends(1 << 20));
    for request in 0..4_000 {
        drop(fixture.send(&chain(1 + request / 4 % 500, 60, 0, 0), request as usize % 2, 1));
        assert!(fixture.memory.used_bytes() <= 20 << 10);
    }
    assert!(fixture.memory.used_bytes() > 10 << 10);
    let [actual, round_robin] = [ShadowPolicy::Actual, ShadowPolicy::RoundRobin].map(|policy| fixture.totals(policy));
    assert_eq!(actual, round_robin);
    let most = 4_000 / 2 * 60 * BLOCK_TOKENS;
    assert!((most / 2..=most).contains(&actual.cached_tokens), "the last prompts are known: {actual:?}");
}

proptest! {
    #![proptest_config(config(64))]

    /// Against an index of all blocks, fed with the same prompts.
    #[test]
    fn no_request_is_off_by_more_than_a_sixteenth_or_seven_blocks(
        requests in prop::collection::vec((0..4_u64, 0..60_usize, 0..3_u64, 1..600_usize), 1..40),
    ) {
        let mut fixture = Fixture::new(1, 1 << 20);
        let whole = LocalityIndex::new(16 << 20, 1);
        let (tenant, mut matches) = (whole.join(1 << 20), Matches::new());
        let mut off = Vec::new();
        for (kind, shared, conversation, own) in requests {
            let prompt = chain(kind, shared, conversation, own);
            whole.lookup(&prompt, &mut matches);
            let expected = u64::from(matches.blocks(tenant)) * BLOCK_TOKENS;
            whole.insert(tenant, &prompt);
            let before = fixture.totals(ShadowPolicy::Actual).cached_tokens;
            drop(fixture.send(&prompt, 0, 1));
            let found = fixture.totals(ShadowPolicy::Actual).cached_tokens - before;
            let most = (7 * BLOCK_TOKENS).max(expected / 16 + 1);
            if found.abs_diff(expected) > most {
                off.push((found, expected));
            }
        }
        prop_assert!(off.len() <= 1, "{off:?}: more than the table may lose");
    }

    /// Whatever comes and goes: counts return to zero, totals agree, and the same happens again.
    #[test]
    fn counts_return_to_zero_and_the_same_traffic_gives_the_same_totals(
        steps in prop::collection::vec((0..6_u64, 0..4_usize, 0..500_u64, 0..4_usize, 0..8_u8), 1..60),
    ) {
        let run = || {
            let mut fixture = Fixture::new(4, 800);
            let mut held = Vec::new();
            for &(kind, chosen, millis, ending, event) in &steps {
                held.push(fixture.send(&chain(kind, 100, millis, 20), chosen, millis));
                if event == 0 {
                    let mut backends = fixture.backends(400 + millis as u32);
                    backends[chosen].tenant.generation = 2 + millis as u32;
                    fixture.set_backends(&backends);
                }
                if ending < held.len() {
                    held.swap_remove(ending);
                }
            }
            let in_flight = fixture.in_flight();
            assert_eq!(in_flight, [held.len() as u32; 2], "every request is in flight once in each shadow");
            drop(held);
            assert_eq!(fixture.in_flight(), [0; 2]);
            fixture.shadow.totals()
        };
        let totals = run();
        let counts: BTreeSet<_> = totals.iter().map(|(_, totals)| (totals.requests, totals.prompt_tokens)).collect();
        prop_assert_eq!(counts.len(), 1, "all replay the same");
        prop_assert_eq!(totals, run());
    }
}
