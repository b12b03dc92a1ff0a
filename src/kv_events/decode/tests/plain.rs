//! Events without shared lists, so that they compare; made of a batch, or of the recorder's JSON by rules of its own.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::kv_events::fixtures::unhex;
use crate::kv_events::{Batch, Event, Medium};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    Stored {
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<u32>,
        block_tokens: u32,
        medium: Medium,
        adapter: Option<String>,
        salt: Option<String>,
        has_extra: Vec<bool>,
        group: u32,
        is_full_attention: bool,
    },
    Removed {
        hashes: Vec<u64>,
        medium: Medium,
        group: u32,
    },
    Cleared,
}

pub(super) fn of_batch(batch: &Batch) -> Vec<Plain> {
    let hashes = |range: &std::ops::Range<usize>| batch.hashes[range.clone()].iter().map(|hash| hash.0).collect();
    let plain = |event: &Event| match event {
        Event::Stored(stored) => Plain::Stored {
            hashes: hashes(&stored.hashes),
            parent: stored.parent.map(|parent| parent.0),
            tokens: batch.tokens[stored.tokens.clone()].to_vec(),
            block_tokens: stored.block_tokens.get(),
            medium: stored.medium,
            adapter: stored.adapter.as_deref().map(str::to_owned),
            salt: stored.salt.as_deref().map(str::to_owned),
            has_extra: batch.extras[stored.extras.clone()].iter().map(Option::is_some).collect(),
            group: stored.group,
            is_full_attention: stored.is_full_attention,
        },
        Event::Removed(removed) => {
            Plain::Removed { hashes: hashes(&removed.hashes), medium: removed.medium, group: removed.group }
        }
        Event::Cleared => Plain::Cleared,
    };
    batch.events.iter().map(plain).collect()
}

/// `stored` and `removed` name the fields of an array after its kind.
pub(super) fn of_json(event: &Value, stored: &[Value], removed: &[Value]) -> Plain {
    let kind = event.get("type").or_else(|| event.get(0)).unwrap().as_str().unwrap();
    let names = if kind == "BlockStored" { stored } else { removed };
    let field = |name: &str| match event {
        Value::Object(map) => map.get(name).cloned().unwrap_or(Value::Null),
        _ => {
            let place = names.iter().position(|known| known == name);
            place.and_then(|place| event.get(place + 1)).cloned().unwrap_or(Value::Null)
        }
    };
    let hashes = || field("block_hashes").as_array().unwrap().iter().map(hash).collect();
    let medium = if field("medium") == "CPU" { Medium::Cpu } else { Medium::Gpu };
    let group = u32::try_from(field("group_idx").as_u64().unwrap_or(0)).unwrap();
    match kind {
        "BlockRemoved" => Plain::Removed { hashes: hashes(), medium, group },
        "AllBlocksCleared" => Plain::Cleared,
        "BlockStored" => {
            let adapter = field("lora_name").as_str().map(str::to_owned);
            let parent =
                Some(field("parent_block_hash")).filter(|parent| !parent.is_null()).map(|parent| hash(&parent));
            let first = field("extra_keys")[0].clone();
            let salt = first.as_array().and_then(|keys| keys.iter().find(|key| key.as_str() != adapter.as_deref()));
            Plain::Stored {
                hashes: hashes(),
                tokens: field("token_ids").as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect(),
                block_tokens: field("block_size").as_u64().unwrap() as u32,
                medium,
                salt: salt.filter(|_| parent.is_none()).map(|salt| salt.as_str().unwrap().to_owned()),
                parent,
                adapter,
                has_extra: Vec::new(),
                group,
                is_full_attention: true,
            }
        }
        kind => panic!("{kind} was recorded"),
    }
}

fn hash(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| xxh3_64(&unhex(value["hex"].as_str().unwrap())))
}
