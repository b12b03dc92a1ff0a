//! Conversations in the form of chat completions, and what the template gets of them.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{Body, content, text, tools};
use crate::tokens::template::ContentFormat;
use crate::tokens::{NotTokenized, json};

/// Arguments of the engine's own function, which no request sets.
const NOT_VARIABLES: [&str; 8] = [
    "chat_template",
    "tokenize",
    "conversation",
    "messages",
    "return_assistant_tokens_mask",
    "sanitize_control_tokens",
    "tokenizer_kwargs",
    "return_dict",
];

/// A conversation.
#[derive(Debug)]
pub(in crate::tokens) struct Chat {
    /// In the form of chat completions.
    messages: Vec<Value>,
    /// What the template gets beside the messages, the last of equal names counting.
    variables: Vec<(String, Value)>,
    pub(in crate::tokens) ending: Continue,
    pub(in crate::tokens) add_special_tokens: bool,
    /// The length of the request's body, about which the prompt will have as well.
    pub(in crate::tokens) body_bytes: usize,
    /// It was one of Anthropic's: system messages within are put to the first, for templates that need it.
    pub(super) may_merge_system: bool,
}

/// How the prompt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tokens) enum Continue {
    /// With the last message, or the begin of the next.
    NewMessage { add_generation_prompt: bool },
    /// Within the last message, which the model continues.
    FinalMessage,
}

/// What a conversation is made of, beside its messages.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) tools: Option<Value>,
    pub(super) documents: Option<Value>,
    pub(super) reasoning_effort: Option<Value>,
    pub(super) chat_template_kwargs: Option<Value>,
}

/// Reads the body of a chat completion, or of `/tokenize` with messages.
pub(super) fn read(body: &Body) -> Result<Chat, NotTokenized> {
    let messages = body.get("messages").ok_or(NotTokenized::Form("messages"))?;
    let messages = json::list(&messages).ok_or(NotTokenized::Form("messages"))?.collect();
    let add_generation_prompt = body.flag("add_generation_prompt", true)?;
    let ending = match body.flag("continue_final_message", false)? {
        true if add_generation_prompt => return Err(NotTokenized::Refused),
        true => Continue::FinalMessage,
        false => Continue::NewMessage { add_generation_prompt },
    };
    let settings = Settings {
        tools: tools::of_chat(body.get("tools"))?,
        documents: documents(body.get("documents"))?,
        reasoning_effort: body.get("reasoning_effort"),
        chat_template_kwargs: body.get("chat_template_kwargs"),
    };
    let mut chat = Chat::new(messages, settings, ending)?;
    chat.add_special_tokens = body.flag("add_special_tokens", false)?;
    Ok(chat)
}

fn documents(documents: Option<Value>) -> Result<Option<Value>, NotTokenized> {
    let Some(documents) = documents else { return Ok(None) };
    let is_document = |document: Value| {
        json::members(&document).is_some_and(|members| members.iter().all(|(_, value)| value.as_str().is_some()))
    };
    let is_right = json::list(&documents).is_some_and(|mut documents| documents.all(is_document));
    if is_right { Ok(Some(documents)) } else { Err(NotTokenized::Form("documents")) }
}

// === impl Chat ===

impl Chat {
    pub(super) fn new(messages: Vec<Value>, settings: Settings, ending: Continue) -> Result<Self, NotTokenized> {
        let variables = settings.variables(ending)?;
        Ok(Self { messages, variables, ending, add_special_tokens: false, body_bytes: 0, may_merge_system: false })
    }

    pub(in crate::tokens) fn variables(&self) -> impl Iterator<Item = (String, Value)> {
        self.variables.iter().cloned()
    }

    /// The variable of that name; none if it is null.
    pub(in crate::tokens) fn variable(&self, name: &str) -> Option<&Value> {
        let last = self.variables.iter().rev().find(|(other, _)| other == name);
        last.map(|(_, value)| value).filter(|value| !value.is_none())
    }

    /// The messages as the template gets them.
    pub(in crate::tokens) fn messages(
        &self,
        format: ContentFormat,
        has_developer_role: bool,
        merges_system: bool,
    ) -> Result<Vec<Value>, NotTokenized> {
        let merged = (self.may_merge_system && merges_system).then(|| merged_system(&self.messages, ""));
        let messages = merged.as_ref().unwrap_or(&self.messages);
        let mut messages = messages.iter().map(|each| message(each, format)).collect::<Result<Vec<_>, _>>()?;
        if !has_developer_role && messages.iter().any(|message| is_of(message, "developer")) {
            for message in &mut messages {
                if is_of(message, "developer") {
                    *message = as_system(message);
                }
            }
            messages = consolidated(messages);
        }
        Ok(messages)
    }
}

fn is_of(message: &Value, role: &str) -> bool {
    json::member(message, "role").is_some_and(|member| member.as_str() == Some(role))
}

