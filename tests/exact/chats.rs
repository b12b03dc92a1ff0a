//! Chats: their token ids come from the pool's tokenizer.

use serde_json::{Value, json};
use warmgate::kv_events::Form;

use crate::common::client;
use crate::fleet::{Fleet, JSON, options};
use crate::model::Model;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_turn_of_a_chat_finds_what_the_last_one_left() {
    let model = Model::write();
    let mut engine = options(4_096, Form::Vllm);
    engine.tokenizer = Some(model.folder().to_owned());
    let tokenizer = format!("  tokenizer: {{path: '{}', max_bytes: 64KiB}}\n", model.folder().display());
    let fleet = Fleet::start(vec![engine; 2], &tokenizer).await;
    let mut cached_last = 0;
    let mut messages = vec![json!({"role": "system", "content": "Answer in words. ".repeat(20)})];
    for turn in 0..8 {
        messages.push(json!({"role": "user", "content": format!("Question {turn}? ").repeat(turn + 1)}));
        let body = json!({"messages": messages, "max_tokens": 24}).to_string();
        let reply = client::post(fleet.server.addresses()[0], "/v1/chat/completions", JSON, body.as_bytes()).await;
        let answer: Value = reply.json();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let told = format!("{cached}/{}", answer["usage"]["prompt_tokens"]);
        assert_eq!(reply.header("x-warmgate-cached"), Some(&*told), "turn {turn}: both counts are the engine's");
        assert!(turn == 0 || cached > cached_last, "turn {turn} found {cached}, the last one {cached_last}");
        cached_last = cached;
        messages.push(answer["choices"][0]["message"].clone());
        fleet.settle().await;
    }
    fleet.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_tokenized_is_cut_by_bytes_and_counted() {
    let model = Model::write();
    let tokenizer = format!("  tokenizer: {{path: '{}', max_bytes: 1KiB}}\n", model.folder().display());
    let fleet = Fleet::start(vec![options(4_096, Form::Vllm)], &tokenizer).await;
    // Until an event has told how large blocks are, there is nothing to look up. It counts as tokenized too.
    fleet.complete(&[7; 64], 1).await;
    fleet.settle().await;
    let picture = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    for (content, outcome, count) in
        [(json!("short"), "tokenized", 2), (json!("x".repeat(2048)), "too_large", 1), (picture, "media", 1)]
    {
        let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2}).to_string();
        let path = "/v1/chat/completions";
        let reply = client::post(fleet.server.addresses()[0], path, JSON, body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{outcome}: {}", reply.text());
        let explained: Value = client::post(fleet.server.admin_address(), "/explain", "", body.as_bytes()).await.json();
        assert_eq!(explained["tokenizer"], outcome);
        let by = if outcome == "tokenized" { "exact" } else { "assumed" };
        assert_eq!(explained["backends"][0]["trust"], by, "events say nothing of a prompt without ids: {explained}");
        let labels = format!("{{pool=\"p\",outcome=\"{outcome}\"}} {count}");
        assert!(fleet.counts("warmgate_tokenizer_requests_total", &labels).await, "{labels}");
    }
    fleet.server.stop().await;
}

#[test]
fn a_tokenizer_that_cannot_be_used_refuses_the_configuration() {
    let model = Model::write();
    std::fs::write(model.folder().join("tokenizer.json"), "{}").unwrap();
    let text = format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\npools: [{{name: p, tokenizer: {{path: '{}'}}, backends: []}}]\n",
        model.folder().display()
    );
    let config = warmgate::config::parse(&text, "f").unwrap();
    let error = warmgate::control::check_tokenizers(&config).unwrap_err().to_string();
    assert!(error.contains("the tokenizer of pool p") && error.contains("tokenizer.json"), "{error}");
}
