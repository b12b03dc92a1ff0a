//! Prompt -> token ids.
//!
//! Four bytes of rendered text are a token, and its id is those bytes, least significant first. So an answer continues a
//! prompt in the middle of a token, exactly as the next turn, which repeats both, will spell it.

use xxhash_rust::xxh3::xxh3_64;

use super::prompt::{Prompt, TOKEN_BYTES};

/// A prompt that has been spelled.
#[derive(Debug)]
pub(super) struct Spelled {
    bytes: Vec<u8>,
}

// === impl Spelled ===

impl Spelled {
    pub(super) fn of(prompt: &Prompt) -> Self {
        let mut bytes = Vec::new();
        prompt.render(&mut |piece| bytes.extend_from_slice(piece));
        Self { bytes }
    }

    /// How many tokens it has, at least 1; a partial one counts.
    pub(super) fn tokens(&self) -> u64 {
        self.bytes.len().div_ceil(TOKEN_BYTES).max(1) as u64
    }

    /// What the prompt determines.
    pub(super) fn digest(&self) -> u64 {
        xxh3_64(&self.bytes)
    }

    /// The ids of all its tokens; a partial one is filled up with zeros.
    pub(super) fn ids(mut self) -> Vec<u32> {
        self.bytes.resize(self.bytes.len().next_multiple_of(TOKEN_BYTES), 0);
        self.whole_ids()
    }

    /// The ids of the prompt and the answer behind it, without a partial one at the end: nobody can know yet what it will
    /// be.
    pub(super) fn ids_with(mut self, answer: &str) -> Vec<u32> {
        self.bytes.extend_from_slice(answer.as_bytes());
        self.whole_ids()
    }

    fn whole_ids(&self) -> Vec<u32> {
        let (tokens, _) = self.bytes.as_chunks::<TOKEN_BYTES>();
        tokens.iter().map(|&token| u32::from_le_bytes(token)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sim::endpoint::Endpoint;

    fn spelled(endpoint: Endpoint, body: &Value) -> Spelled {
        Spelled::of(&Prompt::read(endpoint, body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn an_id_is_four_bytes_and_ids_that_are_sent_stay_as_they_are() {
        let text = spelled(Endpoint::Completions, &json!({"prompt": "abcdef"}));
        assert_eq!(text.tokens(), 2);
        assert_eq!(text.ids(), [u32::from_le_bytes(*b"abcd"), u32::from_le_bytes(*b"ef\0\0")]);
        let ids = spelled(Endpoint::Completions, &json!({"prompt": [1, 70_000, u32::MAX]}));
        assert_eq!(ids.ids(), [1, 70_000, u32::MAX]);
    }

    #[test]
    fn the_next_turn_has_the_ids_of_the_prompt_and_its_answer() {
        let user = json!({"role": "user", "content": "Say hello!"});
        let answer = "zamo kibune ";
        let first = spelled(Endpoint::Chat, &json!({"messages": [user]}));
        assert_ne!(first.bytes.len() % TOKEN_BYTES, 0, "the answer begins within a token");
        let known = first.ids_with(answer);
        let messages = json!([user, {"role": "assistant", "content": answer}, user]);
        let next = spelled(Endpoint::Chat, &json!({"messages": messages}));
        assert!(next.ids().starts_with(&known));
    }
}
