//! What no engine should send: it costs at most its own event, and never more memory than a constant times its length.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::kv_events::fixtures::{self, RECORDINGS, unhex};
use crate::kv_events::{EngineHash, Event, Medium, Stored};
use crate::testing::config;

/// A good event, then this one, then a good one again: what comes of the one between, and what is left out.
fn between(event: &Value) -> (Vec<Event>, LeftOut) {
    let good = json!(["BlockRemoved", [7]]);
    let (batch, left_out) = decode(&batch_of(&json!([good, event, good])));
    let mut events = batch.events;
    assert!(events.len() >= 2, "{event}: those around it are read");
    let (first, last) = (events.remove(0), events.pop());
    for event in [Some(first), last] {
        let Some(Event::Removed(removed)) = event else { panic!("the removals around it stay") };
        assert_eq!((&batch.hashes[removed.hashes], removed.medium), (&[EngineHash(7)][..], Medium::Gpu));
    }
    (events, left_out)
}

#[test]
fn stored_blocks_that_do_not_make_sense_are_left_out_and_told() {
    let event = |fields: Value| {
        let mut event = json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2], "block_size": 2});
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        event
    };
    let cases = [
        (json!({"token_ids": [1]}), Fault::Tokens),
        (json!({"block_hashes": [1, 2]}), Fault::Tokens),
        (json!({"block_hashes": []}), Fault::Tokens),
        (json!({"block_size": 0}), Fault::BlockSize),
        (json!({"block_size": "2"}), Fault::BlockSize),
        (json!({"block_size": -2}), Fault::BlockSize),
        (json!({"token_ids": [1, 4_294_967_296_u64]}), Fault::Token),
        (json!({"token_ids": [1, -1]}), Fault::Token),
        (json!({"token_ids": [1, [2, 3]]}), Fault::Token),
        (json!({"token_ids": "12"}), Fault::Token),
        (json!({"block_hashes": ["1"]}), Fault::Hash),
        (json!({"block_hashes": null}), Fault::Hash),
        (json!({"block_hashes": {"1": 1}}), Fault::Hash),
        (json!({"parent_block_hash": [1]}), Fault::Hash),
        (json!({"extra_keys": []}), Fault::ExtraKeys),
        (json!({"extra_keys": [null, null]}), Fault::ExtraKeys),
        (json!({"extra_keys": ["s"]}), Fault::ExtraKeys),
        (json!({"extra_keys": 1}), Fault::ExtraKeys),
        (json!({"medium": 1}), Fault::Field),
        (json!({"group_idx": "0"}), Fault::Field),
        (json!({"lora_name": 1}), Fault::Field),
        (json!({"lora_id": "1"}), Fault::Field),
        (json!({"cache_salt": 1}), Fault::Field),
        (json!({"kv_cache_spec_kind": 1}), Fault::Field),
    ];
    for (fields, fault) in cases {
        let expected = LeftOut { unknown: 0, broken: 1, fault: Some(fault) };
        assert_eq!(between(&event(fields.clone())), (Vec::new(), expected), "{fields}");
    }
}

#[test]
fn a_removal_that_cannot_be_read_forgets_everything() {
    for event in [json!(["BlockRemoved"]), json!(["BlockRemoved", ["x"]]), json!(["BlockRemoved", [1], 5])] {
        let (events, left_out) = between(&event);
        assert_eq!((events, left_out.broken), (vec![Event::Cleared], 1), "{event}");
    }
}

#[test]
fn events_about_nothing_and_of_unknown_kinds_are_passed_over() {
    for event in [json!(["BlockRemoved", []]), json!(["BlockStored", [], null, [], 16])] {
        assert_eq!(between(&event), (Vec::new(), LeftOut::default()), "{event}");
    }
    let unknown = LeftOut { unknown: 1, ..LeftOut::default() };
    let moved = json!({"type": "BlockMoved", "block_hashes": [1], "token_ids": [1], "extra_keys": [["x"]]});
    for event in
        [moved, json!(["BlockMoved", [1, 2]]), json!({}), json!([]), json!(7), json!(null), json!("x"), json!(true)]
    {
        assert_eq!(between(&event), (Vec::new(), unknown), "{event}");
    }
}

#[test]
fn extensions_and_text_that_is_not_unicode_are_values_like_others() {
    // A map event with an extension and bad text under unknown names, then the known ones.
    let mut payload = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x84];
    payload.extend_from_slice(b"\xa1x\xd6\x05abcd");
    payload.extend_from_slice(b"\xa1\xff\xa2\xff\xfe");
    payload.extend_from_slice(b"\xa4type\xacBlockRemoved\xacblock_hashes\x91\xc4\x02\x01\x02");
    payload.push(0);
    let (batch, left_out) = decode(&payload);
    assert_eq!(left_out, LeftOut::default());
    assert_eq!((batch.events.len(), &batch.hashes[..], batch.rank), (1, &[EngineHash(0x102)][..], Some(0)));
}

