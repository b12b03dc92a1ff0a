//! What the engines of the bench answer: always the same bytes but for one number, so that everybody knows how many.

use std::fmt::Write as _;

use serde_json::json;

/// The request header that says which answer is wanted.
pub(crate) const ANSWER_HEADER: &str = "x-bench-answer";

/// The request header that says that the engine is to tell of its cache, as an engine with KV events does.
pub(crate) const TELL_HEADER: &str = "x-bench-tell";

/// A kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Canned {
    /// One JSON document.
    Plain,
    /// A stream of so many events and `[DONE]`, each written by itself.
    Stream(u32),
    /// A stream that stops after its first token, for as long as the connection lasts.
    Held,
}

// === impl Canned ===

impl Canned {
    /// The value of [`ANSWER_HEADER`].
    pub(crate) fn name(self) -> String {
        match self {
            Self::Plain => "plain".into(),
            Self::Stream(events) => format!("stream-{events}"),
            Self::Held => "held".into(),
        }
    }

    pub(crate) fn named(name: &str) -> Self {
        match name.strip_prefix("stream-").and_then(|events| events.parse().ok()) {
            Some(events) => Self::Stream(events),
            None if name == "held" => Self::Held,
            None => Self::Plain,
        }
    }

    /// Length of the whole body.
    pub(crate) fn body_bytes(self) -> u64 {
        match self {
            Self::Plain => plain(0).len() as u64,
            Self::Stream(events) => (0..=events).map(|at| event(at, events, 0).len() as u64).sum(),
            Self::Held => first_token(0).len() as u64,
        }
    }
}

/// The document, for a prompt of so many tokens.
pub(crate) fn plain(prompt_tokens: u64) -> String {
    let mut text = json!({
        "id": "chatcmpl-7e0d1fb3c14270b6", "object": "chat.completion", "created": 1_790_000_000, "model": "bench",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": SAID}}],
    })
    .to_string();
    text.pop();
    let _ = write!(text, r#","usage":{}}}"#, usage(prompt_tokens));
    text
}

/// The event at `at` of so many and `[DONE]` behind them; the last of them has the usage.
pub(crate) fn event(at: u32, events: u32, prompt_tokens: u64) -> String {
    if at == events {
        return "data: [DONE]\n\n".into();
    }
    let mut text = String::from(
        r#"data: {"id":"chatcmpl-7e0d1fb3c14270b6","object":"chat.completion.chunk","created":1790000000,"model":"bench","choices":["#,
    );
    let _ = match at {
        _ if at + 1 == events => write!(text, r#"],"usage":{}}}"#, usage(prompt_tokens)),
        0 => write!(text, r#"{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}"#),
        _ if at + 2 == events => write!(text, r#"{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}"#),
        _ => write!(text, r#"{{"index":0,"delta":{{"content":" token"}},"finish_reason":null}}]}}"#),
    };
    text.push_str("\n\n");
    text
}

/// The beginning of a stream, to its first token: without one proxies may hold it back.
pub(crate) fn first_token(prompt_tokens: u64) -> String {
    event(0, u32::MAX, prompt_tokens) + &event(1, u32::MAX, prompt_tokens)
}

/// Numbers have a fixed width, so that every answer has the same length.
fn usage(prompt_tokens: u64) -> String {
    format!(r#"{{"prompt_tokens":{prompt_tokens:>8},"completion_tokens":64,"total_tokens":{:>8}}}"#, prompt_tokens + 64)
}

const SAID: &str = "The short answer is yes, as long as both of them see the same prefix. What matters is where the first \
    difference lies: everything before it can be reused, and everything behind it has to be computed again.\n\nSo put what \
    never changes first, and what changes with every request last.";
