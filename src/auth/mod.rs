//! Who may call: API keys, what each of their callers may do, and what it has used.
//!
//! A key is looked up by its SHA-256 ([`crate::config::KeyDigest`]); the [`Callers`] in force are published whole, like the
//! configuration they follow from. What a caller has used is kept apart from its settings, under its label, so that it
//! survives a reload. The arithmetic of limits (`bucket`) is pure; nothing here knows of HTTP but the headers that a
//! key comes in.

mod bucket;
mod callers;
mod charge;
mod headers;
mod new_key;
mod paths;

pub use callers::{Caller, Callers, Denied};
pub use charge::{Charge, Counts, LimitKind, Limited, Room, Spent};
pub use headers::{CREDENTIALS, presented};
pub use new_key::{MIN_KEY_BYTES, new_key};
