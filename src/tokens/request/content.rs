//! The content of a message, as the template's form of it wants it.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::tokens::template::ContentFormat;
use crate::tokens::{NotTokenized, json};

/// Members by which a part is one with media, whatever its type says.
const MEDIA: [&str; 12] = [
    "input_image",
    "image_url",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "image_pil",
    "audio_url",
    "input_audio",
    "video_url",
    "image",
    "file",
];

/// A line that a client puts before its system message and that is another one at every request; engines drop it.
const BILLING: &str = "x-anthropic-billing-header";

/// The texts of a message's content, one a part.
pub(super) fn texts(content: Option<&Value>) -> Result<Vec<Arc<str>>, NotTokenized> {
    let Some(content) = content else { return Ok(Vec::new()) };
    if let Some(text) = content.to_str() {
        return Ok(vec![text]);
    }
    let parts = json::list(content).ok_or(NotTokenized::Form("content"))?;
    let mut texts = Vec::new();
    for part in parts {
        texts.extend(part_text(&part)?);
    }
    Ok(texts)
}

/// The text of one part; none for one without, which is skipped.
fn part_text(part: &Value) -> Result<Option<Arc<str>>, NotTokenized> {
    if let Some(text) = part.to_str() {
        return Ok(Some(text));
    }
    if part.kind() != ValueKind::Map {
        return Err(NotTokenized::Form("content"));
    }
    let kind = json::member(part, "type");
    let kind = kind.as_ref().and_then(Value::as_str);
    if MEDIA.iter().any(|name| kind == Some(name) || json::member(part, name).is_some()) {
        return Err(NotTokenized::Media);
    }
    if json::member(part, "uuid").is_some() {
        return Err(NotTokenized::Form("content"));
    }
    let (member, can_be_null) = match kind {
        Some("text") => ("text", true),
        Some("input_text" | "output_text") => ("text", false),
        Some("refusal") => ("refusal", true),
        Some("thinking") => ("thinking", false),
        _ => return Err(NotTokenized::Form("content")),
    };
    match json::member(part, member) {
        None if can_be_null => Ok(None),
        Some(text) => text.to_str().map(Some).ok_or(NotTokenized::Form("content")),
        None => Err(NotTokenized::Form("content")),
    }
}

/// Drops the line of billing from a system message's texts.
pub(super) fn without_billing(texts: &mut Vec<Arc<str>>) {
    texts.retain_mut(|text| {
        if !text.starts_with(BILLING) {
            return true;
        }
        *text = text.split_once('\n').map_or("", |(_, rest)| rest).into();
        !text.is_empty()
    });
}

/// Whether a text is dropped where Anthropic's messages are made those of a chat.
pub(super) fn is_billing(text: &str) -> bool {
    text.starts_with(BILLING)
}

/// The content of a message of `role` with these texts.
pub(super) fn formed(texts: &[Arc<str>], format: ContentFormat, role: &str) -> Value {
    match format {
        ContentFormat::String if texts.len() == 1 => Value::from(Arc::clone(&texts[0])),
        ContentFormat::String => {
            let texts: Vec<&str> = texts.iter().map(Arc::as_ref).filter(|text| !text.is_empty()).collect();
            Value::from(texts.join("\n"))
        }
        // Results of tools are one text for all templates.
        ContentFormat::Parts if role == "tool" => Value::from(texts.join("\n")),
        ContentFormat::Parts => texts
            .iter()
            .map(|text| json::object([("type", Value::from("text")), ("text", Value::from(Arc::clone(text)))]))
            .collect(),
    }
}
