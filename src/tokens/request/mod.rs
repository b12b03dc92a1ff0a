//! What a request asks to be tokenized: the prompts of its body as vLLM 0.32 makes them from it, before the template.
//!
//! All forms of conversation become that of chat completions first (`anthropic`, `responses`), as they do in the engine;
//! [`Chat`] then makes its messages what the template gets. A member that could change the prompt in a way not known here
//! ends in [`NotTokenized`]. A body that the engine would refuse may give anything: no prompt will come of it.

mod anthropic;
mod chat;
mod content;
mod plain;
mod responses;
mod tools;

use minijinja::Value;
use minijinja::value::ValueKind;

pub(super) use chat::{Chat, Continue};

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
    Text { text: String, add_special_tokens: bool },
    Chat(Box<Chat>),
}

/// The members of a body.
#[derive(Debug)]
struct Body(Value);

/// Reads a body.
///
/// # Errors
/// [`NotTokenized`], if what the engine makes of it is not known.
pub(super) fn read(endpoint: Endpoint, body: &[u8]) -> Result<Plan, NotTokenized> {
    let body = json::parse(body)?;
    if body.kind() != ValueKind::Map {
        return Err(NotTokenized::Form("JSON"));
    }
    let body = Body(body);
    body.refuse()?;
    match endpoint {
        Endpoint::ChatCompletions => chat::read(&body).map(Plan::of_chat),
        Endpoint::Tokenize if body.get("messages").is_some() => chat::read(&body).map(Plan::of_chat),
        Endpoint::Messages | Endpoint::CountTokens => anthropic::read(&body).map(Plan::of_chat),
        Endpoint::Responses => responses::read(&body).map(Plan::of_chat),
        Endpoint::Completions | Endpoint::Tokenize => plain::read(&body, "prompt"),
        Endpoint::Embeddings | Endpoint::Pooling if body.get("messages").is_none() => plain::read(&body, "input"),
        Endpoint::Generate => plain::read_generate(&body),
        Endpoint::Embeddings | Endpoint::Pooling | Endpoint::Rerank | Endpoint::Score => Err(NotTokenized::Endpoint),
    }
}

// === impl Plan ===

impl Plan {
    fn of_chat(chat: Chat) -> Self {
        Self { prompts: vec![PlannedPrompt::Chat(Box::new(chat))], more_prompts: 0 }
    }
}

// === impl Body ===

impl Body {
    /// The member of that name, if it is there and not null.
    fn get(&self, name: &str) -> Option<Value> {
        json::member(&self.0, name)
    }

    fn flag(&self, name: &'static str, default: bool) -> Result<bool, NotTokenized> {
        match self.get(name) {
            None => Ok(default),
            Some(value) if value.kind() == ValueKind::Bool => Ok(value.is_true()),
            Some(_) => Err(NotTokenized::Form(name)),
        }
    }

    /// Refuses what changes a prompt of any form.
    fn refuse(&self) -> Result<(), NotTokenized> {
        if self.get("truncate_prompt_tokens").is_some() {
            return Err(NotTokenized::Truncation);
        }
        if self.get("chat_template").is_some() {
            return Err(NotTokenized::RequestTemplate);
        }
        if ["prompt_embeds", "input_embeds", "image_data", "audio_data", "video_data"]
            .iter()
            .any(|name| self.get(name).is_some())
        {
            return Err(NotTokenized::Media);
        }
        if ["previous_response_id", "conversation", "session_params", "session_id"]
            .iter()
            .any(|name| self.get(name).is_some())
        {
            return Err(NotTokenized::Continued);
        }
        // With these the engine does not look at the messages.
        if self.get("kv_transfer_params").is_some_and(|params| json::member(&params, "prompt_token_ids").is_some()) {
            return Err(NotTokenized::Form("kv_transfer_params"));
        }
        Ok(())
    }
}

/// The text of a member that has to be a string if it is there.
fn text(value: &Value, name: &'static str) -> Result<Option<String>, NotTokenized> {
    match json::member(value, name) {
        None => Ok(None),
        Some(member) => member.as_str().map(|text| Some(text.to_owned())).ok_or(NotTokenized::Form(name)),
    }
}
