//! What of `tokenizer_config.json` matters to token ids: special tokens, added tokens, and chat templates.

use std::path::Path;

use serde_json::{Map, Value};

use super::LoadError;

/// The names under which templates see special tokens, as in transformers.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The parts of one `tokenizer_config.json`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TokenizerConfig {
    /// Name and text of each special token that is set.
    pub(super) special_tokens: Vec<(String, String)>,
    pub(super) templates: Templates,
    /// Whether a text gets the tokens of its begin and end, where it says so.
    pub(super) ends: Option<Ends>,
    /// `added_tokens_decoder`, in the form that `tokenizer.json` has in `added_tokens`.
    pub(super) added_tokens: Vec<Value>,
}

/// Sources of templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Templates {
    pub(super) default: Option<String>,
    /// For requests with tools, if there is another for them.
    pub(super) tool_use: Option<String>,
}

/// `add_bos_token` and `add_eos_token`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) bos: bool,
    pub(super) eos: bool,
}

/// Reads a config; `path` is named in errors.
pub(super) fn read(config: &Map<String, Value>, path: &Path) -> Result<TokenizerConfig, LoadError> {
    Ok(TokenizerConfig {
        special_tokens: special_tokens(config, path)?,
        templates: templates(config.get("chat_template"), path)?,
        ends: ends(config, path)?,
        added_tokens: added_tokens(config, path)?,
    })
}

fn wrong(path: &Path, field: &'static str, expected: &'static str) -> LoadError {
    LoadError::Field { path: path.to_owned(), field, expected }
}

fn special_tokens(config: &Map<String, Value>, path: &Path) -> Result<Vec<(String, String)>, LoadError> {
    let mut tokens = Vec::new();
    for name in SPECIAL_TOKENS {
        let text = match config.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => Some(text),
            Some(Value::Object(token)) => token.get("content").and_then(|text| match text {
                Value::String(text) => Some(text),
                _ => None,
            }),
            Some(_) => None,
        };
        let text = text.ok_or_else(|| wrong(path, name, "a string, or an object with a string `content`"))?;
        tokens.push((name.to_owned(), text.clone()));
    }
    Ok(tokens)
}

fn templates(field: Option<&Value>, path: &Path) -> Result<Templates, LoadError> {
    let expected = || wrong(path, "chat_template", "a string, or a list of objects with a `name` and a `template`");
    let mut templates = Templates::default();
    match field {
        None | Some(Value::Null) => {}
        Some(Value::String(source)) => templates.default = Some(source.clone()),
        Some(Value::Array(named)) => {
            for entry in named {
                let part = |name| entry.get(name).and_then(Value::as_str);
                let (Some(name), Some(source)) = (part("name"), part("template")) else { return Err(expected()) };
                match name {
                    "default" => templates.default = Some(source.to_owned()),
                    "tool_use" => templates.tool_use = Some(source.to_owned()),
                    // Used by name only, which a request cannot give.
                    _ => {}
                }
            }
        }
        Some(_) => return Err(expected()),
    }
    Ok(templates)
}

/// As in transformers 5: that one of both is given at all replaces what `tokenizer.json` puts around a text.
fn ends(config: &Map<String, Value>, path: &Path) -> Result<Option<Ends>, LoadError> {
    let flag = |name| match config.get(name) {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(false)),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(wrong(path, name, "true or false")),
    };
    let (bos, eos) = (flag("add_bos_token")?, flag("add_eos_token")?);
    Ok((bos.is_some() || eos.is_some()).then(|| Ends { bos: bos == Some(true), eos: eos == Some(true) }))
}

fn added_tokens(config: &Map<String, Value>, path: &Path) -> Result<Vec<Value>, LoadError> {
    let expected = || wrong(path, "added_tokens_decoder", "an object of ids to objects with a string `content`");
    let tokens = match config.get("added_tokens_decoder") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(tokens)) => tokens,
        Some(_) => return Err(expected()),
    };
    let mut added = Vec::with_capacity(tokens.len());
    for (id, token) in tokens {
        let (Ok(id), Some(content)) = (id.parse::<u32>(), token.get("content").and_then(Value::as_str)) else {
            return Err(expected());
        };
        let flag = |name, default| token.get(name).and_then(Value::as_bool).unwrap_or(default);
        let special = flag("special", false);
        added.push(serde_json::json!({
            "id": id,
            "content": content,
            "single_word": flag("single_word", false),
            "lstrip": flag("lstrip", false),
            "rstrip": flag("rstrip", false),
            "normalized": flag("normalized", !special),
            "special": special,
        }));
    }
    Ok(added)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<TokenizerConfig, LoadError> {
        read(&serde_json::from_str(json).unwrap(), Path::new("tokenizer_config.json"))
    }

    #[test]
    fn special_tokens_are_strings_or_objects() {
        let config =
            parse(r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null}"#);
        let tokens = config.unwrap().special_tokens;
        assert_eq!(tokens, [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn there_may_be_a_template_for_tools() {
        let named = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"},
            {"name": "rag", "template": "c"}]}"#;
        let expected = Templates { default: Some("a".into()), tool_use: Some("b".into()) };
        assert_eq!(parse(named).unwrap().templates, expected);
    }

    #[test]
    fn an_error_says_where_and_what_is_right() {
        let errors = [
            (r#"{"bos_token": 1}"#, "`bos_token` must be a string, or an object with a string `content`"),
            (r#"{"chat_template": 1}"#, "`chat_template` must be a string, or a list"),
            (r#"{"chat_template": [{"name": "default"}]}"#, "`chat_template` must be a string, or a list"),
            (r#"{"add_bos_token": "yes"}"#, "`add_bos_token` must be true or false"),
            (r#"{"added_tokens_decoder": {"x": {"content": "a"}}}"#, "`added_tokens_decoder` must be an object"),
        ];
        for (json, expected) in errors {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains("tokenizer_config.json") && error.contains(expected), "{json} gave: {error}");
        }
    }
}
