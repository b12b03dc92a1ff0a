//! The demo's model, as far as a router and an engine need one: a tokenizer and a chat template.
//!
//! The tokenizer is a byte-level BPE that has learned the demo's own words and numbers, so that a token is about four bytes
//! as elsewhere, and any other text can be spelled too, byte by byte.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io, process};

use serde_json::{Map, Value, json};

use super::conversation::WORDS;
use crate::sim::syllables;

/// Tokens that mark messages, and end merges.
const SPECIAL: [&str; 4] = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];

const TEMPLATE: &str = concat!(
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}",
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
);

/// How a byte-level vocabulary writes the space before a word.
const SPACE: char = 'Ġ';

/// The model's files, in a folder of their own that goes when this is dropped.
#[derive(Debug)]
pub(super) struct Model {
    folder: PathBuf,
}

/// What a BPE has learned.
#[derive(Debug, Default)]
struct Merges {
    ranks: HashMap<(String, String), usize>,
    in_order: Vec<(String, String)>,
}

// === impl Model ===

impl Model {
    /// Writes the files.
    pub(super) fn write() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let model = Self { folder: env::temp_dir().join(format!("warmgate-demo-{}-{number}", process::id())) };
        fs::create_dir(&model.folder)?;
        fs::write(model.folder.join("tokenizer.json"), tokenizer().to_string())?;
        fs::write(model.folder.join("tokenizer_config.json"), json!({"chat_template": TEMPLATE}).to_string())?;
        Ok(model)
    }

    /// Where they are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            log::debug!("the demo's tokenizer stays at {}: {error}", self.folder.display());
        }
    }
}

// === impl Merges ===

impl Merges {
    /// Makes a word one token. What was learned before stays as it is: later merges are tried later.
    fn learn(&mut self, word: &str) {
        loop {
            let pieces = self.pieces(word);
            let [left, right, ..] = &pieces[..] else { return };
            let pair = (left.clone(), right.clone());
            self.ranks.insert(pair.clone(), self.in_order.len());
            self.in_order.push(pair);
        }
    }

    /// A word's tokens: of all pairs of neighbours the one learned first is merged, until there is none.
    fn pieces(&self, word: &str) -> Vec<String> {
        let mut pieces: Vec<String> = word.chars().map(String::from).collect();
        loop {
            let rank = |place: usize| self.ranks.get(&(pieces[place].clone(), pieces[place + 1].clone()));
            let ranked = (0..pieces.len().saturating_sub(1)).filter_map(|place| Some((*rank(place)?, place)));
            let Some((_, place)) = ranked.min() else { return pieces };
            let right = pieces.remove(place + 1);
            pieces[place] += &right;
        }
    }
}

/// The demo's words and numbers, and the syllables of which engines make their answers.
fn learned() -> Merges {
    let mut merges = Merges::default();
    let numbers = (2..=3)
        .flat_map(|digits| (0..10_u32.pow(digits)).map(move |n| format!("{n:0width$}", width = digits as usize)));
    let words = WORDS.iter().map(|&word| word.to_owned());
    for word in words.chain(numbers).chain(syllables()).chain((0..10).map(|digit| digit.to_string())) {
        merges.learn(&word);
        merges.learn(&format!("{SPACE}{word}"));
    }
    merges
}

fn tokenizer() -> Value {
    let merges = learned();
    let tokens = alphabet().into_iter().map(String::from);
    let tokens = tokens.chain(merges.in_order.iter().map(|(left, right)| format!("{left}{right}")));
    let mut vocabulary = Map::new();
    for token in tokens {
        let id = vocabulary.len();
        vocabulary.entry(token).or_insert_with(|| json!(id));
    }
    let first = vocabulary.len();
    let special: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(place, content)| {
            json!({"id": first + place, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges.in_order},
    })
}

/// The characters that stand for the 256 bytes in byte-level vocabularies (GPT-2's): printable ones for themselves, the
/// others from U+0100 on.
fn alphabet() -> Vec<char> {
    let is_itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let itself = (0..=u8::MAX).filter(is_itself).map(char::from);
    let others = (0..=u8::MAX).filter(|byte| !is_itself(byte)).count() as u32;
    itself.chain((0x100..0x100 + others).filter_map(char::from_u32)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::conversation::{Conversation, Shape};
    use super::*;
    use crate::request::Endpoint;
    use crate::tokens::{TokenIds, Tokenizer, TokenizerFiles};

    fn loaded() -> Tokenizer {
        let model = Model::write().unwrap();
        Tokenizer::load(&TokenizerFiles::at(model.folder())).unwrap()
    }

    fn ids(tokenizer: &Tokenizer, endpoint: Endpoint, body: &Value) -> Vec<u32> {
        tokenizer
            .prompts(endpoint, body.to_string().as_bytes(), SystemTime::now())
            .unwrap()
            .prompts
            .iter()
            .flat_map(TokenIds::iter)
            .collect()
    }

    #[test]
    fn the_demos_words_are_tokens() {
        let tokenizer = loaded();
        let count = |text: &str| ids(&tokenizer, Endpoint::Completions, &json!({"prompt": text})).len();
        for word in WORDS {
            assert_eq!((count(word), count(&format!("{word} {word}"))), (1, 2), "{word}");
        }
        assert_eq!((count("river 12345"), count("007"), count(" 9")), (3, 1, 1));
        assert_eq!(count("ß∂\t\u{0}"), 7, "all else is spelled byte by byte");
    }

    #[test]
    fn a_token_of_a_conversation_is_about_four_bytes() {
        let body: Value = serde_json::from_slice(&Conversation::new(&Shape::default(), 1, 3).ask()).unwrap();
        let text: usize =
            body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap().len()).sum();
        let tokens = ids(&loaded(), Endpoint::ChatCompletions, &body).len();
        assert!((3.5..4.5).contains(&(text as f64 / tokens as f64)), "{tokens} tokens of {text} bytes");
    }

    #[test]
    fn the_files_go_with_the_model() {
        let model = Model::write().unwrap();
        let folder = model.folder().to_owned();
        assert!(folder.join("tokenizer.json").exists());
        drop(model);
        assert!(!folder.exists());
    }
}
