//! Prompt -> token ids, and generated text with its ids.
//!
//! Without a tokenizer four bytes of rendered text are a token, and its id is those bytes, least significant first. So an
//! answer continues a prompt in the middle of a token, exactly as the next turn, which repeats both, will spell it. With
//! the model's own tokenizer and template an answer's ids are those of its text alone: nearly always what the next turn
//! has, and where it has not, it finds the prompt and not the answer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use super::endpoint::Endpoint;
use super::prompt::{Prompt, TOKEN_BYTES};
use super::words;
use crate::request;
use crate::tokens::{Limits, LoadError, NotTokenized, Service, TokenIds, TokenizerFiles};

/// Generated text is this many times as long as four bytes a token would make it, before it is cut: tokens of real
/// tokenizers are words at most.
const ABUNDANCE: u32 = 3;
/// How long a prompt may take to become ids. An engine takes the time it takes; this only ends what never would.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rule by which text becomes ids.
#[derive(Debug)]
pub(super) enum Tokens {
    /// Four bytes each.
    FourBytes,
    /// The model's own.
    Model(Arc<Service>),
}

/// A prompt that has been spelled.
#[derive(Debug)]
pub(super) enum Spelled {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

/// What will be generated.
#[derive(Debug)]
pub(super) struct Generated {
    pub(super) text: String,
    /// The ids of the prompt and of this text behind it, without a partial one at the end: nobody can know yet what that
    /// will be.
    pub(super) ids: Vec<u32>,
}

// === impl Tokens ===

impl Tokens {
    /// The four-byte rule, or the tokenizer at a path; bodies have at most `max_bytes`.
    pub(super) fn load(tokenizer: Option<&Path>, max_bytes: usize) -> Result<Self, LoadError> {
        let Some(path) = tokenizer else { return Ok(Self::FourBytes) };
        let limits = Limits { max_bytes, timeout: PATIENCE, ..Limits::default() };
        Service::load(&TokenizerFiles::at(path), limits).map(Self::Model)
    }

    /// The prompt of a body; several in a row if it has several.
    pub(super) async fn spell(
        &self,
        endpoint: Endpoint,
        prompt: &Prompt,
        body: &[u8],
    ) -> Result<Spelled, NotTokenized> {
        match self {
            Self::FourBytes => Ok(Spelled::rendered(prompt)),
            Self::Model(service) => {
                let body = Bytes::copy_from_slice(body);
                let prompts = service.prompts(endpoint.as_requested(), body, SystemTime::now()).await?;
                Ok(Spelled::Ids(prompts.prompts.iter().flat_map(TokenIds::iter).collect()))
            }
        }
    }

    /// Text of at most `tokens` tokens, and nearly as many, behind a prompt.
    pub(super) async fn generate(&self, prompt: Spelled, seed: u64, tokens: u32) -> Generated {
        match (self, prompt) {
            (Self::Model(service), Spelled::Ids(mut ids)) => {
                let (text, answer) = fitting(service, seed, tokens).await;
                ids.extend(answer);
                Generated { text, ids }
            }
            (_, Spelled::Ids(ids)) => Generated { text: words::write(seed, tokens), ids },
            (_, Spelled::Bytes(mut bytes)) => {
                let text = words::write(seed, tokens);
                bytes.extend_from_slice(text.as_bytes());
                Generated { text, ids: whole_ids(&bytes) }
            }
        }
    }
}

// === impl Spelled ===

impl Spelled {
    fn rendered(prompt: &Prompt) -> Self {
        let mut bytes = Vec::new();
        prompt.render(&mut |piece| bytes.extend_from_slice(piece));
        Self::Bytes(bytes)
    }

    /// How many tokens it has, at least 1; a partial one counts.
    pub(super) fn tokens(&self) -> u64 {
        let tokens = match self {
            Self::Bytes(bytes) => bytes.len().div_ceil(TOKEN_BYTES),
            Self::Ids(ids) => ids.len(),
        };
        tokens.max(1) as u64
    }

    /// What the prompt determines.
    pub(super) fn digest(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => xxh3_64(bytes),
            Self::Ids(ids) => xxh3_64(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()),
        }
    }

    /// The ids of all its tokens; a partial one is filled up with zeros.
    pub(super) fn ids(self) -> Vec<u32> {
        match self {
            Self::Ids(ids) => ids,
            Self::Bytes(mut bytes) => {
                bytes.resize(bytes.len().next_multiple_of(TOKEN_BYTES), 0);
                whole_ids(&bytes)
            }
        }
    }
}

