//! A shadow as one would write it without regard to speed: every block, one by one, in the order of its last use.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::queue::{Prefilling, Queue};
use super::{Each, Replay, ShadowPolicy, Totals};
use crate::pool::{LoadView, Policy, PolicyKind, Recent};
use crate::prefix::BlockHash;
use crate::routing::{self, Candidate, Query};
use crate::time::Moment;

/// Requests that are in flight.
pub(super) const IN_FLIGHT: usize = 8;

/// A least-recently-used cache of blocks.
#[derive(Default)]
struct NaiveCache {
    last_use: HashMap<BlockHash, u64>,
    by_use: BTreeMap<u64, BlockHash>,
    uses: u64,
}

#[derive(Default)]
struct NaivePlace {
    cache: NaiveCache,
    queue: Queue,
    prefilling: Prefilling,
    recent: Recent,
    /// Prompt tokens of what is in flight.
    in_flight: VecDeque<u32>,
}

/// Every policy on backends of this size. The last [`IN_FLIGHT`] requests are in flight.
pub(super) struct NaiveShadow {
    capacity_blocks: usize,
    places: Each<Vec<NaivePlace>>,
    /// Where the last requests went.
    last: VecDeque<Each<usize>>,
    turn: u64,
    pub(super) totals: Each<Totals>,
}

impl NaiveCache {
    fn matched(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|hash| self.last_use.contains_key(hash)).count()
    }

    fn touch(&mut self, chain: &[BlockHash], capacity_blocks: usize) {
        for &hash in chain.iter().take(capacity_blocks).rev() {
            self.uses += 1;
            if let Some(before) = self.last_use.insert(hash, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, hash);
        }
        while self.by_use.len() > capacity_blocks {
            let oldest = self.by_use.pop_first().map(|(_, hash)| hash);
            oldest.map(|hash| self.last_use.remove(&hash));
        }
    }
}

impl NaiveShadow {
    pub(super) fn new(backends: usize, capacity_blocks: u32) -> Self {
        Self {
            capacity_blocks: capacity_blocks as usize,
            places: std::array::from_fn(|_| (0..backends).map(|_| NaivePlace::default()).collect()),
            last: VecDeque::new(),
            turn: 0,
            totals: Each::default(),
        }
    }

    /// Leading blocks of a prompt that a backend really has.
    pub(super) fn matched_blocks(&self, backend: usize, chain: &[BlockHash]) -> usize {
        self.places[ShadowPolicy::Actual as usize][backend].cache.matched(chain)
    }

    pub(super) fn replay(&mut self, replay: &Replay<'_>, now: Moment) {
        let query = Query { turn: self.turn, ..replay.query };
        self.turn += 1;
        let chosen = ShadowPolicy::ALL.map(|policy| self.replay_under(policy, replay, &query, now));
        self.last.push_back(chosen);
        if self.last.len() > IN_FLIGHT
            && let Some(ended) = self.last.pop_front()
        {
            for (places, at) in self.places.iter_mut().zip(ended) {
                places[at].in_flight.pop_front();
            }
        }
    }

    fn replay_under(&mut self, policy: ShadowPolicy, replay: &Replay<'_>, query: &Query, now: Moment) -> usize {
        let (prompt, places) = (replay.prompts[0], &mut self.places[policy as usize]);
        let mut candidate = |candidate: &Candidate| {
            let place = &mut places[candidate.index];
            let matched = place.cache.matched(prompt.blocks) as f64 * prompt.tokens_per_block;
            Candidate { matched_tokens: matched as u32, load: place.load(candidate, now), ..*candidate }
        };
        let candidates: Vec<_> = replay.candidates.iter().map(&mut candidate).collect();
        let (kind, candidates) = match policy {
            ShadowPolicy::Actual => (PolicyKind::RoundRobin, &candidates[replay.chosen..=replay.chosen]),
            ShadowPolicy::Cost => (PolicyKind::Cost, &candidates[..]),
            ShadowPolicy::LeastRequest => (PolicyKind::LeastRequest, &candidates[..]),
            ShadowPolicy::RoundRobin => (PolicyKind::RoundRobin, &candidates[..]),
        };
        let rule = Policy { kind, cost: replay.cost, ..Policy::default() };
        let decision = routing::choose(&rule, query, candidates, &mut fastrand::Rng::with_seed(0)).unwrap();
        let place = &mut places[decision.index];
        place.cache.touch(prompt.blocks, self.capacity_blocks);
        place.recent.add(now);
        place.in_flight.push_back(query.prompt_tokens);
        let ttft = place.queue.push(decision.work, replay.candidates[decision.index].rate, now);
        place.prefilling.push(place.queue.end(), now);
        self.totals[policy as usize].add(query.prompt_tokens, decision.matched_tokens, ttft);
        decision.index
    }
}

impl NaivePlace {
    fn load(&mut self, candidate: &Candidate, now: Moment) -> LoadView {
        let pending_work = self.queue.pending_work(candidate.rate, now);
        let in_flight = self.in_flight.len() as u32;
        LoadView {
            pending_work,
            head_work: pending_work,
            head_for: Duration::ZERO,
            decoding: in_flight - self.prefilling.waiting(now).min(in_flight),
            in_flight,
            prompt_tokens: self.in_flight.iter().map(|&tokens| u64::from(tokens)).sum(),
            recent: self.recent.count_at(now),
            ..candidate.load
        }
    }
}
