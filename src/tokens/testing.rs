//! Tokenizers for this module's tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{Tokenizer, TokenizerFiles};
use crate::testing;

/// A folder that goes when dropped.
pub(super) struct Folder(pub(super) PathBuf);

/// That of the engine that was recorded.
pub(super) fn recorded() -> Option<Tokenizer> {
    let model = testing::shared("fixtures/vllm/model")?;
    Some(Tokenizer::load(&TokenizerFiles::at(model)).unwrap())
}

/// A tokenizer with this `tokenizer.json` and config.
pub(super) fn tokenizer(json: &Value, config: &Value) -> Tokenizer {
    let folder = Folder::new();
    folder.write("tokenizer.json", &json.to_string());
    folder.write("tokenizer_config.json", &config.to_string());
    Tokenizer::load(&TokenizerFiles::at(&folder.0)).unwrap()
}

/// One of a byte a token, with this chat template.
pub(super) fn with_template(template: &str) -> Tokenizer {
    tokenizer(&byte_level(), &json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}))
}

/// The smallest byte-level BPE: 256 bytes, some merges, and special tokens.
pub(super) fn byte_level() -> Value {
    let alphabet = alphabet();
    let mut vocab: serde_json::Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, char)| (char.to_string(), json!(id))).collect();
    let merges = [
        ["t", "h"],
        ["th", "e"],
        ["Ġ", "a"],
        ["Ġ", "the"],
        ["i", "n"],
        ["in", "g"],
        ["e", "r"],
        ["Ċ", "Ċ"],
        ["Ġ", "Ġ"],
    ];
    for [left, right] in merges {
        let id = vocab.len();
        vocab.insert(format!("{left}{right}"), json!(id));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": special(vocab.len(), &["<s>", "</s>", "<|user|>", "<|end|>"]),
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
}

/// Special tokens with ids from `first` on.
pub(super) fn special(first: usize, contents: &[&str]) -> Value {
    let token = |(place, content): (usize, &&str)| {
        json!({"id": first + place, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    contents.iter().enumerate().map(token).collect()
}

/// The characters that stand for bytes in byte-level vocabularies, by the bytes.
pub(super) fn alphabet() -> Vec<char> {
    let is_itself = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..256)
        .map(|byte| {
            let code = if is_itself(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap()
        })
        .collect()
}

// === impl Folder ===

impl Folder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("warmgate-tokens-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
