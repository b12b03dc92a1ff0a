//! People who chat: a system prompt that many sessions share, a first message, answers fed back, and time to read them.

use std::fmt;
use std::time::Duration;

use super::draw::{Arrivals, LogNormal, Zipf};
use super::script::{Names, Piece, Script};
use super::{BLOCK_TOKENS, Session, Workload};

/// Sizes of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Requests in all; 4,000 give percentiles that hold still. The last session is cut to it.
    pub requests: usize,
    /// Sessions that start each second, at speed 1; 2 of them ask 8 times a second.
    pub sessions_per_second: f64,
    /// System prompts; 20 applications on one model.
    pub system_prompts: u32,
    /// How skewed their popularity is, as the exponent of Zipf's law; 1, as with most things that are popular.
    pub exponent: f64,
    /// Tokens of a system prompt; a page or two.
    pub system_tokens: LogNormal,
    /// Tokens of the first message; long, because people bring the text or code they ask about.
    pub first_tokens: LogNormal,
    /// Tokens of every later message; a sentence or a paragraph.
    pub message_tokens: LogNormal,
    /// Tokens of an answer; its mean is that of a recorded chat service, 340.
    pub output_tokens: LogNormal,
    /// The chance that a person asks once more; 0.75 makes four turns on average.
    pub next_turn_chance: f64,
    /// Most turns of a session; 24 keep contexts in the window of most models.
    pub max_turns: usize,
    /// Seconds to read an answer and write the next message.
    pub pause_seconds: LogNormal,
}

// === impl Conversation ===

impl Default for Conversation {
    fn default() -> Self {
        Self {
            requests: 4_000,
            sessions_per_second: 2.0,
            system_prompts: 20,
            exponent: 1.0,
            system_tokens: LogNormal::new(800.0, 0.6, 100.0, 4_000.0),
            first_tokens: LogNormal::new(1_500.0, 1.2, 10.0, 24_000.0),
            message_tokens: LogNormal::new(120.0, 1.2, 4.0, 8_000.0),
            output_tokens: LogNormal::new(250.0, 0.8, 8.0, 2_000.0),
            next_turn_chance: 0.75,
            max_turns: 24,
            pause_seconds: LogNormal::new(20.0, 1.0, 2.0, 300.0),
        }
    }
}

impl Conversation {
    /// The workload that `seed` stands for.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut names, mut arrivals) = (Names::default(), Arrivals::new());
        let zipf = Zipf::new(self.system_prompts, self.exponent);
        let systems: Vec<_> =
            (0..self.system_prompts.max(1)).map(|_| names.piece(self.system_tokens.tokens(&mut rng))).collect();
        let (mut sessions, mut missing) = (Vec::new(), self.requests);
        while missing > 0 {
            let start = arrivals.next(self.sessions_per_second, &mut rng);
            let system = systems[zipf.draw(&mut rng)];
            let session = self.session(start, system, missing, &mut names, &mut rng);
            missing -= session.turns.len();
            sessions.push(session);
        }
        Workload { block_tokens: BLOCK_TOKENS, sessions }
    }

    /// One person's session of 1 to `most` turns.
    fn session(
        &self,
        start: Duration,
        system: Piece,
        most: usize,
        names: &mut Names,
        rng: &mut fastrand::Rng,
    ) -> Session {
        let mut script = Script::new(BLOCK_TOKENS);
        script.say(system);
        script.say(names.piece(self.first_tokens.tokens(rng)));
        script.ask(Duration::ZERO, names.piece(self.output_tokens.tokens(rng)));
        for _ in 1..self.max_turns.min(most) {
            if rng.f64() >= self.next_turn_chance {
                break;
            }
            script.say(names.piece(self.message_tokens.tokens(rng)));
            script.ask(self.pause_seconds.time(rng), names.piece(self.output_tokens.tokens(rng)));
        }
        script.finish(start, Some(rng.u64(..)))
    }
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} chats a second of {:.0} turns on average, {} system prompts (Zipf {}) of {} tokens, first \
             messages of {}, later ones of {}, answers of {}, pauses of {} s",
            self.requests,
            self.sessions_per_second,
            1.0 / (1.0 - self.next_turn_chance),
            self.system_prompts,
            self.exponent,
            self.system_tokens,
            self.first_tokens,
            self.message_tokens,
            self.output_tokens,
            self.pause_seconds,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sessions_share_their_system_prompt_and_nothing_else() {
        let parameters = Conversation {
            requests: 200,
            system_tokens: LogNormal::new(640.0, 0.0, 640.0, 640.0),
            first_tokens: LogNormal::new(640.0, 0.0, 640.0, 640.0),
            ..Conversation::default()
        };
        let workload = parameters.generate(1);
        let block = |at: usize| workload.sessions.iter().map(move |session| session.turns[0].chain[at]);
        let distinct = |at| block(at).collect::<HashSet<_>>().len();
        assert!((5..=20).contains(&distinct(9)), "{} system prompts", distinct(9));
        assert_eq!(distinct(10), workload.sessions.len(), "the first message is a person's own");
    }

    #[test]
    fn people_take_four_turns_on_average_and_time_between_them() {
        let workload = Conversation { requests: 1_000, ..Conversation::default() }.generate(1);
        let mean = 1_000.0 / workload.sessions.len() as f64;
        assert!((3.5..4.5).contains(&mean), "{mean} turns");
        for turn in workload.sessions.iter().flat_map(|session| &session.turns[1..]) {
            assert!((2.0..=300.0).contains(&turn.pause.as_secs_f64()), "{:?}", turn.pause);
        }
    }
}
