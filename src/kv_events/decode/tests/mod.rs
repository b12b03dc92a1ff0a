//! Tests of the decoder: recordings, the forms of other engines, what is wrong, and arbitrary bytes.

mod forms;
mod hostile;
mod plain;
mod recorded;

use serde_json::Value;

use super::*;

/// JSON as msgpack.
fn pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

/// A payload with these events.
fn batch_of(events: &Value) -> Vec<u8> {
    pack(&serde_json::json!([1.5, events, 0]))
}

fn decode(payload: &[u8]) -> (Batch, LeftOut) {
    let mut batch = Batch::default();
    let left_out = Decoder::default().decode(payload, &mut batch).unwrap();
    (batch, left_out)
}
