//! Forms that are known from engines' sources: SGLang's, older vLLM's, and what may come besides.

use std::num::NonZeroU32;

use serde_json::json;

use super::*;
use crate::kv_events::{EngineHash, Event, Medium, Removed, Stored};

/// One stored event of two blocks with these fields besides, or instead.
fn stored_with(fields: Value) -> (Stored, Batch) {
    let mut event = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
        "token_ids": [1, 2, 3, 4], "block_size": 2});
    event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (batch, left_out) = decode(&batch_of(&json!([event])));
    assert_eq!(left_out, LeftOut::default(), "{event}");
    let Some(Event::Stored(stored)) = batch.events.first().cloned() else { panic!("{event} is not stored") };
    (stored, batch)
}

#[test]
fn signed_hashes_are_names_by_their_bits() {
    let (stored, batch) =
        stored_with(json!({"block_hashes": [-5_523_102_609_743_566_000_i64, -1], "parent_block_hash": -2}));
    let bits = |value: i64| EngineHash(value.cast_unsigned());
    assert_eq!(batch.hashes[stored.hashes], [bits(-5_523_102_609_743_566_000), bits(-1)]);
    assert_eq!(stored.parent, Some(bits(-2)));
}

#[test]
fn fields_may_come_in_any_order_and_among_unknown_ones() {
    let event = r#"{"session_id": "s", "extra_keys": [["a"], ["a"]], "block_size": 2, "later": {"x": [1, {"y": null}]},
        "token_ids": [1, 2, 3, 4], "lora_name": "a", "type": "BlockStored", "block_hashes": [1, 2]}"#;
    let (batch, left_out) = decode(&batch_of(&json!([serde_json::from_str::<Value>(event).unwrap()])));
    assert_eq!(left_out, LeftOut::default());
    let expected = Stored {
        hashes: 0..2,
        parent: None,
        tokens: 0..4,
        block_tokens: NonZeroU32::new(2).unwrap(),
        medium: Medium::Gpu,
        adapter: Some("a".into()),
        salt: None,
        extras: 0..0,
        group: 0,
        is_full_attention: true,
    };
    assert_eq!(batch.events, [Event::Stored(expected)]);
}

#[test]
fn each_medium_has_its_tier() {
    let media = [
        (json!(null), Medium::Gpu),
        (json!("GPU"), Medium::Gpu),
        (json!("CPU"), Medium::Cpu),
        (json!("CPU_PINNED"), Medium::Cpu),
        (json!("DISK"), Medium::Disk),
        (json!("STORAGE"), Medium::Disk),
        (json!("EXTERNAL"), Medium::Disk),
        (json!("TAPE"), Medium::Disk),
    ];
    for (name, medium) in media {
        assert_eq!(stored_with(json!({"medium": name})).0.medium, medium, "{name}");
        let removed = json!([["BlockRemoved", [7], name, 3]]);
        let expected = Event::Removed(Removed { hashes: 0..1, medium, group: 3 });
        assert_eq!(decode(&batch_of(&removed)).0.events, [expected], "{name}");
    }
}

#[test]
fn only_full_attention_serves_every_prompt() {
    let kinds = [
        (json!(null), true),
        (json!("full_attention"), true),
        (json!("mla"), true),
        (json!("mla_attention"), true),
        (json!("sliding_window"), false),
        (json!("mamba"), false),
    ];
    for (kind, is_full) in kinds {
        let (stored, _) = stored_with(json!({"kv_cache_spec_kind": kind, "group_idx": 2}));
        assert_eq!((stored.is_full_attention, stored.group), (is_full, 2), "{kind}");
    }
}

#[test]
fn an_adapter_goes_by_its_name_or_else_by_its_number() {
    let adapter = |fields| stored_with(fields).0.adapter;
    assert_eq!(adapter(json!({"lora_id": 3})).as_deref(), Some("id:3"));
    assert_eq!(adapter(json!({"lora_id": 3, "lora_name": "a"})).as_deref(), Some("a"));
    assert_eq!(adapter(json!({})), None);
}