#[test]
fn claimed_lengths_cost_nothing() {
    let claims: [&[u8]; 5] = [
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x01\xdd\xff\xff\xff\xff",
        b"\x93\x01\x91\x92\xacBlockRemoved\xdd\xff\xff\xff\xff\x01",
        b"\x93\x01\x91\xdf\xff\xff\xff\xff\xactoken_ids",
        b"\x93\x01\x91\x92\xacBlockRemoved\x91\xc6\xff\xff\xff\xff",
    ];
    for claim in claims {
        let mut batch = Batch::default();
        Decoder::default().decode(claim, &mut batch).unwrap_err();
        assert_eq!(batch, Batch::default(), "{claim:?}: nothing of it stays");
        assert!(memory(&batch) <= allowed(claim), "{claim:?}");
    }
}

#[test]
fn nesting_and_numbers_of_things_are_bounded() {
    let mut deep = b"\x93\x01\x91".to_vec();
    deep.extend_from_slice(&[0x91; 100_000]);
    let mut many_events = b"\x93\x01\xdd\x00\x03\x00\x00".to_vec();
    (0..0x3_0000).for_each(|_| many_events.extend_from_slice(b"\x91\xb0AllBlocksCleared"));
    let mut many_hashes = b"\x93\x01\x91\x92\xacBlockRemoved\xdd\x00\x20\x00\x00".to_vec();
    many_hashes.resize(many_hashes.len() + 0x20_0000, 1);
    let mut many_tokens = b"\x93\x01\x91\x81\xa9token_ids\xdd\x00\x80\x00\x00".to_vec();
    many_tokens.resize(many_tokens.len() + 0x80_0000, 1);
    let mut many_keys = b"\x93\x01\x91\x81\xaaextra_keys\x91\xdd\x00\x20\x00\x00".to_vec();
    many_keys.resize(many_keys.len() + 0x20_0000, 1);
    for payload in [deep, many_events, many_hashes, many_tokens, many_keys] {
        let mut batch = Batch::default();
        Decoder::default().decode(&payload, &mut batch).unwrap_err();
        assert!(batch.events.is_empty(), "a batch beyond the bounds is refused whole");
    }
}

/// Bytes that a batch holds.
fn memory(batch: &Batch) -> usize {
    batch.events.capacity() * size_of::<Event>()
        + batch.hashes.capacity() * size_of::<EngineHash>()
        + batch.tokens.capacity() * size_of::<u32>()
        + batch.extras.capacity() * size_of::<Option<std::num::NonZeroU64>>()
}

/// A constant times the payload: a hash takes 8 bytes and may be sent as one, and lists grow by doubling.
fn allowed(payload: &[u8]) -> usize {
    64 * payload.len() + 4 * size_of::<Stored>()
}

static PAYLOADS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut payloads: Vec<Vec<u8>> = RECORDINGS
        .iter()
        .flat_map(|name| fixtures::live(name).unwrap_or_default())
        .map(|message| message.payload.to_vec())
        .collect();
    let older = fixtures::older_formats().unwrap_or_default();
    payloads.extend(older.iter().map(|release| unhex(release["payload_hex"].as_str().unwrap())));
    payloads.push(batch_of(&json!([[
        "BlockStored",
        [1, -2],
        5,
        [1, 2],
        1,
        null,
        "CPU",
        "a",
        [["a", ["mm", "x", 1]], null]
    ]])));
    payloads
});

fn survives(payload: &[u8]) -> Result<(), TestCaseError> {
    let mut batch = Batch::default();
    let _ = Decoder::default().decode(payload, &mut batch);
    prop_assert!(memory(&batch) <= allowed(payload), "{} bytes for a payload of {}", memory(&batch), payload.len());
    for event in &batch.events {
        if let Event::Stored(stored) = event {
            prop_assert_eq!(stored.hashes.len() * stored.block_tokens.get() as usize, stored.tokens.len());
            prop_assert!(stored.extras.is_empty() || stored.extras.len() == stored.hashes.len());
            prop_assert!(stored.tokens.end <= batch.tokens.len() && stored.extras.end <= batch.extras.len());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn arbitrary_bytes_never_panic_or_take_memory(payload in prop::collection::vec(any::<u8>(), 0..300)) {
        survives(&payload)?;
    }

    #[test]
    fn payloads_with_bytes_changed_never_panic_or_take_memory(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut payload = which.get(&PAYLOADS).clone();
        for (at, byte) in changes {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        if let Some(end) = end {
            payload.truncate(end.index(payload.len()));
        }
        survives(&payload)?;
    }
}
