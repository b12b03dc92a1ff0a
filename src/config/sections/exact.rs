//! The sections about exact locality: token ids, and what engines tell of their caches.

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How a pool's prompts become the token ids that its engines make of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenizer {
    /// `tokenizer.json`, or the folder that holds it and the other two.
    pub path: PathBuf,
    /// `tokenizer_config.json`, if not in that folder.
    pub config: Option<PathBuf>,
    /// `chat_template.jinja`, if neither in that folder nor in that file.
    pub chat_template: Option<PathBuf>,
    /// Longest body that is tokenized, bytes; 4 MiB, 1 KiB to 64 MiB.
    pub max_bytes: u64,
    /// How long it may take; 200 ms, 1 ms to 10 s.
    pub timeout: Duration,
    /// Bytes of token ids and messages kept of earlier prompts, in memory only; 64 MiB, 1 MiB to 64 GiB.
    pub cache_bytes: u64,
}

/// What a pool's engines tell of their caches.
#[derive(Debug, Clone, PartialEq)]
pub struct KvEvents {
    /// Whether to listen; false.
    pub enabled: bool,
    /// Requests with new blocks that may be answered without an event before a backend is no longer believed to send
    /// any; 64, 1 to 1000000.
    pub silent_after: NonZeroU32,
    /// What a token in the host's memory is worth of one in the GPU's; 0.8, 0 to 1.
    pub cpu_credit: f64,
    /// The same of one on disk; 0.4, 0 to 1.
    pub disk_credit: f64,
}

/// Where an engine publishes its KV events, if it is not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventEndpoint {
    /// The PUB socket, `tcp://HOST:PORT`.
    pub endpoint: String,
    /// The ROUTER socket that replays, if there is one.
    pub replay: Option<String>,
    /// What its messages are published under; all, in the file an empty text.
    pub topic: String,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: Arc<str>,
    /// The file that it was in, if it was in one.
    file: Option<Arc<Path>>,
}

// === impl Secret ===

impl Secret {
    /// Keeps `text` from being shown.
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), file: None }
    }

    /// The same, from the file at `path`.
    pub fn of_file(text: &str, path: &Path) -> Self {
        Self { text: text.into(), file: Some(path.into()) }
    }

    /// The file that it was in.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The text, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
