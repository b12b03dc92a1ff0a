use std::time::SystemTime;

use serde_json::json;

use super::super::Tokenizer;
use super::super::testing::{Folder, byte_level, special, tokenizer};
use super::*;
use crate::request::Endpoint;

fn ids(tokenizer: &Tokenizer, endpoint: Endpoint, body: &Value) -> Vec<u32> {
    tokenizer.prompts(endpoint, body.to_string().as_bytes(), SystemTime::UNIX_EPOCH).unwrap().prompts[0]
        .iter()
        .collect()
}

fn completion(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    ids(tokenizer, Endpoint::Completions, &json!({"prompt": text}))
}

fn chat(tokenizer: &Tokenizer) -> Vec<u32> {
    ids(tokenizer, Endpoint::ChatCompletions, &json!({"messages": [{"role": "user", "content": "x"}]}))
}

fn size() -> u32 {
    u32::try_from(byte_level()["model"]["vocab"].as_object().unwrap().len()).unwrap()
}

#[test]
fn a_template_of_its_own_file_wins_over_the_configs() {
    let folder = Folder::new();
    folder.write("tokenizer.json", &byte_level().to_string());
    folder.write("tokenizer_config.json", &json!({"chat_template": "<s>"}).to_string());
    let of_config = chat(&Tokenizer::load(&TokenizerFiles::at(&folder.0)).unwrap());
    folder.write("chat_template.jinja", "<|user|>");
    let of_file = chat(&Tokenizer::load(&TokenizerFiles::at(&folder.0)).unwrap());
    assert_eq!((of_config, of_file), (vec![size()], vec![size() + 2]));
}

#[test]
fn files_may_be_named_one_by_one() {
    let folder = Folder::new();
    folder.write("t.json", &byte_level().to_string());
    folder.write("c.json", &json!({"bos_token": "<s>"}).to_string());
    folder.write("x.jinja", "{{ bos_token }}");
    let path = |name| folder.0.join(name);
    let files = TokenizerFiles {
        tokenizer: path("t.json"),
        config: Some(path("c.json")),
        chat_template: Some(path("x.jinja")),
    };
    assert_eq!(chat(&Tokenizer::load(&files).unwrap()), [size()]);
}

#[test]
fn the_config_says_whether_texts_have_a_begin_and_an_end() {
    let config =
        |bos, eos| json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": bos, "add_eos_token": eos});
    let ends = |bos, eos| completion(&tokenizer(&byte_level(), &config(bos, eos)), "<|user|>");
    assert_eq!(ends(true, false), [size(), size() + 2]);
    assert_eq!(ends(false, true), [size() + 2, size() + 1]);
    assert_eq!(ends(false, false), [size() + 2]);
}

#[test]
fn added_tokens_of_the_config_count() {
    let mut json = byte_level();
    json["added_tokens"] = special(size() as usize, &["<s>"]);
    let config = json!({"added_tokens_decoder": {(size() + 1).to_string(): {"content": "<new>", "special": true}}});
    assert_eq!(completion(&tokenizer(&json, &config), "<new><s>"), [size() + 1, size()]);
}

#[test]
fn a_chat_without_a_template_is_not_tokenized() {
    let plain = tokenizer(&byte_level(), &json!({}));
    let body = br#"{"messages": [{"role": "user", "content": "x"}]}"#;
    let refused = plain.prompts(Endpoint::ChatCompletions, body, SystemTime::UNIX_EPOCH);
    assert_eq!(refused, Err(crate::tokens::NotTokenized::NoTemplate));
}

#[test]
fn a_model_with_a_renderer_of_its_own_is_known_by_its_tokens() {
    let mut json = byte_level();
    json["added_tokens"] = special(size() as usize, &["<|start|>", "<|channel|>", "<|constrain|>", "<|call|>"]);
    let harmony = tokenizer(&json, &json!({"chat_template": "x"}));
    let body = br#"{"messages": [{"role": "user", "content": "x"}]}"#;
    assert!(harmony.prompts(Endpoint::ChatCompletions, body, SystemTime::UNIX_EPOCH).is_err());
    assert_eq!(completion(&harmony, "<|call|>"), [size() + 3]);
}

#[test]
fn an_error_says_which_file_and_what_would_be_right() {
    let folder = Folder::new();
    let error = || Tokenizer::load(&TokenizerFiles::at(&folder.0)).unwrap_err().to_string();
    let missing = error();
    assert!(missing.contains("tokenizer.json; it has to be a readable file"), "{missing}");
    folder.write("tokenizer.json", "{}");
    let wrong = error();
    assert!(
        wrong.contains("tokenizer.json") && wrong.contains("of Hugging Face's `tokenizers` is expected"),
        "{wrong}"
    );
    folder.write("tokenizer.json", &byte_level().to_string());
    folder.write("tokenizer_config.json", "[]");
    let no_object = error();
    assert!(no_object.contains("tokenizer_config.json is not a JSON object"), "{no_object}");
    folder.write("tokenizer_config.json", &json!({"chat_template": "{% for"}).to_string());
    let template = error();
    assert!(template.contains("tokenizer_config.json: the chat template is not valid"), "{template}");
}
