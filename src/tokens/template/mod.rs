//! Chat templates: Jinja by minijinja, in the environment that transformers gives them.
//!
//! A template is a program. It comes with the model, never with a request, and is bounded all the same: by fuel, and by
//! the size of what it writes. An error in it is the request's to bear; the engine would refuse that request as well.

mod content;
mod dates;
mod python;
mod repr;
mod sums;
mod tags;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use minijinja::{Environment, ErrorKind, Value};

pub(super) use content::ContentFormat;

use super::NotTokenized;
use super::files::TemplateSources;
use super::json;
use super::request::{Chat, Continue};
use super::stop::Stop;

/// Instructions of one rendering, and one more for each 64 bytes made: some tenths of a second. A message takes some
/// hundreds.
const FUEL: u64 = 5_000_000;

/// The longest rendered prompt, bytes: far beyond the longest context windows.
const MAX_RENDERED_BYTES: usize = 32 << 20;

/// Put behind the last message by transformers, to find where it ends. The space shows whether the template trims.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The templates of a model.
#[derive(Debug)]
pub(super) struct ChatTemplates {
    environment: Environment<'static>,
    default: ChatTemplate,
    /// For requests with tools.
    tool_use: Option<ChatTemplate>,
    special_tokens: Vec<(String, Value)>,
    /// Some template needs the system message to be the first.
    merges_system: bool,
}

/// What is known of one template.
#[derive(Debug)]
struct ChatTemplate {
    name: &'static str,
    content_format: ContentFormat,
    has_developer_role: bool,
    mentions_content: bool,
}

/// Takes what is written, up to the bound.
struct Output(Vec<u8>);

// === impl ChatTemplates ===

impl ChatTemplates {
    /// Compiles the templates; an error comes with the file's path.
    pub(super) fn new(
        sources: &TemplateSources,
        special_tokens: &[(String, String)],
    ) -> Result<Self, (minijinja::Error, PathBuf)> {
        let mut environment = python::environment();
        environment.set_fuel(Some(FUEL));
        let mut add = |name, source: &str| {
            let added = environment.add_template_owned(name, sums::taken_apart(&tags::without_generation(source)));
            added.map_err(|error| (error, sources.path.clone()))?;
            Ok(ChatTemplate::new(name, source))
        };
        let default = add("default", &sources.default)?;
        let tool_use = sources.tool_use.as_deref().map(|source| add("tool_use", source)).transpose()?;
        let special_tokens =
            special_tokens.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))).collect();
        let mut templates = Self { environment, default, tool_use, special_tokens, merges_system: false };
        templates.merges_system = std::iter::once(&templates.default)
            .chain(&templates.tool_use)
            .any(|template| templates.needs_system_first(template));
        Ok(templates)
    }

    /// The prompt of a chat, in UTF-8: as minijinja has only texts, that is not looked at again.
    ///
    /// # Errors
    /// [`NotTokenized`] if the template raises an error or goes beyond its bounds.
    pub(super) fn render(&self, chat: &Chat, now: SystemTime, stop: &Stop) -> Result<Vec<u8>, NotTokenized> {
        let tools = chat.variable("tools");
        let template = self.tool_use.as_ref().filter(|_| tools.is_some()).unwrap_or(&self.default);
        let mut messages = chat.messages(template.content_format, template.has_developer_role, self.merges_system)?;
        if messages.is_empty() {
            return Err(NotTokenized::Refused);
        }
        let continued = match chat.ending {
            Continue::FinalMessage => Some(template.mark_final(&mut messages)?),
            Continue::NewMessage { .. } => None,
        };
        let mut variables = self.special_tokens.clone();
        variables.push(("strftime_now".into(), dates::strftime_now(now)));
        variables.extend(chat.variables());
        variables.push(("messages".into(), Value::from(messages)));
        stop.check()?;
        let rendered = self.run(template, json::object(variables), chat.body_bytes)?;
        match continued {
            Some(text) => cut_at_tag(str::from_utf8(&rendered).map_err(|_| NotTokenized::Failed)?, &text),
            None => Ok(rendered),
        }
    }

    /// Runs it, with room for about so many bytes.
    fn run(&self, template: &ChatTemplate, variables: Value, room: usize) -> Result<Vec<u8>, NotTokenized> {
        let template = self.environment.get_template(template.name).map_err(|_| NotTokenized::Failed)?;
        let mut output = Output(Vec::with_capacity(room.min(MAX_RENDERED_BYTES)));
        match template.render_captured_to(variables, &mut output) {
            Ok(_) => Ok(output.0),
            Err(error) => Err(why(&error)),
        }
    }

    /// As vLLM finds out for Anthropic's messages: a conversation with a system message in its middle is refused. It is
    /// tried without the functions of transformers, by which other templates than meant are found to be so.
    fn needs_system_first(&self, template: &ChatTemplate) -> bool {
        let message = |role| json::object([("role", Value::from(role)), ("content", Value::from("t"))]);
        let messages = ["system", "user", "system", "user"].map(message).to_vec();
        let variables = [("messages", Value::from(messages)), ("add_generation_prompt", Value::from(false))];
        self.run(template, json::object(variables), 0).is_err()
    }
}

