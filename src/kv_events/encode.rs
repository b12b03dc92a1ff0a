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
mod tests;
