//! The members of a body.
//!
//! A conversation's messages come again with each of its turns, and tools with each request: those that were read before
//! are passed over at the speed of hashing.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::request::{Endpoint, JsonError, Kind, Scanner};
use crate::tokens::cache::TextCache;
use crate::tokens::{NotTokenized, json};

/// The members of a body.
#[derive(Debug)]
pub(super) struct Body(Value);

// === impl Body ===

impl Body {
    /// Reads a body, but its messages and tools only if they are not in the cache.
    pub(super) fn read(endpoint: Endpoint, body: &[u8], cache: &TextCache) -> Result<Self, NotTokenized> {
        let mut members = Vec::new();
        let mut scanner = Scanner::of_value(body);
        let read = scanner.object(|name, scanner| {
            let name = name.text();
            let is_list = name == "messages" || name == "tools" || name == "input" && endpoint == Endpoint::Responses;
            let value = if is_list { list(scanner, cache)? } else { value(scanner)? };
            members.push((Value::from(name), value));
            Ok(())
        });
        read.and_then(|()| scanner.end()).map_err(|_| NotTokenized::Form("JSON"))?;
        Ok(Self(Value::from_pairs(members)))
    }

    /// The member of that name, if it is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        json::member(&self.0, name)
    }

    pub(super) fn members(&self) -> &Value {
        &self.0
    }

    pub(super) fn flag(&self, name: &'static str, default: bool) -> Result<bool, NotTokenized> {
        match self.get(name) {
            None => Ok(default),
            Some(value) if value.kind() == ValueKind::Bool => Ok(value.is_true()),
            Some(_) => Err(NotTokenized::Form(name)),
        }
    }

    /// Refuses what changes a prompt of any form.
    pub(super) fn refuse(&self) -> Result<(), NotTokenized> {
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

/// Reads a list of objects, or any other value.
fn list(scanner: &mut Scanner<'_>, cache: &TextCache) -> Result<Value, JsonError> {
    if scanner.peek()? != Kind::Array {
        return value(scanner);
    }
    let mut elements = Vec::new();
    scanner.array(|scanner| {
        elements.push(if scanner.peek()? == Kind::Object { known(scanner, cache)? } else { value(scanner)? });
        Ok(())
    })?;
    Ok(Value::from(elements))
}

/// Reads an object, unless it is in the cache.
fn known(scanner: &mut Scanner<'_>, cache: &TextCache) -> Result<Value, JsonError> {
    let text = scanner.rest();
    if let Some((known, len)) = cache.message(text) {
        scanner.pass(len);
        return Ok(known);
    }
    let read = role_first(value(scanner)?);
    cache.put_message(&text[..text.len() - scanner.rest().len()], &read);
    Ok(read)
}

/// A message in the order in which templates get it, so that most need no other form later. Nothing else depends on it.
fn role_first(object: Value) -> Value {
    let Some(role) = json::member(&object, "role") else { return object };
    let others = json::members(&object).unwrap_or_default();
    let others = others.into_iter().filter(|(name, _)| name.as_str() != Some("role"));
    Value::from_pairs([(Value::from("role"), role)].into_iter().chain(others))
}

fn value(scanner: &mut Scanner<'_>) -> Result<Value, JsonError> {
    scanner.peek()?;
    let wrong = |_| JsonError::NotJson { offset: scanner.position(), what: "expected a value" };
    let (value, len) = json::parse_first(scanner.rest()).map_err(wrong)?;
    scanner.pass(len);
    Ok(value)
}
