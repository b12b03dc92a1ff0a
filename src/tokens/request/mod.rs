//! What a request asks to be tokenized: the prompts of its body as vLLM 0.32 makes them from it, before the template.
//!
//! All forms of conversation become that of chat completions first (`anthropic`, `responses`), as they do in the engine;
//! [`Chat`] then makes its messages what the template gets. A member that could change the prompt in a way not known here
//! ends in [`NotTokenized`]. A body that the engine would refuse may give anything: no prompt will come of it.

mod anthropic;
mod body;
mod chat;
mod content;
mod plain;
mod responses;
mod tools;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use minijinja::Value;

pub(super) use chat::{Chat, Continue};

use body::Body;

use super::cache::TextCache;
use super::{NotTokenized, json};
use crate::request::Endpoint;

/// The prompts to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) prompts: Vec<PlannedPrompt>,
    pub(super) more_prompts: u64,
}

/// One prompt to be made.
#[derive(Debug)]
pub(super) enum PlannedPrompt {
    Ids(Vec<u32>),
    Text { text: Arc<str>, add_special_tokens: bool },
    Chat(Box<Chat>),
}

/// Reads a body; its messages are taken from the cache, if they are there.
///
/// # Errors
/// [`NotTokenized`], if what the engine makes of it is not known.
pub(super) fn read(endpoint: Endpoint, text: &[u8], cache: &TextCache) -> Result<Plan, NotTokenized> {
    let body = Body::read(endpoint, text, cache)?;
    body.refuse()?;
    let of_chat = |chat| Plan::of_chat(chat, text.len());
    match endpoint {
        Endpoint::ChatCompletions => chat::read(&body).map(of_chat),
        Endpoint::Tokenize if body.get("messages").is_some() => chat::read(&body).map(of_chat),
        Endpoint::Messages | Endpoint::CountTokens => anthropic::read(&body).map(of_chat),
        Endpoint::Responses => responses::read(&body).map(of_chat),
        Endpoint::Completions | Endpoint::Tokenize => plain::read(&body, "prompt"),
        Endpoint::Embeddings | Endpoint::Pooling if body.get("messages").is_none() => plain::read(&body, "input"),
        Endpoint::Generate => plain::read_generate(&body),
        Endpoint::Embeddings | Endpoint::Pooling | Endpoint::Rerank | Endpoint::Score => Err(NotTokenized::Endpoint),
    }
}

// === impl Plan ===

impl Plan {
    fn of_chat(mut chat: Chat, body_bytes: usize) -> Self {
        chat.body_bytes = body_bytes;
        Self { prompts: vec![PlannedPrompt::Chat(Box::new(chat))], more_prompts: 0 }
    }
}

/// The text of a member that has to be a string if it is there.
fn text(value: &Value, name: &'static str) -> Result<Option<Arc<str>>, NotTokenized> {
    match json::member(value, name) {
        None => Ok(None),
        Some(member) => member.to_str().map(Some).ok_or(NotTokenized::Form(name)),
    }
}
