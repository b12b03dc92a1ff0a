//! The small workload that anybody can check: clients in a closed loop, and prompts that begin with one of a few prefixes.
//!
//! A prefix is [`BLOCKS`] blocks and no tail fills one, so the share of blocks found is the share of prefixes found, as in
//! the published figures for this workload.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::draw::Zipf;
use super::{Session, Text, Turn, Workload};
use crate::prefix::BlockHash;

/// Blocks of a prefix: few enough that a tail is shorter than a block, enough that a tail takes little of a cache.
const BLOCKS: u32 = 10;

/// Where the names of prefixes begin. `prefix_affinity` places a prefix by a hash of its name, and with other names its
/// skew is another, from 1.5 to 2.2; with these it is close to the published 1.8.
const FIRST_NAME: u64 = 4_650;

/// Between the starts of two clients: enough that they do not all ask in one step of an engine.
const CLIENT_GAP: Duration = Duration::from_millis(5);

/// Sizes of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedPrefix {
    /// Requests in all; 2,000 as published.
    pub requests: usize,
    /// Clients, each with one request at a time; 8 fit the published skew of `locality_first`. At least 1 is used.
    pub clients: usize,
    /// Distinct prefixes; 40 as published.
    pub prefixes: u32,
    /// How skewed their popularity is, as the exponent of Zipf's law; 0.96 fits the published hit rates.
    pub exponent: f64,
    /// Tokens of a prefix; 2,250 is amid what the published prefill tokens come to (2,120 to 2,350 a miss, tails taken
    /// off).
    pub prefix_tokens: NonZeroU32,
    /// Tokens behind the prefix that no other prompt has, all lengths alike; 100 to 200 as published.
    pub tail_tokens: RangeInclusive<u32>,
    /// Tokens of an answer, all lengths alike; 16 to 48, so that prefill is what counts.
    pub output_tokens: RangeInclusive<u32>,
}

// === impl SharedPrefix ===

impl Default for SharedPrefix {
    fn default() -> Self {
        Self {
            requests: 2_000,
            clients: 8,
            prefixes: 40,
            exponent: 0.96,
            prefix_tokens: NonZeroU32::MIN.saturating_add(2_249),
            tail_tokens: 100..=200,
            output_tokens: 16..=48,
        }
    }
}

impl SharedPrefix {
    /// The workload that `seed` stands for.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = fastrand::Rng::with_seed(seed);
        let zipf = Zipf::new(self.prefixes, self.exponent);
        // What lies behind a prefix is never asked again, so no chain goes further.
        let prefixes: Vec<_> = (0..self.prefixes.max(1)).map(|number| self.prefix(number)).collect();
        let clients = self.clients.max(1);
        let mut sessions: Vec<_> = (0..clients.min(self.requests)).map(session).collect();
        for number in 0..self.requests {
            let chain = Arc::clone(&prefixes[zipf.draw(&mut rng)]);
            sessions[number % clients].turns.push(self.turn(chain, &mut rng));
        }
        Workload { block_tokens: self.block_tokens(), sessions }
    }

    fn prefix(&self, number: u32) -> Arc<[BlockHash]> {
        let mut text = Text::new(self.block_tokens());
        text.push(FIRST_NAME + u64::from(number), self.prefix_tokens.get());
        text.finish()
    }

    fn block_tokens(&self) -> NonZeroU32 {
        NonZeroU32::new(self.prefix_tokens.get() / BLOCKS).unwrap_or(NonZeroU32::MIN)
    }

    fn turn(&self, chain: Arc<[BlockHash]>, rng: &mut fastrand::Rng) -> Turn {
        Turn {
            pause: Duration::ZERO,
            chain,
            prompt_tokens: self.prefix_tokens.get().saturating_add(rng.u32(self.tail_tokens.clone())),
            output_tokens: rng.u32(self.output_tokens.clone()).max(1),
        }
    }
}

impl fmt::Display for SharedPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests by {} clients in a closed loop, {} prefixes of {} tokens (Zipf {}), tails of {} to {} tokens, \
             answers of {} to {}",
            self.requests,
            self.clients,
            self.prefixes,
            self.prefix_tokens,
            self.exponent,
            self.tail_tokens.start(),
            self.tail_tokens.end(),
            self.output_tokens.start(),
            self.output_tokens.end(),
        )
    }
}

fn session(client: usize) -> Session {
    let start = CLIENT_GAP.saturating_mul(u32::try_from(client).unwrap_or(u32::MAX));
    Session { start, key: None, turns: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn each_prompt_is_one_of_forty_prefixes_and_a_tail() {
        let workload = SharedPrefix::default().generate(1);
        let turns: Vec<_> = workload.sessions.iter().flat_map(|session| &session.turns).collect();
        let mut popularity = HashMap::new();
        for turn in &turns {
            let blocks = turn.prompt_blocks(workload.block_tokens);
            assert_eq!((blocks.len(), turn.pause), (10, Duration::ZERO));
            assert!((2_350..=2_450).contains(&turn.prompt_tokens), "{} tokens", turn.prompt_tokens);
            *popularity.entry(blocks[9]).or_insert(0) += 1;
        }
        assert_eq!((workload.sessions.len(), turns.len(), popularity.len()), (8, 2_000, 40));
        let first = popularity.into_values().max().unwrap();
        assert!((380..520).contains(&first), "the first of 40 has 22 % by Zipf 0.96: {first}");
    }

    #[test]
    fn requests_are_dealt_to_clients_evenly() {
        let workload = SharedPrefix { requests: 35, clients: 16, ..SharedPrefix::default() }.generate(1);
        let turns: Vec<_> = workload.sessions.iter().map(|session| session.turns.len()).collect();
        assert_eq!(turns, [vec![3; 3], vec![2; 13]].concat());
        let few = SharedPrefix { requests: 3, clients: 16, ..SharedPrefix::default() }.generate(1);
        assert_eq!(few.sessions.len(), 3, "a client without a request is none");
    }
}
