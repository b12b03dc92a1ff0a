//! Writes a session whose context only grows: each prompt is all that was said before it, answers included.
//!
//! One chain is hashed for the longest context, and all turns share it; a turn's lengths say how much of it is its own.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Session, Text, Turn};

/// A session in the making.
#[derive(Debug)]
pub(super) struct Script {
    text: Text,
    turns: Vec<Lengths>,
}

#[derive(Debug)]
struct Lengths {
    pause: Duration,
    prompt_tokens: u32,
    output_tokens: u32,
}

/// Names for pieces of text, each given once.
#[derive(Debug, Default)]
pub(super) struct Names {
    given: u64,
}

/// A piece of text that several prompts have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) name: u64,
    pub(super) tokens: u32,
}

// === impl Script ===

impl Script {
    pub(super) fn new(block_tokens: NonZeroU32) -> Self {
        Self { text: Text::new(block_tokens), turns: Vec::new() }
    }

    /// Adds to the context.
    pub(super) fn say(&mut self, piece: Piece) {
        self.text.push(piece.name, piece.tokens);
    }

    /// Asks with the context as it is, `pause` after the answer before, and adds the answer to it.
    pub(super) fn ask(&mut self, pause: Duration, answer: Piece) {
        let prompt_tokens = self.text.tokens();
        self.turns.push(Lengths { pause, prompt_tokens, output_tokens: answer.tokens });
        self.say(answer);
    }

    pub(super) fn finish(self, start: Duration, key: Option<u64>) -> Session {
        let chain = self.text.finish();
        let turn = |Lengths { pause, prompt_tokens, output_tokens }| Turn {
            pause,
            chain: chain.clone(),
            prompt_tokens,
            output_tokens,
        };
        Session { start, key, turns: self.turns.into_iter().map(turn).collect() }
    }
}

// === impl Names ===

impl Names {
    /// A piece with a name that no other has.
    pub(super) fn piece(&mut self, tokens: u32) -> Piece {
        self.given += 1;
        Piece { name: self.given, tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_all_that_was_said_before_it() {
        let block_tokens = NonZeroU32::new(16).unwrap();
        let mut names = Names::default();
        let [system, question, answer, next, last] = [40, 10, 30, 8, 50].map(|tokens| names.piece(tokens));
        let mut script = Script::new(block_tokens);
        script.say(system);
        script.say(question);
        script.ask(Duration::ZERO, answer);
        script.say(next);
        script.ask(Duration::from_secs(3), last);
        let session = script.finish(Duration::from_secs(1), Some(7));

        let lengths: Vec<_> = session.turns.iter().map(|turn| (turn.prompt_tokens, turn.output_tokens)).collect();
        assert_eq!(lengths, [(50, 30), (88, 50)]);
        let mut text = Text::new(block_tokens);
        [system, question, answer, next].iter().for_each(|piece| text.push(piece.name, piece.tokens));
        assert_eq!(session.turns[1].prompt_blocks(block_tokens), &text.finish()[..]);
        assert_eq!(session.turns[1].pause, Duration::from_secs(3));
    }
}
