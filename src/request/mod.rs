//! What a request asks for: the endpoint, the settings that matter to routing, and the prompt, borrowed from the body.
//!
//! [`read`] scans a body once, builds no document and copies no prompt. It refuses only what is not JSON: a body of an
//! unexpected form gives what could be read of it, with no prompt if need be, and is the engine's to judge. The layers,
//! from the bytes up: `json` scans, `prompt` holds segments and writes canonical bytes (`canon` those of embedded
//! JSON, `media` stands in for pictures, `writer` gathers small pieces), `content`, `chat` and `plain` read the forms
//! of prompt, `body` the members of every endpoint. [`ResponseReader`] reads the answer as it passes by.

mod body;
mod canon;
mod chat;
mod content;
mod json;
mod media;
mod opening;
mod path;
mod plain;
mod prompt;
mod sse;
mod usage;
mod writer;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use http::Method;
use smallvec::SmallVec;

pub(crate) use json::{JsonError, Kind, Scanner};
pub use opening::{MAX_WHOLE_BYTES, Opening, Verdict};
pub use path::{decoded, is_plain};
pub use prompt::{MAX_SEGMENTS, MEDIA_BYTES, Prompt};
pub use sse::{Progress, ResponseReader};
pub use usage::Usage;

/// Prompts of one batch that take part in routing. A batch goes to one backend whole, and its first prompts tell as
/// much about locality as all of them; the rest count by length.
pub const MAX_PROMPTS: usize = 64;

/// The endpoints whose requests carry a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// OpenAI `/v1/chat/completions`; llama.cpp also has the three of OpenAI's without `/v1`.
    ChatCompletions,
    /// OpenAI `/v1/completions`.
    Completions,
    /// OpenAI `/v1/responses`.
    Responses,
    /// Anthropic `/v1/messages`.
    Messages,
    /// Anthropic `/v1/messages/count_tokens`.
    CountTokens,
    /// OpenAI `/v1/embeddings`.
    Embeddings,
    /// `/rerank`, `/v1/rerank`, `/v2/rerank`.
    Rerank,
    /// vLLM's `/score`, `/v1/score`.
    Score,
    /// SGLang's native `/generate`.
    Generate,
    /// vLLM's `/tokenize`.
    Tokenize,
    /// vLLM's `/pooling`, `/v1/pooling`.
    Pooling,
}

/// A request as far as routing needs to know it.
#[derive(Debug)]
pub struct PromptRequest<'a> {
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// The model asked for, as spelled by the client.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the client asked for usage in the stream (`stream_options.include_usage`).
    pub include_usage: bool,
    /// The client's limit on output tokens, for each choice.
    pub max_output_tokens: Option<u64>,
    /// Choices asked for (`n`), at least 1: the prompt is prefilled once, decoded this often.
    pub choices: u32,
    /// Separates prefix caches of clients that must not share one.
    pub cache_salt: Option<Cow<'a, str>>,
    /// LoRA adapter named beside the model (SGLang).
    pub adapter: Option<Cow<'a, str>>,
    /// What ties a client's requests together: `prompt_cache_key`, else `user`, else Anthropic's `metadata.user_id`.
    pub session_key: Option<Cow<'a, str>>,
    /// `priority` as vLLM and SGLang have it: the lower, the sooner.
    pub priority: Option<i64>,
    /// The response that this one continues; its backend holds what the prompt lacks.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// The prompts, at most [`MAX_PROMPTS`]; none where the body has no readable one.
    pub prompts: SmallVec<[Prompt<'a>; 1]>,
    /// Prompts of the batch beyond [`MAX_PROMPTS`].
    pub more_prompts: u64,
    /// Their length in the body, bytes.
    pub more_prompt_bytes: u64,
}

/// Why a body cannot be an LLM request. Says nothing of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nothing but white space.
    #[error("the request body is empty; a JSON object is expected")]
    Empty,
    /// Not JSON.
    #[error("the request body is not valid JSON: {what} at byte {offset}")]
    NotJson {
        /// Where, in bytes from the body's start.
        offset: usize,
        /// What was wrong there.
        what: &'static str,
    },
}

/// Reads the body of a request to `endpoint`.
///
/// # Errors
/// [`ReadError`] if the body is empty or not JSON. Nesting too deep to follow is not an error: it gives a request
/// without prompts.
pub fn read(endpoint: Endpoint, body: &[u8]) -> Result<PromptRequest<'_>, ReadError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ReadError::Empty);
    }
    body::read(endpoint, body)
}

// === impl Endpoint ===

impl Endpoint {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 11] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Embeddings,
        Self::Rerank,
        Self::Score,
        Self::Generate,
        Self::Tokenize,
        Self::Pooling,
    ];

    /// Whether its answers hold tokens that a model made.
    pub fn generates(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages | Self::Generate)
    }

    /// Whether a request with `method` can carry a prompt: a POST, and a PUT, which SGLang takes as well.
    pub fn takes(method: &Method) -> bool {
        matches!(*method, Method::POST | Method::PUT)
    }

    /// The endpoint at `path` (without query, [`decoded`]), if it carries a prompt.
    pub fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" | "/chat/completions" => Self::ChatCompletions,
            "/v1/completions" | "/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" | "/embeddings" => Self::Embeddings,
            "/rerank" | "/v1/rerank" | "/v2/rerank" => Self::Rerank,
            "/score" | "/v1/score" => Self::Score,
            "/generate" => Self::Generate,
            "/tokenize" => Self::Tokenize,
            "/pooling" | "/v1/pooling" => Self::Pooling,
            _ => return None,
        })
    }

    /// The name for logs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Generate => "generate",
            Self::Tokenize => "tokenize",
            Self::Pooling => "pooling",
        }
    }

    fn takes_messages(self) -> bool {
        matches!(
            self,
            Self::ChatCompletions
                | Self::Messages
                | Self::CountTokens
                | Self::Tokenize
                | Self::Embeddings
                | Self::Pooling
        )
    }

    fn takes_pairs(self) -> bool {
        matches!(self, Self::Rerank | Self::Score)
    }
}

// === impl PromptRequest ===

impl PromptRequest<'_> {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            model: None,
            stream: false,
            include_usage: false,
            max_output_tokens: None,
            choices: 1,
            cache_salt: None,
            adapter: None,
            session_key: None,
            priority: None,
            previous_response_id: None,
            prompts: SmallVec::new(),
            more_prompts: 0,
            more_prompt_bytes: 0,
        }
    }

    /// Whether the answer will carry usage: always, but for OpenAI streams that did not ask for it.
    pub fn expects_usage(&self) -> bool {
        let only_on_request = matches!(self.endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
        !self.stream || self.include_usage || !only_on_request
    }
}
