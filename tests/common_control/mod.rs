//! What the tests of the control loop, the admin listener and the process share: scripted backends, a client that sees
//! every byte and every closed connection, and the proxy, in this process or as one of its own. All sockets are real,
//! all ports are the system's choice, and a test waits for conditions, never for time.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of the harness")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

pub mod child;
pub mod client;
pub mod engine;
pub mod logs;
pub mod open_metrics;
pub mod proxy;
pub mod settings;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The longest that anything which must happen is waited for: far longer than it takes, since machines get busy.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until `condition` holds; panics with `what` was waited for if it does not within [`LIMIT`].
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < LIMIT, "waited in vain: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends the test when `future` takes longer than [`LIMIT`].
pub async fn within<R>(what: &str, future: impl Future<Output = R>) -> R {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("took too long: {what}"))
}

/// A chat request.
pub fn chat(prompt: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": prompt}]})
}

/// A streamed chat request.
pub fn streamed(prompt: &str) -> Value {
    let mut body = chat(prompt);
    body["stream"] = json!(true);
    body
}

/// A prompt of many blocks that is nobody else's.
pub fn long_prompt(name: &str) -> String {
    format!("{name}: {}", "all work and no play makes a long prompt. ".repeat(100))
}

/// A directory that goes when the test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("warmgate-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and gives its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
