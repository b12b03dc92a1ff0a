//! The demo's load: conversations of several turns, in groups that share a system prompt.
//!
//! Generated from a seed, so that every policy gets the same prompts.

use std::fmt;
use std::fmt::Write as _;

use serde_json::{Value, json};

/// Words that the texts are made of; about 6 bytes each, with the space.
pub(super) const WORDS: [&str; 32] = [
    "river", "stone", "cloud", "under", "light", "north", "paper", "green", "table", "music", "small", "wheel",
    "glass", "plain", "hour", "bridge", "signal", "winter", "market", "letter", "copper", "garden", "number", "reason",
    "window", "silver", "branch", "summer", "engine", "corner", "thread", "yellow",
];

/// Simulated engines count a token for every four bytes.
const BYTES_PER_TOKEN: usize = 4;

/// Sizes of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// Conversations in all.
    pub(super) conversations: u32,
    /// System prompts; conversations are spread over them.
    pub(super) groups: u32,
    /// Turns of each conversation.
    pub(super) turns: u32,
    /// Tokens of a system prompt, about.
    pub(super) system_tokens: usize,
    /// Tokens of what the user says in a turn, about.
    pub(super) user_tokens: usize,
    /// Tokens of an answer.
    pub(super) output_tokens: u32,
    /// Conversations held at the same time.
    pub(super) concurrency: u32,
}

/// One conversation: what was said so far.
pub(super) struct Conversation {
    shape: Shape,
    rng: fastrand::Rng,
    messages: Vec<Value>,
}

// === impl Shape ===

impl Default for Shape {
    fn default() -> Self {
        Self {
            conversations: 80,
            groups: 20,
            turns: 6,
            system_tokens: 600,
            user_tokens: 350,
            output_tokens: 24,
            concurrency: 32,
        }
    }
}

impl Shape {
    /// Requests in all.
    pub(super) fn requests(&self) -> u32 {
        self.conversations * self.turns
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} conversations of {} turns over {} system prompts, {} at a time",
            self.conversations, self.turns, self.groups, self.concurrency
        )
    }
}

// === impl Conversation ===

impl Conversation {
    /// The conversation of this number; those with the same number modulo `groups` share a system prompt.
    pub(super) fn new(shape: &Shape, seed: u64, number: u32) -> Self {
        let group = u64::from(number % shape.groups.max(1));
        let mut system_rng = fastrand::Rng::with_seed(seed ^ (group << 32));
        let system = words(&mut system_rng, shape.system_tokens);
        Self {
            shape: shape.clone(),
            rng: fastrand::Rng::with_seed(seed.wrapping_add(u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            messages: vec![json!({"role": "system", "content": system})],
        }
    }

    /// The body of the next turn's request.
    pub(super) fn ask(&mut self) -> Vec<u8> {
        let text = words(&mut self.rng, self.shape.user_tokens);
        self.messages.push(json!({"role": "user", "content": text}));
        let body = json!({
            "model": super::fleet::MODEL,
            "messages": self.messages,
            "max_tokens": self.shape.output_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        body.to_string().into_bytes()
    }

    /// Notes the answer, which the next turn sends back.
    pub(super) fn hear(&mut self, answer: &str) {
        self.messages.push(json!({"role": "assistant", "content": answer}));
    }

    /// How long the user thinks before the next turn, seconds: 0.1 to 0.5.
    pub(super) fn think_seconds(&mut self) -> f64 {
        0.1 + 0.4 * self.rng.f64()
    }
}

fn words(rng: &mut fastrand::Rng, tokens: usize) -> String {
    let mut text = String::with_capacity(tokens * BYTES_PER_TOKEN + 16);
    while text.len() < tokens * BYTES_PER_TOKEN {
        let word = WORDS[rng.usize(..WORDS.len())];
        // Numbers keep two texts from being alike by chance.
        let _ = write!(text, "{word} {} ", rng.u16(..));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_turn(seed: u64, number: u32) -> String {
        String::from_utf8(Conversation::new(&Shape::default(), seed, number).ask()).unwrap()
    }

    #[test]
    fn a_seed_gives_the_same_conversations_again() {
        assert_eq!(first_turn(1, 7), first_turn(1, 7));
        assert_ne!(first_turn(1, 7), first_turn(2, 7));
    }

    #[test]
    fn a_group_shares_its_system_prompt_and_nothing_else() {
        let system = |number| Conversation::new(&Shape::default(), 1, number).messages[0].clone();
        assert_eq!(system(3), system(23), "20 groups");
        assert_ne!(system(3), system(4));
        assert_ne!(first_turn(1, 3), first_turn(1, 23));
    }

    #[test]
    fn a_turn_extends_the_one_before() {
        let mut conversation = Conversation::new(&Shape::default(), 1, 0);
        let first: Value = serde_json::from_slice(&conversation.ask()).unwrap();
        conversation.hear("yes");
        let second: Value = serde_json::from_slice(&conversation.ask()).unwrap();
        let (first, second) = (first["messages"].as_array().unwrap(), second["messages"].as_array().unwrap());
        assert_eq!(second[..first.len()], first[..]);
        assert_eq!(second.len(), first.len() + 2);
    }
}
