//! A model's files, as far as a router and an engine need one: a tokenizer that makes each byte a token, and a template.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Map, Value, json};

const SPECIAL: [&str; 4] = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];

const TEMPLATE: &str = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}\
                        {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// A folder with the files, which goes when this is dropped.
pub(crate) struct Model(PathBuf);

// === impl Model ===

impl Model {
    pub(crate) fn write() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("warmgate-exact-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
        std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
        Self(folder)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tokenizer() -> Value {
    let vocabulary: Map<String, Value> = (0..=u8::MAX).map(|byte| (letter(byte).to_string(), json!(byte))).collect();
    let added: Vec<Value> = (256..)
        .zip(SPECIAL)
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        })
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []}})
}

/// How a byte-level vocabulary writes a byte: as the character of that number where it can be seen, the others after 256.
fn letter(byte: u8) -> char {
    let is_seen = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match is_seen(&byte) {
        true => char::from(byte),
        false => char::from_u32(256 + (0..byte).filter(|byte| !is_seen(byte)).count() as u32).unwrap(),
    }
}
