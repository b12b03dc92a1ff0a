//! Agents at work: a long shared system prompt with tools, a task, then many turns that each add a tool's output.
//!
//! Nearly all of a prompt was in the one before it, pauses are short and answers are many: mostly cached, mostly decode.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::draw::{Arrivals, LogNormal, Zipf};
use super::script::{Names, Piece, Script};
use super::{BLOCK_TOKENS, Session, Workload};

/// Sizes of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Agentic {
    /// Requests in all; 12,000 come to about 540 sessions, of which enough are there at a time to load a fleet. The last one
    /// is cut to it.
    pub requests: usize,
    /// Sessions that start each second, at speed 1; 0.5 of them ask 11 times a second.
    pub sessions_per_second: f64,
    /// System prompts with their tools; 4 kinds of agents.
    pub system_prompts: u32,
    /// How skewed their popularity is, as the exponent of Zipf's law; 1, as with most things that are popular.
    pub exponent: f64,
    /// Tokens of a system prompt, all lengths alike; 4,000 to 12,000, because the tools are described in it.
    pub system_tokens: RangeInclusive<u32>,
    /// Tokens of the task; from a sentence to a report of a fault with its log.
    pub task_tokens: LogNormal,
    /// Tokens of a tool's output; from "done" to a file.
    pub tool_tokens: LogNormal,
    /// Tokens of an answer; mostly a call of a tool, sometimes a file.
    pub output_tokens: LogNormal,
    /// Turns of a session, all numbers alike; 5 to 40.
    pub turns: RangeInclusive<usize>,
    /// Seconds that a tool takes; most read a file, some run tests.
    pub pause_seconds: LogNormal,
}

// === impl Agentic ===

impl Default for Agentic {
    fn default() -> Self {
        Self {
            requests: 12_000,
            sessions_per_second: 0.5,
            system_prompts: 4,
            exponent: 1.0,
            system_tokens: 4_000..=12_000,
            task_tokens: LogNormal::new(600.0, 0.8, 50.0, 8_000.0),
            tool_tokens: LogNormal::new(400.0, 1.2, 10.0, 8_000.0),
            output_tokens: LogNormal::new(120.0, 0.8, 16.0, 2_000.0),
            turns: 5..=40,
            pause_seconds: LogNormal::new(1.0, 1.0, 0.05, 60.0),
        }
    }
}

impl Agentic {
    /// The workload that `seed` stands for.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut names, mut arrivals) = (Names::default(), Arrivals::new());
        let zipf = Zipf::new(self.system_prompts, self.exponent);
        let systems: Vec<_> =
            (0..self.system_prompts.max(1)).map(|_| names.piece(rng.u32(self.system_tokens.clone()))).collect();
        let (mut sessions, mut missing) = (Vec::new(), self.requests);
        while missing > 0 {
            let start = arrivals.next(self.sessions_per_second, &mut rng);
            let system = systems[zipf.draw(&mut rng)];
            let turns = rng.usize(self.turns.clone()).clamp(1, missing);
            sessions.push(self.session(start, system, turns, &mut names, &mut rng));
            missing -= turns;
        }
        Workload { block_tokens: BLOCK_TOKENS, sessions }
    }

    fn session(
        &self,
        start: Duration,
        system: Piece,
        turns: usize,
        names: &mut Names,
        rng: &mut fastrand::Rng,
    ) -> Session {
        let mut script = Script::new(BLOCK_TOKENS);
        script.say(system);
        script.say(names.piece(self.task_tokens.tokens(rng)));
        script.ask(Duration::ZERO, names.piece(self.output_tokens.tokens(rng)));
        for _ in 1..turns {
            script.say(names.piece(self.tool_tokens.tokens(rng)));
            script.ask(self.pause_seconds.time(rng), names.piece(self.output_tokens.tokens(rng)));
        }
        script.finish(start, Some(rng.u64(..)))
    }
}

impl fmt::Display for Agentic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} agents a second of {} to {} turns, {} system prompts (Zipf {}) of {} to {} tokens, tasks of \
             {}, tool outputs of {}, answers of {}, pauses of {} s",
            self.requests,
            self.sessions_per_second,
            self.turns.start(),
            self.turns.end(),
            self.system_prompts,
            self.exponent,
            self.system_tokens.start(),
            self.system_tokens.end(),
            self.task_tokens,
            self.tool_tokens,
            self.output_tokens,
            self.pause_seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::infinite_cache_hit_ratio;
    use super::*;

    #[test]
    fn agents_take_many_turns_and_find_nearly_all_of_each_prompt() {
        let workload = Agentic::default().generate(1);
        assert!((450..650).contains(&workload.sessions.len()), "{} sessions", workload.sessions.len());
        let whole = &workload.sessions[..workload.sessions.len() - 1];
        assert!(whole.iter().all(|session| (5..=40).contains(&session.turns.len())));
        assert!(whole.iter().all(|session| session.turns[0].prompt_tokens > 4_000), "tools are described in it");
        let hit_ratio = infinite_cache_hit_ratio(&workload);
        assert!(hit_ratio > 0.9, "{hit_ratio}");
    }
}
