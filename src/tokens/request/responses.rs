//! The input of `/v1/responses` as messages of a chat (vLLM's `entrypoints/openai/responses/utils.py`).

use std::sync::Arc;

use minijinja::Value;

use super::chat::{Chat, Continue, Settings};
use super::{Body, text, tools};
use crate::tokens::{NotTokenized, json};

const WRONG: NotTokenized = NotTokenized::Form("input");

/// Reads the body.
pub(super) fn read(body: &Body) -> Result<Chat, NotTokenized> {
    if body.get("truncation").is_some_and(|truncation| truncation.as_str() != Some("disabled")) {
        return Err(NotTokenized::Truncation);
    }
    if body.get("prompt").is_some() {
        return Err(NotTokenized::Form("prompt"));
    }
    let input = body.get("input").ok_or(WRONG)?;
    let mut messages = Vec::new();
    let instructions = text(body.members(), "instructions")?.filter(|text| !text.is_empty());
    messages.extend(instructions.map(|text| message("system", Value::from(text))));
    let mut is_continued = false;
    if input.as_str().is_some() {
        messages.push(message("user", input));
    } else {
        let first = messages.len();
        for item in json::list(&input).ok_or(WRONG)? {
            is_continued = is_partial(&item);
            add(&item, &mut messages, first)?;
        }
    }
    let settings = Settings {
        tools: tools::of_responses(body.get("tools"))?,
        documents: None,
        reasoning_effort: body.get("reasoning").and_then(|reasoning| json::member(&reasoning, "effort")),
        chat_template_kwargs: body.get("chat_template_kwargs"),
    };
    let ending =
        if is_continued { Continue::FinalMessage } else { Continue::NewMessage { add_generation_prompt: true } };
    let mut chat = Chat::new(messages, settings, ending)?;
    // This endpoint, other than chat completions, leaves the tokenizer's own begin and end in.
    chat.add_special_tokens = true;
    Ok(chat)
}

fn message(role: &str, content: Value) -> Value {
    json::object([("role", Value::from(role)), ("content", content)])
}

/// An answer that was broken off, and is to be continued if it is the last.
fn is_partial(item: &Value) -> bool {
    let member = |name| json::member(item, name).and_then(|value| value.as_str().map(str::to_owned));
    matches!(member("type").as_deref(), None | Some("message" | "reasoning"))
        && matches!(member("status").as_deref(), Some("in_progress" | "incomplete"))
}

/// Adds an item, as a message or to the assistant's message before it. Those before `first` are none of the input's.
fn add(item: &Value, messages: &mut Vec<Value>, first: usize) -> Result<(), NotTokenized> {
    let kind = text(item, "type")?;
    match kind.as_deref() {
        Some("function_call") => {
            let calls = messages.get(first..).and_then(|input| input.last()).filter(|last| is_assistant(last));
            let calls = calls
                .and_then(|last| json::member(last, "tool_calls"))
                .and_then(|calls| Some(json::list(&calls)?.collect()));
            let mut calls: Vec<Value> = calls.unwrap_or_default();
            calls.push(call(item)?);
            set("tool_calls", Value::from(calls), true, messages, first);
        }
        Some("function_call_output") => {
            let output = json::member(item, "output").ok_or(WRONG)?;
            let id = json::member(item, "call_id").ok_or(WRONG)?;
            messages.push(json::with(&message("tool", output), "tool_call_id", id));
        }
        Some("reasoning") => set("reasoning", Value::from(reasoning(item)?), false, messages, first),
        None | Some("message") => add_message(item, messages, first)?,
        Some(_) => return Err(WRONG),
    }
    Ok(())
}

fn add_message(item: &Value, messages: &mut Vec<Value>, first: usize) -> Result<(), NotTokenized> {
    let role = text(item, "role")?.ok_or(WRONG)?;
    let content = json::member(item, "content").ok_or(WRONG)?;
    if &*role != "assistant" {
        messages.push(message(&role, content));
        return Ok(());
    }
    // Of an answer in parts, the engine takes the first.
    let said = match content.to_str() {
        Some(text) => text,
        None => {
            let part = json::list(&content).and_then(|mut parts| parts.next()).ok_or(WRONG)?;
            text(&part, "text")?.ok_or(WRONG)?
        }
    };
    set("content", Value::from(said), false, messages, first);
    Ok(())
}

/// Sets a member of the assistant's message that comes last; of a new one, if there is none or, unless it is to be replaced,
/// it has that member.
fn set(name: &str, value: Value, replaces: bool, messages: &mut Vec<Value>, first: usize) {
    let last = messages.get_mut(first..).and_then(|input| input.last_mut());
    let last = last.filter(|last| is_assistant(last) && (replaces || json::member(last, name).is_none()));
    match last {
        Some(last) => *last = json::with(last, name, value),
        None => messages.push(json::object([("role", Value::from("assistant")), (name, value)])),
    }
}

fn is_assistant(message: &Value) -> bool {
    json::member(message, "role").is_some_and(|role| role.as_str() == Some("assistant"))
}

fn call(item: &Value) -> Result<Value, NotTokenized> {
    if json::member(item, "namespace").is_some() {
        return Err(WRONG);
    }
    let member = |name| json::member(item, name).ok_or(WRONG);
    let function = json::object([("arguments", member("arguments")?), ("name", member("name")?)]);
    Ok(json::object([("id", member("call_id")?), ("function", function), ("type", Value::from("function"))]))
}

fn reasoning(item: &Value) -> Result<Arc<str>, NotTokenized> {
    if json::member(item, "encrypted_content").is_some() {
        return Err(WRONG);
    }
    let first_of =
        |name| json::member(item, name).and_then(|parts| json::list(&parts).and_then(|mut parts| parts.next()));
    match first_of("content").or_else(|| first_of("summary")) {
        Some(part) => text(&part, "text")?.ok_or(WRONG),
        None => Ok(Arc::default()),
    }
}
