//! A small simulation in virtual time: the parts of a decision together, over some hundred requests that depend on each
//! other's outcomes. Engines prefill first come, first served, keep whole prefixes in an LRU, and decode side by side.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::tests::{idle, policy};
use super::*;
use crate::pool::{Answer, InFlight, Load, Pool, PoolRate};
use crate::prefix::Scale;
use crate::time::Moment;

const BACKENDS: usize = 4;
const CLIENTS: usize = 16;
const REQUESTS: usize = 800;
const PREFIXES: usize = 40;
const PREFIX_TOKENS: u32 = 2_000;
/// Prefixes an engine can keep: a quarter of all, so that where a request goes decides what is cached.
const CACHED_PREFIXES: usize = 12;
const TRUE_RATE: f64 = 20_000.0;

struct Engine {
    load: Arc<Load>,
    /// The most recently used last.
    cache: VecDeque<usize>,
    free_at: Moment,
    served: u32,
}

#[derive(Debug, PartialEq)]
struct Outcome {
    cached_tokens: u64,
    /// Requests at the busiest backend by the mean.
    skew: f64,
    ttft_p90: f64,
    learned_rate: f64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    FirstToken(usize),
    End(usize),
}

impl Engine {
    /// Serves a request that arrives now: how many tokens were cached, and when its first token comes.
    fn serve(&mut self, prefix: usize, prompt_tokens: u32, now: Moment) -> (u32, Moment) {
        let held = self.cache.iter().position(|&cached| cached == prefix).map(|at| self.cache.remove(at));
        self.cache.push_back(prefix);
        if self.cache.len() > CACHED_PREFIXES {
            self.cache.pop_front();
        }
        let cached_tokens = if held.is_some() { PREFIX_TOKENS } else { 0 };
        let seconds = f64::from(prompt_tokens - cached_tokens) / TRUE_RATE;
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(seconds);
        self.served += 1;
        (cached_tokens, self.free_at)
    }
}

/// A prefix by Zipf's law.
fn draw_prefix(rng: &mut fastrand::Rng) -> usize {
    let weight = |rank: usize| 1.0 / (rank as f64 + 1.0);
    let mut left = rng.f64() * (0..PREFIXES).map(weight).sum::<f64>();
    (0..PREFIXES)
        .find(|&rank| {
            left -= weight(rank);
            left < 0.0
        })
        .unwrap_or(0)
}

fn run(policy: &Policy, seed: u64) -> Outcome {
    let pool = Pool::new("simulated", Scale::new(NonZeroU32::MIN));
    let new_engine = |_| Engine { load: Arc::default(), cache: VecDeque::new(), free_at: Moment::ORIGIN, served: 0 };
    let mut engines: Vec<Engine> = (0..BACKENDS).map(new_engine).collect();
    let (mut arrivals, mut rng) = (fastrand::Rng::with_seed(seed), fastrand::Rng::with_seed(seed + 1));
    let mut events: BinaryHeap<Reverse<(Moment, usize, Event)>> =
        (0..CLIENTS).map(|client| Reverse((Moment::from_nanos(client as u64), client, Event::Arrival))).collect();
    let (mut held, mut ttfts, mut order): (Vec<Option<InFlight>>, Vec<f64>, usize) = (Vec::new(), Vec::new(), CLIENTS);
    let mut cached_tokens = 0;
    while let Some(Reverse((now, _, event))) = events.pop() {
        match event {
            Event::Arrival if held.len() < REQUESTS => {
                let (prefix, prompt_tokens) = (draw_prefix(&mut arrivals), PREFIX_TOKENS + arrivals.u32(100..200));
                let (decision, in_flight) = pool.decide(|turn| {
                    let rate = PoolRate::of(engines.iter().map(|engine| engine.load.rate()));
                    let candidates: Vec<Candidate> = engines
                        .iter()
                        .enumerate()
                        .map(|(index, engine)| {
                            let load = engine.load.view(now);
                            let matched_tokens = if engine.cache.contains(&prefix) { PREFIX_TOKENS } else { 0 };
                            Candidate { matched_tokens, rate: rate.for_backend(load.rate), load, ..idle(index) }
                        })
                        .collect();
                    let query = Query { prompt_tokens, turn, prefix_key: Some(prefix as u64), ..Query::default() };
                    let decision = choose(policy, &query, &candidates, &mut rng).expect("there are candidates");
                    (decision, engines[decision.index].load.dispatch(decision.work, 0, Answer::Streamed, now))
                });
                let (cached, first_token) = engines[decision.index].serve(prefix, prompt_tokens, now);
                cached_tokens += u64::from(cached);
                ttfts.push(first_token.since(now).as_secs_f64());
                order += 1;
                events.push(Reverse((first_token, order, Event::FirstToken(held.len()))));
                held.push(Some(in_flight));
            }
            Event::Arrival => {}
            Event::FirstToken(request) => {
                held[request].as_mut().expect("it is in flight").first_token(now);
                let decode = Duration::from_millis(arrivals.u64(20..120));
                order += 1;
                events.push(Reverse((now + decode, order, Event::End(request))));
            }
            Event::End(request) => {
                held[request].take().expect("it is in flight").finish(now);
                order += 1;
                events.push(Reverse((now + Duration::from_millis(1), order, Event::Arrival)));
            }
        }
    }
    assert!(engines.iter().all(|engine| engine.load.in_flight() == 0), "all requests have ended");
    ttfts.sort_by(f64::total_cmp);
    let busiest = engines.iter().map(|engine| engine.served).max().expect("some");
    Outcome {
        cached_tokens,
        skew: f64::from(busiest) * BACKENDS as f64 / REQUESTS as f64,
        ttft_p90: ttfts[REQUESTS * 9 / 10],
        learned_rate: PoolRate::of(engines.iter().map(|engine| engine.load.rate())).rate(),
    }
}

#[test]
fn cost_finds_what_is_cached_with_a_bounded_skew() {
    for seed in 0..3 {
        let (cost, in_turn) = (run(&policy(PolicyKind::Cost), seed), run(&policy(PolicyKind::RoundRobin), seed));
        let affine = run(&policy(PolicyKind::PrefixAffinity), seed);
        assert!(cost.cached_tokens as f64 > 1.5 * in_turn.cached_tokens as f64, "{cost:?} against {in_turn:?}");
        assert!(cost.ttft_p90 < 0.7 * in_turn.ttft_p90, "{cost:?} against {in_turn:?}");
        // Two of the hottest prefixes may share a backend: nothing moves them while the wait there is short.
        assert!(cost.skew < 1.6, "{cost:?}");
        assert!(cost.skew < affine.skew, "less uneven than without regard for load: {affine:?}");
        let learned = 9_000.0..TRUE_RATE * 1.05;
        assert!(learned.contains(&cost.learned_rate), "few misses teach little, but nothing wrong: {cost:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    assert_eq!(run(&policy(PolicyKind::Cost), 9), run(&policy(PolicyKind::Cost), 9));
}
