//! The recorded messages of real engines, for this module's tests.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use serde_json::Value;

use crate::testing;

/// The folders of recordings: hashes as numbers, and hashes as bytes.
pub(super) const RECORDINGS: [&str; 2] = ["int-sha256_cbor", "bytes-sha256"];

/// A recorded message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recorded {
    pub(super) topic: String,
    pub(super) seq: u64,
    pub(super) payload: Bytes,
}

pub(super) fn path(name: &str) -> Option<PathBuf> {
    testing::shared(&format!("fixtures/vllm/kv-events/{name}"))
}

pub(super) fn bytes(name: &str) -> Option<Vec<u8>> {
    Some(fs::read(path(name)?).unwrap())
}

/// All messages of a recording, as a SUB socket got them.
pub(super) fn live(recording: &str) -> Option<Vec<Recorded>> {
    let bytes = bytes(&format!("{recording}/live.frames.bin"))?;
    let mut rest = &bytes[..];
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let frames: Vec<&[u8]> = (0..number(&mut rest)).map(|_| frame(&mut rest)).collect();
        let [topic, seq, payload] = frames[..] else { panic!("a message of {} frames", frames.len()) };
        messages.push(Recorded {
            topic: String::from_utf8(topic.to_vec()).unwrap(),
            seq: u64::from_be_bytes(seq.try_into().unwrap()),
            payload: Bytes::copy_from_slice(payload),
        });
    }
    Some(messages)
}

/// What the recorder decoded, a line a message.
pub(super) fn decoded(recording: &str) -> Option<Vec<Value>> {
    let text = String::from_utf8(bytes(&format!("{recording}/live.decoded.jsonl"))?).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// One batch in the form of each older release, with its decoded form.
pub(super) fn older_formats() -> Option<Vec<Value>> {
    let all: Value = serde_json::from_slice(&bytes("older-formats.json")?).unwrap();
    Some(all["versions"].as_array().unwrap().clone())
}

pub(super) fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn number(rest: &mut &[u8]) -> u32 {
    u32::from_be_bytes(rest.split_off(..4).unwrap().try_into().unwrap())
}

fn frame<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let length = number(rest) as usize;
    rest.split_off(..length).unwrap()
}
