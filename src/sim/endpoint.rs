//! The engine's endpoints that carry a prompt.

use crate::request;

/// What a prompt is sent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/v1/messages/count_tokens`
    CountTokens,
    /// `/v1/embeddings`
    Embeddings,
    /// `/generate`, SGLang's own form.
    Generate,
    /// `/tokenize`
    Tokenize,
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint at `path`, given without its query.
    pub(super) fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" => Self::Embeddings,
            "/generate" => Self::Generate,
            "/tokenize" => Self::Tokenize,
            _ => return None,
        })
    }

    /// The same, as the proxy names it.
    pub(super) fn as_requested(self) -> request::Endpoint {
        match self {
            Self::Chat => request::Endpoint::ChatCompletions,
            Self::Completions => request::Endpoint::Completions,
            Self::Responses => request::Endpoint::Responses,
            Self::Messages => request::Endpoint::Messages,
            Self::CountTokens => request::Endpoint::CountTokens,
            Self::Embeddings => request::Endpoint::Embeddings,
            Self::Generate => request::Endpoint::Generate,
            Self::Tokenize => request::Endpoint::Tokenize,
        }
    }

    /// Whether an answer is generated. The others only read the prompt.
    pub(super) fn generates(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Embeddings | Self::Tokenize)
    }

    /// The body fields of which one must hold the prompt, the usual one first.
    pub(super) fn prompt_fields(self) -> &'static [&'static str] {
        match self {
            Self::Chat | Self::Messages | Self::CountTokens => &["messages"],
            Self::Completions => &["prompt"],
            Self::Responses => &["input"],
            Self::Embeddings => &["input", "messages"],
            Self::Generate => &["text", "input_ids"],
            Self::Tokenize => &["prompt", "messages"],
        }
    }
}
