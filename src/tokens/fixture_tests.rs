//! Our ids against those that a recorded engine told.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::testing::recorded;
use super::{TokenIds, Tokenizer};
use crate::request::Endpoint;
use crate::request::fixtures::{Recording, recordings, split};

/// The recorded exchanges in which the engine told a prompt's ids.
const TELL_IDS: [&str; 10] = [
    "chat-stream-token-ids",
    "chat-token-ids",
    "completion-token-ids",
    "scaleout-render-chat",
    "scaleout-render-completion",
    "tokenize-chat",
    "tokenize-chat-nogen",
    "tokenize-completion",
    "tokenize-completion-nospecial",
    "tokenize-nomodel",
];

/// Further ones, in which it told how many there were: chats with a salt, several choices, streamed or not, Anthropic's
/// messages, responses, completions, embeddings.
const TELL_COUNTS: usize = 35;

/// What an answer tells of the request's prompts.
#[derive(Debug, PartialEq)]
enum Told {
    Ids(Vec<Vec<u32>>),
    /// How many tokens there were in all prompts.
    Count(u64),
}

/// The endpoint of a recorded request; those that only render are the ones they render for.
fn endpoint(start_line: &str) -> Option<Endpoint> {
    let path = start_line.split(' ').nth(1)?;
    Endpoint::of(path.strip_suffix("/render").unwrap_or(path))
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    serde_json::from_value(value.clone()).ok()
}

/// The JSON documents of an answer: one, or those of a stream.
fn documents(body: &[u8]) -> Vec<Value> {
    if let Ok(document) = serde_json::from_slice(body) {
        return vec![document];
    }
    let text = String::from_utf8_lossy(body);
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

fn told(answer: &[u8]) -> Option<Told> {
    let (start_line, body) = split(answer)?;
    if !start_line.contains(" 200 ") {
        return None;
    }
    let documents = documents(&body);
    documents.iter().find_map(told_ids).or_else(|| documents.iter().rev().find_map(told_count))
}

fn told_ids(document: &Value) -> Option<Told> {
    // Lists of renderings: `/v1/completions/render` gives one for each prompt.
    let rendered = |value: &Value| ids(&value["token_ids"]).or_else(|| ids(&value["prompt_token_ids"]));
    let lists = match document {
        Value::Array(all) => all.iter().map(rendered).collect::<Option<Vec<_>>>()?,
        _ => {
            let choices = document["choices"].as_array();
            let whole = ids(&document["tokens"]).or_else(|| ids(&document["prompt_token_ids"]));
            let whole = whole.or_else(|| ids(&document["token_ids"]).filter(|_| choices.is_none()));
            let of_choice =
                || choices?.iter().map(|choice| ids(&choice["prompt_token_ids"])).collect::<Option<Vec<_>>>();
            whole.map(|ids| vec![ids]).or_else(of_choice)?
        }
    };
    (!lists.is_empty()).then_some(Told::Ids(lists))
}

fn told_count(document: &Value) -> Option<Told> {
    // Anthropic's first event has its usage within `message`.
    let usage = [&document["usage"], &document["message"]["usage"], &document["response"]["usage"], document];
    usage.into_iter().find_map(|usage| {
        let number = |name: &str| usage[name].as_u64();
        let cached =
            number("cache_read_input_tokens").unwrap_or(0) + number("cache_creation_input_tokens").unwrap_or(0);
        let count = number("prompt_tokens").or_else(|| number("input_tokens").map(|tokens| tokens + cached))?;
        (count > 0).then_some(Told::Count(count))
    })
}

/// Compares one exchange; gives what was compared, if it told anything.
fn compare(tokenizer: &Tokenizer, request: &Recording) -> Option<Told> {
    let name = request.name.strip_suffix(".req")?;
    let answer =
        recordings("http", &format!("{name}.resp")).into_iter().find(|answer| answer.name == format!("{name}.resp"))?;
    let (start_line, body) = split(&request.bytes)?;
    let (endpoint, told) = (endpoint(&start_line)?, told(&answer.bytes)?);
    let ours = tokenizer.prompts(endpoint, &body, SystemTime::UNIX_EPOCH).unwrap();
    match &told {
        Told::Ids(ids) => assert_eq!(&ours.prompts, ids, "{name}: our ids are not the engine's"),
        Told::Count(count) => {
            let sum: usize = ours.prompts.iter().map(TokenIds::len).sum();
            assert_eq!(sum as u64, *count, "{name}: we count other tokens than the engine");
        }
    }
    Some(told)
}

#[test]
fn the_ids_of_recorded_requests_are_the_engines() {
    let Some(tokenizer) = recorded() else { return };
    let (mut by_ids, mut by_count) = (Vec::new(), 0);
    for request in recordings("http", ".req") {
        let name = request.name.trim_end_matches(".req").to_owned();
        match compare(&tokenizer, &request) {
            Some(Told::Ids(_)) => by_ids.push(name),
            Some(Told::Count(_)) => by_count += 1,
            None => {}
        }
    }
    by_ids.sort();
    assert_eq!(by_ids, TELL_IDS, "the recordings that tell ids are others");
    assert_eq!(by_count, TELL_COUNTS, "so many other recordings tell how many tokens a prompt had");
}

/// The messages whose prompt has these ids, by the recorded model's template.
fn messages_of(tokenizer: &Tokenizer, ids: &[u32]) -> Value {
    let text = tokenizer.encoder.decode(ids);
    let turns = text.split("<|start_header_id|>").skip(1).filter_map(|turn| {
        let (role, content) = turn.split_once("<|end_header_id|>\n\n")?;
        Some(json!({"role": role, "content": content.strip_suffix("<|eot_id|>")?}))
    });
    turns.collect()
}

#[test]
fn the_ids_of_a_chat_are_those_of_the_events_it_caused() {
    let Some(tokenizer) = recorded() else { return };
    let mut compared = 0;
    for folder in ["kv-events/int-sha256_cbor", "kv-events/bytes-sha256"] {
        let recording = |name| recordings(folder, name).pop().unwrap().bytes;
        let steps: Vec<Value> = serde_json::from_slice(&recording("live.steps.json")).unwrap();
        let batches = String::from_utf8(recording("live.decoded.jsonl")).unwrap();
        let batches: Vec<Value> = batches.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for step in steps {
            let Some(told) = ids(&step["result"]["prompt_token_ids"]) else { continue };
            let body = json!({"messages": messages_of(&tokenizer, &told)}).to_string();
            let ours = tokenizer.prompts(Endpoint::ChatCompletions, body.as_bytes(), SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(ours.prompts, [told], "{folder}: what the ids say gives other ids");
            let first = usize::try_from(step["messages"][0].as_u64().unwrap()).unwrap();
            let stored = ids(&batches[first]["payload"][1][0]["token_ids"]).unwrap();
            assert_eq!(stored.len(), 64, "two blocks of 32");
            assert_eq!(
                ours.prompts[0].iter().take(64).collect::<Vec<_>>(),
                stored,
                "{folder}: the event's ids are others"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 2, "one chat in each recording");
}
