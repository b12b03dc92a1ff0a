//! Anthropic's messages as those of a chat (vLLM's `entrypoints/anthropic/serving.py`).

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, Continue, Settings};
use super::{Body, content, text, tools};
use crate::tokens::{NotTokenized, json};

const WRONG: NotTokenized = NotTokenized::Form("content");

/// What the blocks of one message become.
#[derive(Default)]
struct Blocks {
    texts: Vec<Arc<str>>,
    thinking: Vec<Arc<str>>,
    calls: Vec<Value>,
    has_content: bool,
}

/// Reads the body of `/v1/messages`, or of `count_tokens` below it.
pub(super) fn read(body: &Body) -> Result<Chat, NotTokenized> {
    let given = body.get("messages").ok_or(NotTokenized::Form("messages"))?;
    let mut messages = Vec::new();
    messages.extend(body.get("system").map(|system| system_text(&system)).transpose()?.flatten().map(system));
    for message in json::list(&given).ok_or(NotTokenized::Form("messages"))? {
        convert(&message, &mut messages)?;
    }
    let effort = body.get("output_config").and_then(|config| json::member(&config, "effort"));
    // How thinking is turned off is tried out by the engine.
    if body.get("thinking").is_some_and(|thinking| json::member(&thinking, "type") == Some(Value::from("disabled"))) {
        return Err(NotTokenized::Form("thinking"));
    }
    let settings = Settings {
        tools: tools::of_anthropic(body.get("tools"))?,
        documents: None,
        reasoning_effort: effort,
        chat_template_kwargs: body.get("chat_template_kwargs"),
    };
    let mut chat = Chat::new(messages, settings, Continue::NewMessage { add_generation_prompt: true })?;
    chat.may_merge_system = true;
    Ok(chat)
}

fn system(text: String) -> Value {
    json::object([("role", Value::from("system")), ("content", Value::from(text))])
}

/// The text of a system prompt; none if nothing is left of it.
fn system_text(system: &Value) -> Result<Option<String>, NotTokenized> {
    let texts = match system.to_str() {
        Some(text) => vec![text],
        None => {
            let blocks: Vec<Value> = json::list(system).ok_or(NotTokenized::Form("system"))?.collect();
            if blocks.iter().any(|block| json::member(block, "type") != Some(Value::from("text"))) {
                return Err(NotTokenized::Form("system"));
            }
            content::texts(Some(system))?.into_iter().filter(|text| !content::is_billing(text)).collect()
        }
    };
    Ok(Some(texts.concat()).filter(|text| !text.is_empty()))
}

fn convert(message: &Value, messages: &mut Vec<Value>) -> Result<(), NotTokenized> {
    let role = text(message, "role")?.ok_or(NotTokenized::Form("role"))?;
    let content = json::member(message, "content").ok_or(WRONG)?;
    if &*role == "system" {
        let text = system_text(&content)?.filter(|text| !content::is_billing(text));
        messages.extend(text.map(system));
        return Ok(());
    }
    let mut members = vec![("role", Value::from(&*role))];
    if content.kind() == ValueKind::String {
        members.push(("content", content));
    } else {
        let mut blocks = Blocks::default();
        for block in json::list(&content).ok_or(WRONG)? {
            blocks.add(&block, &role, messages)?;
        }
        members.extend(blocks.into_members());
    }
    let says_nothing = &*role == "user" && !members.iter().any(|(name, _)| *name == "content");
    messages.extend((!says_nothing).then(|| json::object(members)));
    Ok(())
}

// === impl Blocks ===

impl Blocks {
    fn add(&mut self, block: &Value, role: &str, messages: &mut Vec<Value>) -> Result<(), NotTokenized> {
        let kind = text(block, "type")?.ok_or(WRONG)?;
        match &*kind {
            "text" => {
                self.texts.extend(text(block, "text")?.filter(|text| !text.is_empty()));
                self.has_content = !self.texts.is_empty();
            }
            "thinking" => self.thinking.extend(text(block, "thinking")?),
            "redacted_thinking" => {}
            "tool_use" => self.calls.push(call(block)?),
            "tool_result" if role == "user" => messages.push(result(block)?),
            "image" => return Err(NotTokenized::Media),
            _ => return Err(WRONG),
        }
        Ok(())
    }

    fn into_members(self) -> Vec<(&'static str, Value)> {
        let mut members = Vec::new();
        if !self.thinking.is_empty() {
            members.push(("reasoning", Value::from(self.thinking.concat())));
        }
        if !self.calls.is_empty() {
            members.push(("tool_calls", Value::from(self.calls)));
        }
        if self.has_content {
            members.push(("content", self.texts.into_iter().map(Value::from).collect()));
        }
        members
    }
}

fn call(block: &Value) -> Result<Value, NotTokenized> {
    // Without an id, the engine makes one from the time.
    let id = text(block, "id")?.filter(|id| !id.is_empty()).ok_or(WRONG)?;
    let name = text(block, "name")?.unwrap_or_default();
    let input = json::member(block, "input").unwrap_or_else(json::empty);
    let function = json::object([("name", Value::from(name)), ("arguments", input)]);
    Ok(json::object([("id", Value::from(id)), ("type", Value::from("function")), ("function", function)]))
}

fn result(block: &Value) -> Result<Value, NotTokenized> {
    let content = match json::member(block, "content") {
        None => String::new(),
        Some(content) => match content.as_str() {
            Some(text) => text.to_owned(),
            None => result_text(&content)?,
        },
    };
    let id = text(block, "tool_use_id")?.unwrap_or_default();
    let members = [("role", Value::from("tool")), ("tool_call_id", Value::from(id)), ("content", Value::from(content))];
    Ok(json::object(members))
}

fn result_text(content: &Value) -> Result<String, NotTokenized> {
    let mut texts = Vec::new();
    for part in json::list(content).ok_or(WRONG)? {
        match text(&part, "type")?.as_deref() {
            Some("text") => texts.push(text(&part, "text")?.unwrap_or_default()),
            Some("image") => return Err(NotTokenized::Media),
            _ => return Err(WRONG),
        }
    }
    Ok(texts.join("\n"))
}
