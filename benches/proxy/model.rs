//! The files of a model that nobody has trained: a byte-level tokenizer with a token for each word of `prose`, and a chat
//! template. About as many tokens a byte as real ones make of prose; with fewer merges, so it is somewhat faster.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use serde_json::{Value, json};

use crate::prose::WORDS;

/// They end merges, so that conversations can be cut at them.
const SPECIAL: [&str; 3] = ["<|start|>", "<|text|>", "<|end|>"];

const TEMPLATE: &str = "{% for message in messages %}<|start|>{{ message.role }}<|text|>{{ message.content }}<|end|>\
    {% endfor %}{% if add_generation_prompt %}<|start|>assistant<|text|>{% endif %}";

/// Writes them to this folder.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string())?;
    fs::write(folder.join("chat_template.jinja"), TEMPLATE)
}

fn tokenizer() -> Value {
    let mut ids: BTreeMap<String, usize> = BTreeMap::new();
    for letter in (0..=u8::MAX).map(letter) {
        let next = ids.len();
        ids.insert(letter.into(), next);
    }
    let mut merges = Vec::new();
    for word in WORDS {
        let mut left = letter(b' ').to_string();
        for right in word.chars() {
            let (merged, next) = (format!("{left}{right}"), ids.len());
            ids.entry(merged.clone()).or_insert_with(|| {
                merges.push(json!([left, right.to_string()]));
                next
            });
            left = merged;
        }
    }
    let special = |(id, content)| {
        json!({"id": id, "content": content, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    let added: Vec<Value> = (ids.len()..).zip(SPECIAL).map(special).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false},
    })
}

/// How a byte-level vocabulary writes a byte: as itself where it can be seen, the others from 256 on.
fn letter(byte: u8) -> char {
    let is_seen = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let unseen_before = (0..byte).filter(|byte| !is_seen(byte)).count() as u8;
    if is_seen(&byte) { byte.into() } else { char::from_u32(256 + u32::from(unseen_before)).unwrap_or(' ') }
}
