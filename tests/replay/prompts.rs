//! What is sent for a turn of a workload, which has lengths and hashes but no words.

use std::num::NonZeroU32;

use serde_json::{Value, json};
use warmgate::simulate::workload::Turn;

use crate::BLOCK_TOKENS;

/// Bytes of text that the simulated engine takes for a token; its id is those bytes.
const TOKEN_BYTES: usize = 4;

/// How a prompt is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    Text,
    /// Token ids, which the proxy can look up by tokens without having a tokenizer.
    Ids,
}

/// The body of a turn's request; `name` is that of no other turn.
pub(crate) fn body_of(turn: &Turn, block_tokens: NonZeroU32, name: u64, spelling: Spelling) -> Value {
    let text = text_of(turn, block_tokens, name);
    assert_eq!(text.len(), turn.prompt_tokens as usize * TOKEN_BYTES);
    let prompt = match spelling {
        Spelling::Text => json!(text),
        Spelling::Ids => json!(ids_of(&text)),
    };
    json!({"prompt": prompt, "max_tokens": turn.output_tokens, "stream": true,
        "stream_options": {"include_usage": true}})
}

/// The text of a prompt: equal blocks have equal text, and what is behind the last whole block is no other prompt's.
fn text_of(turn: &Turn, block_tokens: NonZeroU32, name: u64) -> String {
    let mut text = String::new();
    for block in turn.prompt_blocks(block_tokens) {
        write(&mut text, block.0, BLOCK_TOKENS);
    }
    write(&mut text, name, turn.prompt_tokens % BLOCK_TOKENS);
    text
}

/// Writes `tokens` tokens that nothing but another text with this seed has.
fn write(text: &mut String, seed: u64, tokens: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    text.extend((0..tokens).map(|_| format!("{:04x}", rng.u16(..))));
}

fn ids_of(text: &str) -> Vec<u32> {
    let (tokens, _) = text.as_bytes().as_chunks::<TOKEN_BYTES>();
    tokens.iter().map(|&token| u32::from_le_bytes(token)).collect()
}
