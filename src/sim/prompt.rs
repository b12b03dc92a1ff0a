//! Request body -> prompt bytes and the few settings that the engine obeys.
//!
//! A token is four bytes here. The prompt is spelled out the way a chat template would, role markers included, so that one
//! turn of a conversation extends the last one together with the engine's own answer. This file is the whole of what
//! the simulated engine knows about request bodies. It does not use [`crate::request`]: an engine that spelled prompts
//! as the proxy does could not show that the proxy spells them wrong.

use serde_json::Value;

use super::endpoint::Endpoint;

/// Bytes of text that make a token.
pub(super) const TOKEN_BYTES: usize = 4;

/// Why a body holds no prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Invalid {
    /// There is no body.
    Empty,
    /// It is not JSON.
    Json {
        /// Bytes read when that showed.
        at: usize,
    },
    /// It is JSON, but lacks a field.
    Missing {
        /// The field.
        field: &'static str,
        /// How many fields there are.
        fields: usize,
    },
}

/// A request that was understood.
#[derive(Debug)]
pub(super) struct Prompt {
    endpoint: Endpoint,
    body: Value,
}

// === impl Prompt ===

impl Prompt {
    /// Reads a body.
    pub(super) fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, Invalid> {
        if body.is_empty() {
            return Err(Invalid::Empty);
        }
        let body: Value = serde_json::from_slice(body).map_err(|error| Invalid::Json { at: offset(body, &error) })?;
        let fields = endpoint.prompt_fields();
        if !fields.iter().any(|&field| body.get(field).is_some_and(|value| !value.is_null())) {
            let count = body.as_object().map_or(0, serde_json::Map::len);
            return Err(Invalid::Missing { field: fields[0], fields: count });
        }
        Ok(Self { endpoint, body })
    }

    /// The model asked for, if one is.
    pub(super) fn model(&self) -> Option<&str> {
        self.body.get("model")?.as_str()
    }

    /// Whether the answer is to be streamed.
    pub(super) fn is_streamed(&self) -> bool {
        self.body.get("stream").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether a stream is to end with its usage.
    pub(super) fn includes_usage(&self) -> bool {
        self.body.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false)
    }

    /// The most tokens to generate, if the request says so.
    pub(super) fn max_tokens(&self) -> Option<u64> {
        const PLACES: [&str; 4] =
            ["/max_completion_tokens", "/max_tokens", "/max_output_tokens", "/sampling_params/max_new_tokens"];
        PLACES.iter().find_map(|place| self.body.pointer(place)?.as_u64())
    }

    /// How many inputs an embedding request has.
    pub(super) fn inputs(&self) -> usize {
        match self.body.get("input") {
            Some(Value::Array(inputs)) if !inputs.iter().all(Value::is_number) => inputs.len(),
            _ => 1,
        }
    }

    /// What separates its blocks from those of others: requests with different values never share one. An empty one is none.
    pub(super) fn salt(&self) -> Option<&str> {
        self.body.get("cache_salt").and_then(Value::as_str).filter(|salt| !salt.is_empty())
    }

    /// Gives the prompt's bytes to `sink`, piece by piece.
    pub(super) fn render(&self, sink: &mut dyn FnMut(&[u8])) {
        match self.endpoint {
            Endpoint::Completions => render_input(&self.body["prompt"], sink),
            Endpoint::Generate if self.body.get("text").is_some() => render_input(&self.body["text"], sink),
            Endpoint::Generate => render_input(&self.body["input_ids"], sink),
            Endpoint::Embeddings if self.body.get("input").is_some() => render_input(&self.body["input"], sink),
            Endpoint::Tokenize if self.body.get("prompt").is_some() => render_input(&self.body["prompt"], sink),
            Endpoint::Responses => self.render_chat("instructions", "input", sink),
            _ => self.render_chat("system", "messages", sink),
        }
    }

    fn render_chat(&self, system: &str, messages: &str, sink: &mut dyn FnMut(&[u8])) {
        if let Some(tools) = self.body.get("tools").filter(|tools| !tools.is_null()) {
            render_message("tools", tools, sink);
        }
        if let Some(system) = self.body.get(system).filter(|system| !system.is_null()) {
            render_message("system", system, sink);
        }
        match &self.body[messages] {
            Value::Array(messages) => messages.iter().for_each(|message| {
                let role = message.get("role").and_then(Value::as_str).unwrap_or("item");
                render_message(role, message, sink);
            }),
            text => render_message("user", text, sink),
        }
        open_message("assistant", sink);
    }
}

