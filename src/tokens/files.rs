//! The files of a tokenizer: where they are, and how they are read together, as transformers does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::pipeline::{EncodeOptions, PipelineTokenizer};

use super::config::{self, Templates, TokenizerConfig};
use super::encode::Encoder;

/// The largest file that is read: some ten times the largest `tokenizer.json` in use.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Where a tokenizer is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenizerFiles {
    /// `tokenizer.json`, or a folder that holds it. In a folder the others are found by their usual names.
    pub tokenizer: PathBuf,
    /// `tokenizer_config.json`: special tokens, and often the chat template.
    pub config: Option<PathBuf>,
    /// `chat_template.jinja`; used rather than a template within the config.
    pub chat_template: Option<PathBuf>,
}

/// Why a tokenizer cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read {}; it has to be a readable file", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is too large to be what it should be.
    #[error("{} is larger than {MAX_FILE_BYTES} bytes; a file of a tokenizer is expected", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A file is not JSON, or not an object.
    #[error("{} is not a JSON object", path.display())]
    NotJson {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A member of the config is of another form than it should be.
    #[error("{}: `{field}` must be {expected}", path.display())]
    Field {
        /// Which file.
        path: PathBuf,
        /// Which member.
        field: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// The tokenizer is of a kind that cannot be used.
    #[error("{}: {problem}; a tokenizer.json of Hugging Face's `tokenizers` is expected", path.display())]
    Tokenizer {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The chat template is not a template.
    #[error("{}: the chat template is not valid Jinja as transformers takes it", path.display())]
    Template {
        /// The file that holds it.
        path: PathBuf,
        /// What is wrong.
        source: minijinja::Error,
    },
}

/// What the files hold.
pub(super) struct Loaded {
    pub(super) encoder: Encoder,
    pub(super) special_tokens: Vec<(String, String)>,
    pub(super) templates: Option<TemplateSources>,
}

/// Templates, and the file they are from.
pub(super) struct TemplateSources {
    pub(super) default: String,
    pub(super) tool_use: Option<String>,
    pub(super) path: PathBuf,
}

/// Reads all files.
pub(super) fn load(files: &TokenizerFiles) -> Result<Loaded, LoadError> {
    let files = files.found();
    let config = match &files.config {
        Some(path) => config::read(&object(path)?, path)?,
        None => TokenizerConfig::default(),
    };
    let pipeline = pipeline(&files.tokenizer, &config.added_tokens)?;
    let mut encoder = Encoder::new(pipeline);
    if let Some(ends) = config.ends {
        let token = |name| {
            let token = config.special_tokens.iter().find(|(other, _)| other == name);
            token.and_then(|(_, token)| encoder.added_token(token))
        };
        let (bos, eos) = (token("bos_token").filter(|_| ends.bos), token("eos_token").filter(|_| ends.eos));
        encoder = encoder.with_ends(bos, eos);
    }
    let templates = templates(&files, config.templates)?;
    Ok(Loaded { encoder, special_tokens: config.special_tokens, templates })
}

fn templates(files: &TokenizerFiles, config: Templates) -> Result<Option<TemplateSources>, LoadError> {
    if let Some(path) = &files.chat_template {
        let tool_use = path.with_file_name("additional_chat_templates").join("tool_use.jinja");
        let tool_use = tool_use.is_file().then(|| read(&tool_use)).transpose()?;
        return Ok(Some(TemplateSources { default: read(path)?, tool_use, path: path.clone() }));
    }
    let Some(path) = &files.config else { return Ok(None) };
    // A template for tools alone is of no use without tools, and transformers refuses it then.
    let Templates { default: Some(default), tool_use } = config else { return Ok(None) };
    Ok(Some(TemplateSources { default, tool_use, path: path.clone() }))
}

fn pipeline(path: &Path, added_tokens: &[Value]) -> Result<PipelineTokenizer, LoadError> {
    let text = read(path)?;
    let problem = |problem: String| LoadError::Tokenizer { path: path.to_owned(), problem };
    let pipeline = parse(&text).map_err(problem)?;
    let missing = missing_tokens(&pipeline, added_tokens);
    if missing.is_empty() {
        return Ok(pipeline);
    }
    let mut document: Value =
        serde_json::from_str(&text).map_err(|source| LoadError::NotJson { path: path.to_owned(), source })?;
    add_tokens(&mut document, missing);
    parse(&document.to_string()).map_err(problem)
}

/// The tokenizer of a `tokenizer.json`; else what is wrong with it.
pub(super) fn parse(json: &str) -> Result<PipelineTokenizer, String> {
    let pipeline = match tokenizers::from_json(json) {
        Ok(pipeline) => pipeline,
        // Most files are of an older form, which is brought into that of today.
        Err(_) => {
            let json = tokenizers::canonicalize_str(json).map_err(|error| error.to_string())?;
            tokenizers::from_json(&json).map_err(|error| error.to_string())?
        }
    };
    // Some kinds of pre-tokenizer are read, and fail at the first text.
    let sample = pipeline.encode_into("a sample, 1 2", &EncodeOptions::no_specials(), &mut Vec::new());
    sample.map(|()| pipeline).map_err(|error| error.to_string())
}

/// The added tokens of the config that the tokenizer has not, or has with other properties.
fn missing_tokens(pipeline: &PipelineTokenizer, added_tokens: &[Value]) -> Vec<Value> {
    let known = pipeline.get_added_vocabulary().get_added_tokens_decoder();
    let is_known = |token: &&Value| {
        let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        id.and_then(|id| known.get(&id)).is_some_and(|known| {
            // Of a token that is matched in normalized text, the tokenizer only has that form.
            (known.normalized || token["content"] == known.content.as_str())
                && token["single_word"] == known.single_word
                && token["lstrip"] == known.lstrip
                && token["rstrip"] == known.rstrip
                && token["normalized"] == known.normalized
        })
    };
    added_tokens.iter().filter(|token| !is_known(token)).cloned().collect()
}

fn add_tokens(document: &mut Value, missing: Vec<Value>) {
    let Some(document) = document.as_object_mut() else { return };
    let tokens = document.entry("added_tokens").or_insert_with(|| Value::Array(Vec::new()));
    let Some(tokens) = tokens.as_array_mut() else { return };
    tokens.retain(|token| !missing.iter().any(|new| new["id"] == token["id"]));
    tokens.extend(missing);
    tokens.sort_by_key(|token| token["id"].as_u64());
}

fn object(path: &Path) -> Result<Map<String, Value>, LoadError> {
    serde_json::from_str(&read(path)?).map_err(|source| LoadError::NotJson { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<String, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(failed)?.len() > MAX_FILE_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    fs::read_to_string(path).map_err(failed)
}

// === impl TokenizerFiles ===

impl TokenizerFiles {
    /// The files in a folder, or beside nothing else a single `tokenizer.json`.
    pub fn at(tokenizer: impl Into<PathBuf>) -> Self {
        Self { tokenizer: tokenizer.into(), config: None, chat_template: None }
    }

    /// With the files that lie in the folder filled in.
    fn found(&self) -> Self {
        if !self.tokenizer.is_dir() {
            return self.clone();
        }
        let usual = |name| Some(self.tokenizer.join(name)).filter(|path| path.is_file());
        Self {
            tokenizer: self.tokenizer.join("tokenizer.json"),
            config: self.config.clone().or_else(|| usual("tokenizer_config.json")),
            chat_template: self.chat_template.clone().or_else(|| usual("chat_template.jinja")),
        }
    }
}

#[cfg(test)]
mod tests;
