//! A mixed background, and in its middle one prompt that everybody sends at once: a link that went round, a batch job.
//!
//! The background goes on as before. The hot prefix comes on top of it for the middle third of the requests, so that they
//! arrive faster; a policy that keeps a prefix in one place then has a hot spot, one that spreads it pays for each copy.

use std::fmt;
use std::time::Duration;

use super::draw::{Arrivals, LogNormal, Zipf};
use super::script::{Names, Piece, Script};
use super::{BLOCK_TOKENS, Session, Workload};

/// Sizes of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Burst {
    /// Requests in all, a session each; 4,000 give percentiles that hold still.
    pub requests: usize,
    /// Background requests that arrive each second, at speed 1; 15 of them bring about 33,000 prompt tokens.
    pub requests_per_second: f64,
    /// The share of the hot prefix in the middle third of the requests, below 1; 0.6 makes them arrive 2.5 times as fast.
    pub hot_share: f64,
    /// Tokens of the hot prefix; a long document.
    pub hot_tokens: u32,
    /// Prefixes of the background; 50 applications on one model.
    pub prefixes: u32,
    /// How skewed their popularity is, as the exponent of Zipf's law; 1, as with most things that are popular.
    pub exponent: f64,
    /// Tokens of a background prefix; a page to a few.
    pub prefix_tokens: LogNormal,
    /// The share of background prompts without a prefix; 0.3, from callers that share nothing.
    pub plain_share: f64,
    /// Tokens of what is a prompt's own; from a question to a document.
    pub own_tokens: LogNormal,
    /// Tokens of an answer; from a word to some pages.
    pub output_tokens: LogNormal,
}

// === impl Burst ===

impl Default for Burst {
    fn default() -> Self {
        Self {
            requests: 4_000,
            requests_per_second: 15.0,
            hot_share: 0.6,
            hot_tokens: 6_000,
            prefixes: 50,
            exponent: 1.0,
            prefix_tokens: LogNormal::new(1_200.0, 0.7, 128.0, 8_000.0),
            plain_share: 0.3,
            own_tokens: LogNormal::new(600.0, 1.1, 16.0, 16_000.0),
            output_tokens: LogNormal::new(200.0, 0.8, 4.0, 2_000.0),
        }
    }
}

impl Burst {
    /// The workload that `seed` stands for.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut names, mut arrivals) = (Names::default(), Arrivals::new());
        let zipf = Zipf::new(self.prefixes, self.exponent);
        let hot = names.piece(self.hot_tokens);
        let prefixes: Vec<_> =
            (0..self.prefixes.max(1)).map(|_| names.piece(self.prefix_tokens.tokens(&mut rng))).collect();
        let middle = self.requests / 3..self.requests - self.requests / 3;
        let session = |number| {
            let hot_share = if middle.contains(&number) { self.hot_share } else { 0.0 };
            let start = arrivals.next(self.requests_per_second / (1.0 - hot_share), &mut rng);
            let prefix = if rng.f64() < hot_share {
                Some(hot)
            } else {
                (rng.f64() >= self.plain_share).then(|| prefixes[zipf.draw(&mut rng)])
            };
            self.session(start, prefix, &mut names, &mut rng)
        };
        Workload { block_tokens: BLOCK_TOKENS, sessions: (0..self.requests).map(session).collect() }
    }

    fn session(&self, start: Duration, prefix: Option<Piece>, names: &mut Names, rng: &mut fastrand::Rng) -> Session {
        let mut script = Script::new(BLOCK_TOKENS);
        prefix.into_iter().for_each(|prefix| script.say(prefix));
        script.say(names.piece(self.own_tokens.tokens(rng)));
        script.ask(Duration::ZERO, names.piece(self.output_tokens.tokens(rng)));
        script.finish(start, None)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} a second, {} prefixes (Zipf {}) of {} tokens, none in {:.0} % of prompts, {} tokens of their \
             own, answers of {}; in the middle third one prefix of {} tokens comes on top and is in {:.0} %",
            self.requests,
            self.requests_per_second,
            self.prefixes,
            self.exponent,
            self.prefix_tokens,
            self.plain_share * 100.0,
            self.own_tokens,
            self.output_tokens,
            self.hot_tokens,
            self.hot_share * 100.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last block of the hot prefix, which no other prompt has.
    const HOT_BLOCK: usize = 9;

    #[test]
    fn one_prefix_has_sixty_percent_of_the_middle_third_and_comes_on_top() {
        let parameters = Burst {
            requests: 6_000,
            hot_tokens: 640,
            own_tokens: LogNormal::new(20.0, 1.0, 4.0, 200.0),
            output_tokens: LogNormal::new(20.0, 1.0, 4.0, 200.0),
            ..Burst::default()
        };
        let workload = parameters.generate(1);
        let thirds: Vec<_> = workload.sessions.chunks(2_000).collect();
        let block = |session: &Session| session.turns[0].chain.get(HOT_BLOCK).copied();
        let mut counts = std::collections::HashMap::new();
        thirds[1].iter().filter_map(block).for_each(|block| *counts.entry(block).or_insert(0) += 1);
        let (hot, count) = counts.into_iter().max_by_key(|&(_, count)| count).unwrap();
        assert!((1_140..=1_260).contains(&count), "60 % of 2,000, 3 points more or less: {count}");
        let elsewhere = |third: &[Session]| third.iter().any(|session| block(session) == Some(hot));
        assert!(!elsewhere(thirds[0]) && !elsewhere(thirds[2]));

        let seconds = |third: &[Session]| (third[1_999].start - third[0].start).as_secs_f64();
        let faster = seconds(thirds[0]) / seconds(thirds[1]);
        assert!((2.3..2.7).contains(&faster), "{faster} times the rate");
    }
}
