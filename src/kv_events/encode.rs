//! [`Batch`] -> msgpack, as engines send it.
//!
//! A payload is an array of time, events and rank; an event is a map with `type` first. Field names, their order and what
//! is left out are those of vLLM 0.32 and of SGLang 0.5.23.

use std::num::NonZeroU64;

use serde::{Serialize, Serializer};

use super::{Batch, EngineHash, Event, Medium, Removed, Stored};

/// Whose events they are to look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Unsigned hashes, one event for all blocks stored together, one for each block removed.
    #[default]
    Vllm,
    /// Signed hashes, one event for each block stored, one for all blocks removed together.
    Sglang,
}

/// The payload of a message.
pub fn encode(batch: &Batch, form: Form) -> Vec<u8> {
    let mut events = Vec::with_capacity(batch.events.len());
    for event in &batch.events {
        match (event, form) {
            (Event::Stored(stored), Form::Vllm) => events.push(vllm_stored(batch, stored)),
            (Event::Stored(stored), Form::Sglang) => push_pages(batch, stored, &mut events),
            (Event::Removed(removed), Form::Vllm) => push_each_removed(batch, removed, &mut events),
            (Event::Removed(removed), Form::Sglang) => push_removed(batch, removed, &mut events),
            (Event::Cleared, _) => events.push(Wire::AllBlocksCleared),
        }
    }
    let mut bytes = Vec::new();
    let mut writer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    let written = match batch.rank {
        Some(rank) => (batch.timestamp, events, rank).serialize(&mut writer),
        None => (batch.timestamp, events).serialize(&mut writer),
    };
    written.expect("memory takes what is written, and every length is known");
    bytes
}

/// An event as a map.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Wire<'a> {
    #[serde(rename = "BlockStored")]
    VllmStored(VllmStored<'a>),
    #[serde(rename = "BlockStored")]
    SglangStored(SglangStored<'a>),
    BlockRemoved(WireRemoved),
    AllBlocksCleared,
}

#[derive(Serialize)]
struct VllmStored<'a> {
    block_hashes: Vec<Name>,
    parent_block_hash: Option<Name>,
    token_ids: &'a [u32],
    block_size: u32,
    /// Superseded by the name; always nil.
    lora_id: (),
    medium: &'static str,
    lora_name: Option<&'a str>,
    extra_keys: Vec<Option<Vec<ExtraKey<'a>>>>,
    group_idx: u32,
    kv_cache_spec_kind: &'static str,
}

#[derive(Serialize)]
struct SglangStored<'a> {
    block_hashes: [Name; 1],
    parent_block_hash: Option<Name>,
    token_ids: &'a [u32],
    block_size: u32,
    /// Superseded by the name; always nil.
    lora_id: (),
    medium: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora_name: Option<&'a str>,
}

#[derive(Serialize)]
struct WireRemoved {
    block_hashes: Vec<Name>,
    medium: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_idx: Option<u32>,
}

/// A hash in the sign of the form.
#[derive(Clone, Copy)]
enum Name {
    Unsigned(u64),
    Signed(i64),
}

/// What went into a block besides its tokens.
#[derive(Serialize)]
#[serde(untagged)]
enum ExtraKey<'a> {
    Text(&'a str),
    Digest(NonZeroU64),
}

// === impl Name ===

impl Name {
    fn unsigned(hash: EngineHash) -> Self {
        Self::Unsigned(hash.0)
    }

    fn signed(hash: EngineHash) -> Self {
        Self::Signed(hash.0.cast_signed())
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Unsigned(hash) => serializer.serialize_u64(hash),
            Self::Signed(hash) => serializer.serialize_i64(hash),
        }
    }
}

fn vllm_stored<'a>(batch: &'a Batch, stored: &'a Stored) -> Wire<'a> {
    Wire::VllmStored(VllmStored {
        block_hashes: batch.hashes[stored.hashes.clone()].iter().copied().map(Name::unsigned).collect(),
        parent_block_hash: stored.parent.map(Name::unsigned),
        token_ids: &batch.tokens[stored.tokens.clone()],
        block_size: stored.block_tokens.get(),
        lora_id: (),
        medium: vllm_medium(stored.medium),
        lora_name: stored.adapter.as_deref(),
        extra_keys: (0..stored.hashes.len()).map(|place| extra_keys(batch, stored, place)).collect(),
        group_idx: stored.group,
        kv_cache_spec_kind: if stored.is_full_attention { "full_attention" } else { "sliding_window" },
    })
}

/// The keys of one block, in the order in which vLLM hashes them: adapter, media, salt.
fn extra_keys<'a>(batch: &'a Batch, stored: &'a Stored, place: usize) -> Option<Vec<ExtraKey<'a>>> {
    let is_first = place == 0 && stored.parent.is_none();
    let digest = batch.extras[stored.extras.clone()].get(place).copied().flatten();
    let adapter = stored.adapter.as_deref().map(ExtraKey::Text);
    let salt = stored.salt.as_deref().filter(|_| is_first).map(ExtraKey::Text);
    let keys: Vec<ExtraKey<'_>> = adapter.into_iter().chain(digest.map(ExtraKey::Digest)).chain(salt).collect();
    (!keys.is_empty()).then_some(keys)
}

fn push_pages<'a>(batch: &'a Batch, stored: &'a Stored, events: &mut Vec<Wire<'a>>) {
    let pages = batch.tokens[stored.tokens.clone()].chunks(stored.block_tokens.get() as usize);
    let mut parent = stored.parent;
    for (&hash, token_ids) in batch.hashes[stored.hashes.clone()].iter().zip(pages) {
        events.push(Wire::SglangStored(SglangStored {
            block_hashes: [Name::signed(hash)],
            parent_block_hash: parent.map(Name::signed),
            token_ids,
            block_size: token_ids.len() as u32,
            lora_id: (),
            medium: sglang_medium(stored.medium),
            cache_salt: stored.salt.as_deref(),
            lora_name: stored.adapter.as_deref(),
        }));
        parent = Some(hash);
    }
}

fn push_each_removed(batch: &Batch, removed: &Removed, events: &mut Vec<Wire<'_>>) {
    events.extend(batch.hashes[removed.hashes.clone()].iter().map(|&hash| {
        Wire::BlockRemoved(WireRemoved {
            block_hashes: vec![Name::unsigned(hash)],
            medium: vllm_medium(removed.medium),
            group_idx: Some(removed.group),
        })
    }));
}

/// Joins what follows a removal from the same medium to it.
fn push_removed(batch: &Batch, removed: &Removed, events: &mut Vec<Wire<'_>>) {
    let names = batch.hashes[removed.hashes.clone()].iter().copied().map(Name::signed);
    let medium = sglang_medium(removed.medium);
    match events.last_mut() {
        Some(Wire::BlockRemoved(last)) if last.medium == medium => last.block_hashes.extend(names),
        _ => events.push(Wire::BlockRemoved(WireRemoved { block_hashes: names.collect(), medium, group_idx: None })),
    }
}

fn vllm_medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU",
        Medium::Disk => "STORAGE",
    }
}

fn sglang_medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU_PINNED",
        Medium::Disk => "DISK",
    }
}

#[cfg(test)]
mod tests {
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
        let removed = |hash: u64, medium| json!({"type": "BlockRemoved", "block_hashes": [hash], "medium": medium, "group_idx": 0});
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
}