// === impl ChatTemplate ===

impl ChatTemplate {
    fn new(name: &'static str, source: &str) -> Self {
        Self {
            name,
            content_format: ContentFormat::of(source),
            has_developer_role: source.contains("\"developer\"") || source.contains("'developer'"),
            mentions_content: source.contains("content"),
        }
    }

    /// Puts the tag behind the text of the last message, and gives that text.
    fn mark_final(&self, messages: &mut [Value]) -> Result<String, NotTokenized> {
        let last = messages.last_mut().filter(|_| self.mentions_content).ok_or(NotTokenized::Refused)?;
        let content = json::member(last, "content").ok_or(NotTokenized::Refused)?;
        let (text, marked) = match content.as_str() {
            Some(text) => (text.to_owned(), Value::from(format!("{text}{CONTINUE_TAG}"))),
            None => mark_part(&content)?,
        };
        *last = json::with(last, "content", marked);
        Ok(text)
    }
}

/// The same for content in parts: behind the last of them that has text.
fn mark_part(content: &Value) -> Result<(String, Value), NotTokenized> {
    let mut parts: Vec<Value> = json::list(content).ok_or(NotTokenized::Refused)?.collect();
    let part = parts.iter_mut().rev().find(|part| json::member(part, "text").is_some());
    let part = part.ok_or(NotTokenized::Refused)?;
    let text = json::member(part, "text").and_then(|text| text.as_str().map(str::to_owned));
    let text = text.ok_or(NotTokenized::Refused)?;
    *part = json::with(part, "text", Value::from(format!("{text}{CONTINUE_TAG}")));
    Ok((text, Value::from(parts)))
}

/// What was rendered up to the tag. Where the template trimmed the tag's space, it is taken to trim messages.
fn cut_at_tag(rendered: &str, text: &str) -> Result<Vec<u8>, NotTokenized> {
    if !rendered.contains(python::strip(text)) {
        return Err(NotTokenized::Refused);
    }
    let tag = rendered.rfind(CONTINUE_TAG.trim_end()).ok_or(NotTokenized::Refused)?;
    let before = &rendered[..tag];
    let keeps_space = rendered[tag..].starts_with(CONTINUE_TAG);
    Ok(if keeps_space { before } else { before.trim_end_matches(python::is_space) }.as_bytes().to_vec())
}

fn why(error: &minijinja::Error) -> NotTokenized {
    tell(error);
    match error.kind() {
        ErrorKind::OutOfFuel => NotTokenized::OutOfFuel,
        ErrorKind::WriteFailure => NotTokenized::TooLarge,
        _ => NotTokenized::Refused,
    }
}

/// Writes to the log that a template failed: the first time, the second, the fourth and so on. What it says itself may
/// quote the prompt, so only the kind of error and the line are told.
fn tell(error: &minijinja::Error) {
    static FAILURES: AtomicU64 = AtomicU64::new(0);
    let failures = FAILURES.fetch_add(1, Ordering::Relaxed) + 1;
    if failures.is_power_of_two() {
        let (kind, line) = (error.kind(), error.line().unwrap_or_default());
        log::warn!(
            "a chat template fails on its line {line} ({kind}), {failures} times so far; such requests are cut by bytes"
        );
    }
}

// === impl Output ===

impl io::Write for &mut Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
