//! What comes out: the token ids of a request's prompts, or why there are none.

use super::ids::TokenIds;

/// The token ids of a request's prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// One list a prompt, at most [`MAX_PROMPTS`](crate::request::MAX_PROMPTS).
    pub prompts: Vec<TokenIds>,
    /// Prompts of the batch beyond those.
    pub more_prompts: u64,
}

/// Why a request's prompts have no token ids here. It says nothing of their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotTokenized {
    /// Pictures, sound and the like become tokens by code of the model's own.
    #[error("the request has media")]
    Media,
    /// A template of unknown origin is not run.
    #[error("the request brings its own chat template")]
    RequestTemplate,
    /// How much is cut depends on the engine's settings.
    #[error("the request asks for truncation")]
    Truncation,
    /// The rest of the conversation lies in the engine.
    #[error("the request continues what only the engine has")]
    Continued,
    /// What it asks for, or how, is not known to be understood as the engine does.
    #[error("the request has an unknown form: {0}")]
    Form(&'static str),
    /// The endpoint has no prompts of one text.
    #[error("prompts of this endpoint are not tokenized")]
    Endpoint,
    /// The model's files have no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The chat template raised an error. The engine will refuse the request as well.
    #[error("the chat template refuses the request")]
    Refused,
    /// The prompt is beyond the bound in bytes.
    #[error("the prompt is too large")]
    TooLarge,
    /// The chat template did more than its share of work.
    #[error("the chat template ran out of fuel")]
    OutOfFuel,
    /// It was not done in time, or is not wanted any more.
    #[error("there was no time")]
    TimedOut,
    /// The tokenizer itself failed.
    #[error("the tokenizer failed")]
    Failed,
}

// === impl NotTokenized ===

impl NotTokenized {
    /// All words of [`as_str`](Self::as_str).
    pub const WORDS: [&'static str; 12] = [
        "media",
        "request_template",
        "truncation",
        "continued",
        "form",
        "endpoint",
        "no_template",
        "refused",
        "too_large",
        "out_of_fuel",
        "timed_out",
        "failed",
    ];

    /// The name for metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Media => "media",
            Self::RequestTemplate => "request_template",
            Self::Truncation => "truncation",
            Self::Continued => "continued",
            Self::Form(_) => "form",
            Self::Endpoint => "endpoint",
            Self::NoTemplate => "no_template",
            Self::Refused => "refused",
            Self::TooLarge => "too_large",
            Self::OutOfFuel => "out_of_fuel",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}
