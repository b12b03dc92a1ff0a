//! The harness of the integration tests: a real proxy between scripted backends and raw clients, all on loopback.
//!
//! Everything has a port of its own and a bounded wait: a silent proxy is a failed test, not a hung one. Nothing sleeps
//! to let something happen; tests wait for what they want to see ([`eventually`]).

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test program uses a part of it, in tests only"
)]

pub mod backend;
pub mod client;
pub mod h2c;
pub mod proxy;
pub mod wire;

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// The longest wait for anything that must come.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Waits until `condition` holds, at most [`LIMIT`]; `what` says what was waited for.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// `future`, which must end within [`LIMIT`].
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what}: not within {LIMIT:?}"))
}

/// A chat request of exactly `length` bytes, at least 10; its text differs with `seed`.
pub fn chat_of(length: usize, seed: u64) -> Vec<u8> {
    const HEAD: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":""#;
    const TAIL: &[u8] = br#""}]}"#;
    let Some(text_bytes) = length.checked_sub(HEAD.len() + TAIL.len()) else {
        return format!("{{{:>1$}}}", "", length - 2).into_bytes();
    };
    let mut rng = fastrand::Rng::with_seed(seed);
    let letters: Vec<u8> = (0..4096).map(|_| rng.alphanumeric() as u8).collect();
    let mut body = Vec::with_capacity(length);
    body.extend_from_slice(HEAD);
    // Pieces at random, so that bytes that move, or come twice, show.
    while body.len() < HEAD.len() + text_bytes {
        let room = HEAD.len() + text_bytes - body.len();
        let piece = &letters[rng.usize(0..3072)..][..room.min(1024)];
        body.extend_from_slice(piece);
    }
    body.extend_from_slice(TAIL);
    body
}

/// A short chat request with this text.
pub fn chat(text: &str) -> Vec<u8> {
    serde_json::json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string().into_bytes()
}

/// The same, its answer to be streamed with usage.
pub fn streamed_chat(text: &str) -> Vec<u8> {
    let messages = serde_json::json!([{"role": "user", "content": text}]);
    let options = serde_json::json!({"include_usage": true});
    serde_json::json!({"model": "m", "stream": true, "stream_options": options, "messages": messages})
        .to_string()
        .into_bytes()
}

/// What backends answer for a body that they received: its hash.
pub fn hash(body: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body))
}
