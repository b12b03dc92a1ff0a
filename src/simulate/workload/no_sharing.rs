//! Prompts that have nothing in common, of very different lengths: here locality can win nothing, only cost.

use std::fmt;

use super::draw::{Arrivals, LogNormal};
use super::script::{Names, Script};
use super::{BLOCK_TOKENS, Workload};

/// Sizes of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct NoSharing {
    /// Requests in all, a session each; 4,000 give percentiles that hold still.
    pub requests: usize,
    /// Requests that arrive each second, at speed 1; 10 of them bring 33,000 prompt tokens.
    pub requests_per_second: f64,
    /// Tokens of a prompt; from a line to a small book, so that a count of requests says little about work.
    pub prompt_tokens: LogNormal,
    /// Tokens of an answer; from a word to some pages.
    pub output_tokens: LogNormal,
}

// === impl NoSharing ===

impl Default for NoSharing {
    fn default() -> Self {
        Self {
            requests: 4_000,
            requests_per_second: 10.0,
            prompt_tokens: LogNormal::new(2_000.0, 1.0, 32.0, 32_000.0),
            output_tokens: LogNormal::new(200.0, 0.8, 4.0, 2_000.0),
        }
    }
}

impl NoSharing {
    /// The workload that `seed` stands for.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut names, mut arrivals) = (Names::default(), Arrivals::new());
        let session = |_| {
            let start = arrivals.next(self.requests_per_second, &mut rng);
            let mut script = Script::new(BLOCK_TOKENS);
            script.say(names.piece(self.prompt_tokens.tokens(&mut rng)));
            script.ask(std::time::Duration::ZERO, names.piece(self.output_tokens.tokens(&mut rng)));
            script.finish(start, None)
        };
        Workload { block_tokens: BLOCK_TOKENS, sessions: (0..self.requests).map(session).collect() }
    }
}

impl fmt::Display for NoSharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} a second, prompts of {} tokens with nothing in common, answers of {}",
            self.requests, self.requests_per_second, self.prompt_tokens, self.output_tokens,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_prompts_share_a_block() {
        let workload = NoSharing { requests: 300, ..NoSharing::default() }.generate(1);
        let blocks: Vec<_> = workload.sessions.iter().flat_map(|session| session.turns[0].chain.iter()).collect();
        assert!(blocks.len() > 300 * 30, "{} blocks", blocks.len());
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), blocks.len());
    }
}
