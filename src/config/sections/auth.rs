//! The section about callers, and the file of their keys.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use super::Choice;
use crate::config::KeyDigest;
use crate::queue::Priority;

/// Who may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// The file of keys; `None`, in the file none: whoever reaches a listener may call.
    pub keys_file: Option<PathBuf>,
    /// What is in it.
    pub keys: Arc<[Key]>,
}

/// One caller of the file of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// What it is called in logs and metrics; unique, 1 to 64 of `A-Za-z0-9_.-`.
    pub label: Arc<str>,
    /// Its keys' digests, 1 to 8: a second one while clients change over to it.
    pub digests: Vec<KeyDigest>,
    /// What it may use.
    pub limits: KeyLimits,
    /// The `model` values that its requests may name; `None`, in the file no such key, is any.
    pub models: Option<Vec<String>>,
    /// The pools that its requests may go to; `None`, in the file no such key, is any.
    pub pools: Option<Vec<String>>,
    /// The paths that its requests may call, each whole, or ending with `/*` for all that are under it; `None`, in the file
    /// no such key, is any, and with a limit of tokens those where tokens are counted.
    pub paths: Option<Vec<String>>,
    /// Its class in queues: as urgent as its requests can be, and are if they say nothing; normal.
    pub priority: Priority,
}

/// What one caller may use. Each is without limit where the file does not give one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests a minute; 1 to 1000000000.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Tokens a minute, of prompts and answers; 1 to 1000000000.
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Prompt tokens a minute that the chosen backends do not have cached: the prefill that they cost; 1 to 1000000000.
    pub uncached_tokens_per_minute: Option<NonZeroU32>,
    /// Requests at a time; 1 to 1000000.
    pub concurrent_requests: Option<NonZeroU32>,
}

// === impl Choice ===

impl Choice for Priority {
    const NAMES: &'static [(&'static str, Self)] =
        &[("high", Self::High), ("normal", Self::Normal), ("low", Self::Low)];
}