#[test]
fn names_that_come_again_are_not_allocated_again() {
    let event = json!(["BlockStored", [1], null, [1], 1, null, "GPU", "a"]);
    let by_id = json!(["BlockStored", [1], null, [1], 1, 8]);
    let (batch, _) = decode(&batch_of(&json!([event, by_id, event, by_id])));
    let adapters: Vec<_> = batch
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Stored(stored) => stored.adapter.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(adapters.len(), 4);
    assert!(Arc::ptr_eq(&adapters[0], &adapters[2]) && Arc::ptr_eq(&adapters[1], &adapters[3]));
}

#[test]
fn the_one_thing_left_at_the_beginning_of_a_prompt_is_the_salt() {
    let read = |fields| {
        let (stored, batch) = stored_with(fields);
        let extras: Vec<bool> = batch.extras[stored.extras].iter().map(Option::is_some).collect();
        (stored.salt.as_deref().map(str::to_owned), extras)
    };
    let salt = |text: &str| Some(text.to_owned());
    let none: &[bool] = &[];
    let cases = [
        (json!({"extra_keys": [["s"], null]}), (salt("s"), none)),
        (json!({"extra_keys": [[["cache_salt", "s"]], null]}), (salt("s"), none)),
        (json!({"lora_name": "a", "extra_keys": [["a", "s"], ["a"]]}), (salt("s"), none)),
        (
            json!({"lora_name": "a", "extra_keys": [[["lora", "a"], ["cache_salt", "s"]], [["lora", "a"]]]}),
            (salt("s"), none),
        ),
        (json!({"cache_salt": "s"}), (salt("s"), none)),
        (json!({"extra_keys": [["picture", "s"], null]}), (None, &[true, false])),
        (json!({"extra_keys": [[["cache_salt", "s"], ["mm", "x", 3]], ["y"]]}), (salt("s"), &[true, true])),
        (json!({"parent_block_hash": 9, "extra_keys": [["s"], null]}), (None, &[true, false])),
        (json!({"extra_keys": [null, ["x"]]}), (None, &[false, true])),
        (json!({"extra_keys": [null, []]}), (None, none)),
        (json!({"extra_keys": null}), (None, none)),
        (json!({"lora_name": "a", "extra_keys": [["b", "c"], ["a"]]}), (None, &[true, false])),
    ];
    for (fields, (expected_salt, extras)) in cases {
        assert_eq!(read(fields.clone()), (expected_salt, extras.to_vec()), "{fields}");
    }
}

#[test]
fn digests_tell_apart_whatever_goes_into_a_block() {
    let keys = [
        json!(["x"]),
        json!(["x", "y"]),
        json!(["y", "x"]),
        json!([["x", "y"]]),
        json!([["x"], "y"]),
        json!([1]),
        json!([-1]),
        json!(["1"]),
        json!([1.0]),
        json!([true]),
        json!([false]),
        json!([null]),
        json!([["lora", "x"]]),
        json!([["x", 1]]),
        json!([["x", 2]]),
        json!([{"x": 1}]),
        json!([{"x": 2}]),
        json!([["mm", "x", 1]]),
        json!([["mm", "x", 2]]),
    ];
    let digest = |keys: &Value| {
        let (stored, batch) = stored_with(json!({"parent_block_hash": 9, "extra_keys": [null, keys]}));
        batch.extras[stored.extras][1].unwrap()
    };
    let distinct: std::collections::HashSet<_> = keys.iter().map(digest).collect();
    assert_eq!(distinct.len(), keys.len(), "no two of these may have the same digest");
    assert_eq!(digest(&keys[3]), digest(&keys[3]), "and each has its own every time");
}

#[test]
fn what_is_left_of_a_batch_that_was_there_before_is_nothing() {
    let (mut decoder, mut batch) = (Decoder::default(), Batch::default());
    decoder.decode(&batch_of(&json!([["BlockStored", [1], null, [1], 1]])), &mut batch).unwrap();
    let short = pack(&json!([2, [["AllBlocksCleared"]]]));
    decoder.decode(&short, &mut batch).unwrap();
    assert_eq!(batch, Batch { timestamp: 2.0, events: vec![Event::Cleared], ..Batch::default() });
}
