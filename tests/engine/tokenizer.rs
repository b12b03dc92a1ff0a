//! Engines with a model's own tokenizer. It is one of the recordings, which are not part of the project: see
//! `tests/fixtures.rs`.

use std::path::PathBuf;

use serde_json::{Value, json};
use warmgate::sim::{EngineOptions, SimEngine};

use crate::client::{CHAT, fast, send};
use crate::listener::{publishing, replay};

/// A file or folder of the recordings, if they are here.
fn recorded(path: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("WARMGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")), PathBuf::from);
    let path = shared.join("fixtures/vllm").join(path);
    if !path.exists() {
        println!("skipped: no recordings at {}", path.display());
        return None;
    }
    Some(path)
}

/// An engine with the recorded model's tokenizer and blocks of 4 tokens.
fn engine() -> Option<SimEngine> {
    let mut options = EngineOptions { tokenizer: Some(recorded("model")?), ..publishing() };
    (options.models, options.parameters.block_tokens) = (vec!["tiny-llama".to_owned()], 4);
    Some(SimEngine::start(options).unwrap())
}

/// The body of a recorded message.
fn body(file: &str) -> Value {
    let message = std::fs::read(recorded(file).unwrap()).unwrap();
    let start = message.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    serde_json::from_slice(&message[start..]).unwrap()
}

#[tokio::test]
async fn its_events_have_the_ids_that_the_real_engine_made() {
    let Some(engine) = engine() else { return };
    let answer = send(&engine, CHAT, &body("http/chat-token-ids.req")).await.unwrap().json();
    let ids = body("http/chat-token-ids.resp")["prompt_token_ids"].clone();
    let ids: Vec<u64> = serde_json::from_value(ids).unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], ids.len());
    let mut told = Vec::new();
    for event in replay(&engine, 0).await.iter().flat_map(|message| message.events()) {
        told.extend(event["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
    }
    assert_eq!(told[..ids.len()], ids, "48 ids are 12 blocks, and those of the answer follow");
    assert!(told.len() > ids.len());
    let tokens = send(&engine, "/tokenize", &body("http/chat-token-ids.req")).await.unwrap().json();
    assert_eq!(tokens["tokens"], json!(ids));
}

#[tokio::test]
async fn the_next_turn_finds_the_last_and_its_answer() {
    let Some(engine) = engine() else { return };
    let mut messages = vec![json!({"role": "user", "content": "Tell me of rivers and of stones."})];
    let mut known = 0;
    for turn in 0..4 {
        let body = json!({"model": "tiny-llama", "messages": messages, "max_tokens": 40});
        let answer = send(&engine, CHAT, &body).await.unwrap().json();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        // A block may be partial, and an answer may have a few tokens less than asked for.
        assert!(cached + 12 > known, "turn {turn}: {cached} of {known} were found");
        known = answer["usage"]["total_tokens"].as_u64().unwrap();
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": format!("And then, {turn}?")}));
    }
}

#[tokio::test]
async fn what_only_a_real_engine_can_spell_is_refused_with_the_reason() {
    let Some(engine) = engine() else { return };
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let body = json!({"model": "tiny-llama", "messages": [{"role": "user", "content": [image]}]});
    let refused = send(&engine, CHAT, &body).await.unwrap();
    assert_eq!(refused.status, 400);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("media"), "{message}");
    assert_eq!(engine.state().requests.rejected, 1);
}

#[tokio::test]
async fn a_tokenizer_that_is_not_there_is_an_error() {
    let options = EngineOptions { tokenizer: Some(PathBuf::from("/nowhere/tokenizer.json")), ..fast() };
    let error = SimEngine::start(options).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}
