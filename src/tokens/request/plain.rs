//! Prompts that are no conversations: texts, token ids, and lists of either.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::{Body, Plan, PlannedPrompt};
use crate::request::MAX_PROMPTS;
use crate::tokens::{NotTokenized, json};

/// Reads the member of that name.
pub(super) fn read(body: &Body, name: &'static str) -> Result<Plan, NotTokenized> {
    if body.get("suffix").is_some() {
        return Err(NotTokenized::Form("suffix"));
    }
    let prompt = body.get(name).ok_or(NotTokenized::Form(name))?;
    plan(&prompt, name, body.flag("add_special_tokens", true)?)
}

/// Reads SGLang's `text` or `input_ids`.
pub(super) fn read_generate(body: &Body) -> Result<Plan, NotTokenized> {
    match (body.get("text"), body.get("input_ids")) {
        (Some(text), None) => plan(&text, "text", true),
        (None, Some(ids)) => plan(&ids, "input_ids", true),
        _ => Err(NotTokenized::Form("text")),
    }
}

fn plan(prompt: &Value, name: &'static str, add_special_tokens: bool) -> Result<Plan, NotTokenized> {
    let one = |value: &Value| match value.to_str() {
        Some(text) => Ok(PlannedPrompt::Text { text, add_special_tokens }),
        None => ids(value).map(PlannedPrompt::Ids).ok_or(NotTokenized::Form(name)),
    };
    let Some(elements) = json::list(prompt) else {
        return Ok(Plan { prompts: vec![one(prompt)?], more_prompts: 0 });
    };
    let elements: Vec<Value> = elements.collect();
    match elements.first().map(Value::kind) {
        None => Err(NotTokenized::Form(name)),
        Some(ValueKind::Number) => Ok(Plan { prompts: vec![one(prompt)?], more_prompts: 0 }),
        Some(_) => {
            let prompts = elements.iter().take(MAX_PROMPTS).map(one).collect::<Result<_, _>>()?;
            Ok(Plan { prompts, more_prompts: elements.len().saturating_sub(MAX_PROMPTS) as u64 })
        }
    }
}

/// A list of token ids; none for anything else, and for an empty one.
fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: Value| {
        let id = value.as_i64().filter(|_| value.is_integer())?;
        u32::try_from(id).ok()
    };
    let ids: Vec<u32> = json::list(value)?.map(id).collect::<Option<_>>()?;
    (!ids.is_empty()).then_some(ids)
}
