//! The bytes are those that vLLM sent; SGLang has not been recorded.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::testing;

fn decoded(bytes: &[u8]) -> Value {
    rmp_serde::from_slice(bytes).unwrap()
}

/// The batch that a recorded message of vLLM says.
fn batch_of(line: &str) -> Batch {
    let message: Value = serde_json::from_str(line).unwrap();
    let payload = &message["payload"];
    // serde_json reads the last digit of a long number wrong.
    let timestamp = line.split_once(r#""payload": ["#).and_then(|(_, rest)| rest.split_once(',')).unwrap().0;
    let mut batch = Batch { timestamp: timestamp.parse().unwrap(), ..Batch::default() };
    batch.rank = payload[2].as_u64().map(|rank| rank as u32);
    let hashes = |event: &Value| -> Vec<EngineHash> {
        event["block_hashes"].as_array().unwrap().iter().map(|hash| EngineHash(hash.as_u64().unwrap())).collect()
    };
    for event in payload[1].as_array().unwrap() {
        match event["type"].as_str().unwrap() {
            "BlockStored" => {
                let tokens: Vec<u32> = serde_json::from_value(event["token_ids"].clone()).unwrap();
                let block_tokens = NonZeroU32::new(event["block_size"].as_u64().unwrap() as u32).unwrap();
                let parent = event["parent_block_hash"].as_u64().map(EngineHash);
                batch.push_stored(&hashes(event), parent, &tokens, block_tokens, Medium::Gpu);
                let Some(Event::Stored(stored)) = batch.events.last_mut() else { unreachable!() };
                stored.salt = event["extra_keys"][0][0].as_str().map(Arc::from);
            }
            "BlockRemoved" => batch.push_removed(&hashes(event), Medium::Gpu),
            _ => batch.events.push(Event::Cleared),
        }
    }
    batch
}

/// The messages in a recording, each a list of frames.
fn messages(mut bytes: &[u8]) -> Vec<Vec<&[u8]>> {
    fn number(bytes: &mut &[u8]) -> usize {
        let (number, rest) = bytes.split_first_chunk::<4>().unwrap();
        *bytes = rest;
        u32::from_be_bytes(*number) as usize
    }
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let frames = (0..number(&mut bytes)).map(|_| {
            let length = number(&mut bytes);
            let (frame, rest) = bytes.split_at(length);
            bytes = rest;
            frame
        });
        messages.push(frames.collect());
    }
    messages
}

#[test]
fn what_vllm_sent_is_encoded_to_the_same_bytes() {
    let Some(folder) = testing::shared("fixtures/vllm/kv-events/int-sha256_cbor") else { return };
    let text = std::fs::read_to_string(folder.join("live.decoded.jsonl")).unwrap();
    let bytes = std::fs::read(folder.join("live.frames.bin")).unwrap();
    let (lines, messages) = (text.lines(), messages(&bytes));
    assert_eq!(lines.clone().count(), messages.len());
    for (line, frames) in lines.zip(messages) {
        assert_eq!(encode(&batch_of(line), Form::Vllm), frames[2], "{line}");
    }
}

fn two_blocks_and_removals() -> Batch {
    let mut batch = Batch { timestamp: 1.5, rank: Some(0), ..Batch::default() };
    let (one, high) = (EngineHash(1), EngineHash(u64::MAX));
    batch.push_removed(&[one], Medium::Gpu);
    batch.push_removed(&[EngineHash(2), high], Medium::Gpu);
    batch.push_stored(&[high, one], None, &[7, 8, 9, 10], NonZeroU32::new(2).unwrap(), Medium::Gpu);
    batch.extras.extend([None, NonZeroU64::new(5)]);
    let Some(Event::Stored(stored)) = batch.events.last_mut() else { unreachable!() };
    (stored.adapter, stored.salt, stored.extras) = (Some(Arc::from("a")), Some(Arc::from("s")), 0..2);
    batch.push_removed(&[one], Medium::Disk);
    batch.events.push(Event::Cleared);
    batch
}

#[test]
fn in_vllms_form_a_removal_is_one_block_and_a_store_is_many() {
    let removed =
        |hash: u64, medium| json!({"type": "BlockRemoved", "block_hashes": [hash], "medium": medium, "group_idx": 0});
    let stored = json!({"type": "BlockStored", "block_hashes": [u64::MAX, 1], "parent_block_hash": null,
        "token_ids": [7, 8, 9, 10], "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": "a",
        "extra_keys": [["a", "s"], ["a", 5]], "group_idx": 0, "kv_cache_spec_kind": "full_attention"});
    let events = [
        removed(1, "GPU"),
        removed(2, "GPU"),
        removed(u64::MAX, "GPU"),
        stored,
        removed(1, "STORAGE"),
        json!({"type": "AllBlocksCleared"}),
    ];
    assert_eq!(decoded(&encode(&two_blocks_and_removals(), Form::Vllm)), json!([1.5, events, 0]));
}

#[test]
fn in_sglangs_form_a_store_is_one_page_and_a_removal_is_many() {
    let stored = |hash: i64, parent: Option<i64>, tokens: [u32; 2]| {
        json!({"type": "BlockStored", "block_hashes": [hash], "parent_block_hash": parent, "token_ids": tokens,
            "block_size": 2, "lora_id": null, "medium": "GPU", "cache_salt": "s", "lora_name": "a"})
    };
    let events = [
        json!({"type": "BlockRemoved", "block_hashes": [1, 2, -1], "medium": "GPU"}),
        stored(-1, None, [7, 8]),
        stored(1, Some(-1), [9, 10]),
        json!({"type": "BlockRemoved", "block_hashes": [1], "medium": "DISK"}),
        json!({"type": "AllBlocksCleared"}),
    ];
    assert_eq!(decoded(&encode(&two_blocks_and_removals(), Form::Sglang)), json!([1.5, events, 0]));
}

#[test]
fn a_batch_without_a_rank_is_an_array_of_two() {
    let batch = Batch { timestamp: 2.0, ..Batch::default() };
    assert_eq!(decoded(&encode(&batch, Form::Vllm)), json!([2.0, []]));
}