fn message(message: &Value, format: ContentFormat) -> Result<Value, NotTokenized> {
    if format == ContentFormat::String && is_formed(message) {
        return Ok(message.clone());
    }
    let role = text(message, "role")?.ok_or(NotTokenized::Form("role"))?;
    let mut texts = content::texts(json::member(message, "content").as_ref())?;
    if &*role == "system" {
        content::without_billing(&mut texts);
    }
    let mut members = vec![("role", Value::from(&*role)), ("content", content::formed(&texts, format, &role))];
    let mut keep = |name, value: Option<Value>| members.extend(value.map(|value| (name, value)));
    match &*role {
        "assistant" => {
            let calls = json::member(message, "tool_calls").map(|calls| tools::calls(&calls)).transpose()?.flatten();
            keep("tool_calls", calls);
            // One value under all the names that templates read.
            let reasoning = text(message, "reasoning")?;
            let reasoning = reasoning.map_or_else(|| text(message, "reasoning_content"), |text| Ok(Some(text)))?;
            let reasoning = reasoning.map(Value::from);
            keep("reasoning", reasoning.clone());
            keep("reasoning_content", reasoning.clone());
            keep("thinking", reasoning);
        }
        "tool" => keep("tool_call_id", json::member(message, "tool_call_id")),
        "developer" => keep("tools", json::member(message, "tools")),
        _ => {}
    }
    for name in ["name", "task"] {
        keep(name, json::member(message, name).filter(|value| value.kind() == ValueKind::String));
    }
    Ok(json::object(members))
}

/// Whether [`message`] would make the same of it: most messages are a role and a text, and need no copy.
fn is_formed(message: &Value) -> bool {
    let Some(mut members) = message.as_object().and_then(|object| object.try_iter_pairs()) else { return false };
    let mut is_text = |name| {
        members.next().is_some_and(|(key, value)| {
            key.as_str() == Some(name) && value.as_str().is_some_and(|text| !content::is_billing(text))
        })
    };
    is_text("role") && is_text("content") && members.next().is_none()
}

fn as_system(message: &Value) -> Value {
    let members = json::members(message).unwrap_or_default();
    let kept = members.into_iter().filter(|(name, _)| name.as_str() != Some("tools"));
    json::with(&Value::from_pairs(kept), "role", Value::from("system"))
}

/// One system message before all others, if one does not stand first anyway.
fn consolidated(messages: Vec<Value>) -> Vec<Value> {
    let is_system = |message: &Value| is_of(message, "system");
    if messages.iter().skip(1).any(is_system) { merged_system(&messages, "\n\n") } else { messages }
}

/// All system messages in one before the others, if there are any that say something.
fn merged_system(messages: &[Value], separator: &str) -> Vec<Value> {
    let (system, others): (Vec<&Value>, Vec<&Value>) = messages.iter().partition(|message| is_of(message, "system"));
    let texts = system.iter().filter_map(|message| {
        let texts = content::texts(json::member(message, "content").as_ref()).ok()?;
        Some(texts.join("\n")).filter(|text| !text.is_empty())
    });
    let text = texts.collect::<Vec<_>>().join(separator);
    let first = json::object([("role", Value::from("system")), ("content", Value::from(text))]);
    let first = (!system.is_empty()).then_some(first);
    first.into_iter().chain(others.into_iter().cloned()).collect()
}

// === impl Settings ===

impl Settings {
    /// As vLLM merges them: the request's own members before its `chat_template_kwargs`, and these before its tools.
    fn variables(self, ending: Continue) -> Result<Vec<(String, Value)>, NotTokenized> {
        let is_set = |value: &Value| !value.is_none() && value.as_str() != Some("auto");
        let kwargs = match &self.chat_template_kwargs {
            None => Vec::new(),
            Some(kwargs) => json::members(kwargs).ok_or(NotTokenized::Form("chat_template_kwargs"))?,
        };
        let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if kwargs.iter().any(|(key, _)| NOT_VARIABLES.contains(&name(key).as_str())) {
            return Err(NotTokenized::Form("chat_template_kwargs"));
        }
        let thinks = kwargs.iter().any(|(key, _)| key.as_str() == Some("enable_thinking"));
        let null = || Value::from(());
        let mut variables =
            vec![("tools".to_owned(), self.tools.unwrap_or_else(null)), ("documents".to_owned(), null())];
        variables
            .extend(kwargs.iter().filter(|(_, value)| is_set(value)).map(|(key, value)| (name(key), value.clone())));
        variables.extend(self.documents.map(|documents| ("documents".to_owned(), documents)));
        if let Some(effort) = self.reasoning_effort {
            if !thinks {
                let thinks = effort.as_str() != Some("none");
                variables.push(("enable_thinking".to_owned(), Value::from(thinks)));
            }
            variables.extend(Some(effort).filter(is_set).map(|effort| ("reasoning_effort".to_owned(), effort)));
        }
        let add_generation_prompt = matches!(ending, Continue::NewMessage { add_generation_prompt: true });
        variables.push(("add_generation_prompt".to_owned(), Value::from(add_generation_prompt)));
        Ok(variables)
    }
}