fn open_message(role: &str, sink: &mut dyn FnMut(&[u8])) {
    sink(b"<|");
    sink(role.as_bytes());
    sink(b"|>\n");
}

fn render_message(role: &str, message: &Value, sink: &mut dyn FnMut(&[u8])) {
    open_message(role, sink);
    render_content(message.get("content").unwrap_or(message), sink);
    if let Some(calls) = message.get("tool_calls") {
        sink(calls.to_string().as_bytes());
    }
    sink(b"<|end|>\n");
}

/// Text as it is, a list of parts part by part, a part with text by its text, all else by its JSON.
fn render_content(content: &Value, sink: &mut dyn FnMut(&[u8])) {
    match content {
        Value::Null => {}
        Value::String(text) => sink(text.as_bytes()),
        Value::Array(parts) => parts.iter().for_each(|part| render_content(part, sink)),
        other => match other.get("text").and_then(Value::as_str) {
            Some(text) => sink(text.as_bytes()),
            None => sink(other.to_string().as_bytes()),
        },
    }
}

/// A text, a list of token ids (four bytes each, so that one id is one token), or a list of either.
fn render_input(input: &Value, sink: &mut dyn FnMut(&[u8])) {
    match input {
        Value::String(text) => sink(text.as_bytes()),
        Value::Number(id) => sink(&(id.as_u64().unwrap_or(0) as u32).to_le_bytes()),
        Value::Array(inputs) => inputs.iter().for_each(|input| render_input(input, sink)),
        _ => {}
    }
}

/// The byte offset that `error`'s line and column mean.
fn offset(body: &[u8], error: &serde_json::Error) -> usize {
    let lines_before = error.line().saturating_sub(1);
    let mut ends = memchr::memchr_iter(b'\n', body);
    let start = if lines_before == 0 { 0 } else { ends.nth(lines_before - 1).map_or(0, |end| end + 1) };
    (start + error.column()).min(body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(endpoint: Endpoint, body: Value) -> String {
        let prompt = Prompt::read(endpoint, body.to_string().as_bytes()).unwrap();
        let mut bytes = Vec::new();
        prompt.render(&mut |piece| bytes.extend_from_slice(piece));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_next_turn_extends_the_prompt_and_the_answer() {
        let user = serde_json::json!({"role": "user", "content": "Say hello."});
        let answer = serde_json::json!({"role": "assistant", "content": "Hello."});
        let first = text(Endpoint::Chat, serde_json::json!({"messages": [user]}));
        let second = text(Endpoint::Chat, serde_json::json!({"messages": [user, answer, user]}));
        assert!(second.starts_with(&format!("{first}Hello.")), "{second:?} continues {first:?}");
    }

    #[test]
    fn every_form_of_a_conversation_is_spelled_the_same() {
        let chat = text(
            Endpoint::Chat,
            serde_json::json!({"messages": [
                {"role": "system", "content": "Be terse."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
        );
        let messages = text(
            Endpoint::Messages,
            serde_json::json!({"system": [{"type": "text", "text": "Be terse."}],
                "messages": [{"role": "user", "content": "Hi"}]}),
        );
        let responses = text(Endpoint::Responses, serde_json::json!({"instructions": "Be terse.", "input": "Hi"}));
        assert_eq!(chat, messages);
        assert_eq!(chat, responses);
    }

    #[test]
    fn a_body_that_is_no_prompt_says_why() {
        let read = |body: &str| Prompt::read(Endpoint::Chat, body.as_bytes()).unwrap_err();
        assert_eq!(read(""), Invalid::Empty);
        assert_eq!(read(r#"{"model": "tiny-llama", "messages": ["#), Invalid::Json { at: 37 });
        assert_eq!(read("{\n\n  \"a\": }"), Invalid::Json { at: 11 });
        assert_eq!(read(r#"{"model":"m"}"#), Invalid::Missing { field: "messages", fields: 1 });
        assert_eq!(read("[]"), Invalid::Missing { field: "messages", fields: 0 });
    }

    #[test]
    fn a_token_id_is_a_token() {
        let prompt = Prompt::read(Endpoint::Completions, br#"{"prompt": [[1, 2, 3], [4, 5]]}"#).unwrap();
        let mut bytes = 0;
        prompt.render(&mut |piece| bytes += piece.len());
        assert_eq!(bytes, 5 * TOKEN_BYTES);
    }
}