fn whole_ids(bytes: &[u8]) -> Vec<u32> {
    let (tokens, _) = bytes.as_chunks::<TOKEN_BYTES>();
    tokens.iter().map(|&token| u32::from_le_bytes(token)).collect()
}

/// Whole words that make at most `tokens` ids, and the ids.
async fn fitting(service: &Arc<Service>, seed: u64, tokens: u32) -> (String, Vec<u32>) {
    let mut text = words::write(seed, tokens.saturating_mul(ABUNDANCE));
    loop {
        let ids = plain_ids(service, &text).await;
        if ids.len() <= tokens as usize || text.is_empty() {
            return (text, ids);
        }
        // In proportion, so that twice is mostly enough; and shorter each time.
        let length = (text.len() * tokens as usize / ids.len()).min(text.len() - 1);
        text.truncate(text[..length].trim_end().rfind(' ').unwrap_or(0));
    }
}

/// The ids of a text without a template; none if the tokenizer fails on it.
async fn plain_ids(service: &Arc<Service>, text: &str) -> Vec<u32> {
    let body = json!({"prompt": text, "add_special_tokens": false}).to_string();
    let prompts = service.prompts(request::Endpoint::Completions, Bytes::from(body), SystemTime::now()).await;
    prompts.map(|prompts| prompts.prompts.iter().flat_map(TokenIds::iter).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing;

    async fn spelled(tokens: &Tokens, endpoint: Endpoint, body: &Value) -> Spelled {
        let body = body.to_string();
        let prompt = Prompt::read(endpoint, body.as_bytes()).unwrap();
        tokens.spell(endpoint, &prompt, body.as_bytes()).await.unwrap()
    }

    #[tokio::test]
    async fn an_id_is_four_bytes_and_ids_that_are_sent_stay_as_they_are() {
        let text = spelled(&Tokens::FourBytes, Endpoint::Completions, &json!({"prompt": "abcdef"})).await;
        assert_eq!(text.tokens(), 2);
        assert_eq!(text.ids(), [u32::from_le_bytes(*b"abcd"), u32::from_le_bytes(*b"ef\0\0")]);
        let ids = spelled(&Tokens::FourBytes, Endpoint::Completions, &json!({"prompt": [1, 70_000, u32::MAX]})).await;
        assert_eq!(ids.ids(), [1, 70_000, u32::MAX]);
    }

    /// The ids of a turn with the answer that was generated for it, and those of the next turn.
    async fn two_turns(tokens: &Tokens) -> (Vec<u32>, Vec<u32>) {
        let user = json!({"role": "user", "content": "Say hello!"});
        let first = spelled(tokens, Endpoint::Chat, &json!({"messages": [user]})).await;
        let known = tokens.generate(first, 1, 30).await;
        let messages = json!([user, {"role": "assistant", "content": known.text}, user]);
        let next = spelled(tokens, Endpoint::Chat, &json!({"messages": messages})).await;
        (known.ids, next.ids())
    }

    #[tokio::test]
    async fn the_next_turn_has_the_ids_of_the_prompt_and_its_answer() {
        let (known, next) = two_turns(&Tokens::FourBytes).await;
        assert!(next.starts_with(&known));
    }

    #[tokio::test]
    async fn with_a_models_tokenizer_too() {
        let Some(path) = testing::shared("fixtures/vllm/model") else { return };
        let tokens = Tokens::load(Some(&path), 1 << 20).unwrap();
        let (known, next) = two_turns(&tokens).await;
        assert!(next.starts_with(&known));
    }

    #[tokio::test]
    async fn an_answer_has_about_as_many_ids_as_were_asked_for() {
        let Some(path) = testing::shared("fixtures/vllm/model") else { return };
        let tokens = Tokens::load(Some(&path), 1 << 20).unwrap();
        for wanted in [0, 1, 30, 700] {
            let generated = tokens.generate(Spelled::Ids(Vec::new()), 5, wanted).await;
            let wanted = wanted as usize;
            assert!(generated.ids.len() <= wanted, "{} of {wanted}", generated.ids.len());
            assert!(generated.ids.len() + 10 + wanted / 10 >= wanted, "{} of {wanted}", generated.ids.len());
        }
    }
}
