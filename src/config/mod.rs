//! The configuration: one YAML file, checked as a whole before any of it is used.
//!
//! The text becomes a tree that knows its lines (`tree`); the schema (`file`), the one place that names a key with its
//! default and range, takes the tree apart (`reader`, by the kinds of `values`) and notes every problem on the way. What
//! comes out is a [`Config`] in which every value is valid, or [`Problems`], all of them at once. `conf/example.yaml`
//! shows every key at its default.
//!
//! Left to others: whether a certificate parses, whether an address can be bound, whether a backend answers.

mod apart;
pub mod check;
mod exact;
mod file;
mod problem;
mod queue;
mod reader;
mod sections;
mod tree;
mod url;
mod values;

#[cfg(test)]
mod tests;

pub use problem::{Position, Problem, Problems};
pub use sections::{
    AccessLog, Admin, Backend, BlockTrace, Choice, Ejection, Engine, EventEndpoint, Health, Hedging, KvEvents, Limits,
    Listener, Locality, Logging, MaxInFlight, Metrics, Policy, Pool, Protocol, Queue, Retry, Secret, Server, Timeouts,
    Tls, Tokenizer,
};
pub use url::{BackendUrl, Host, Scheme, UrlError};

use std::io::Read;
use std::path::Path;

/// A checked configuration. Parts compare, so that a reload can tell what has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where clients connect; at least one.
    pub listeners: Vec<Listener>,
    /// The operators' listener.
    pub admin: Admin,
    /// The process and its client connections.
    pub server: Server,
    /// What a request may take up.
    pub limits: Limits,
    /// The locality index.
    pub locality: Locality,
    /// Second attempts.
    pub retry: Retry,
    /// Logs.
    pub logging: Logging,
    /// The backends by what they serve; at least one pool.
    pub pools: Vec<Pool>,
}

/// The configuration in the file at `path`.
///
/// # Errors
/// [`Problems`]: the file cannot be read, is longer than 1 MiB, is not UTF-8 or not YAML, or says something wrong.
pub fn load(path: impl AsRef<Path>) -> Result<Config, Problems> {
    let path = path.as_ref();
    let origin = path.display().to_string();
    let bytes =
        read_bounded(path).map_err(|error| Problems::whole_file(&origin, format!("cannot be read: {error}")))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        Problems::whole_file(&origin, format!("not UTF-8 text from line {line} on"))
    })?;
    parse(text, &origin)
}

/// The configuration in `text`; problems name it `origin`. Files that the text names are looked at.
///
/// # Errors
/// [`Problems`]: everything that is wrong with the text.
pub fn parse(text: &str, origin: &str) -> Result<Config, Problems> {
    let tree = tree::read(text).map_err(|problem| Problems::one(origin, problem))?;
    file::read(&tree).map_err(|found| Problems::new(origin, found))
}

/// The keys that differ between the two and cannot be changed in a running process; empty when `new` can be applied.
pub fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    // The order of listeners means nothing, and no two have the same address.
    let same_listeners = old.listeners.len() == new.listeners.len()
        && old.listeners.iter().all(|listener| new.listeners.contains(listener));
    let changes = [
        // Sockets are bound, and Pingora's services and runtimes sized, before it runs.
        ("listeners", !same_listeners),
        ("admin.address", old.admin.address != new.admin.address),
        ("server.threads", old.server.threads != new.server.threads),
        // Shrinking an index in place would stop its readers for as long as that takes.
        ("locality.max_bytes", old.locality.max_bytes != new.locality.max_bytes),
        ("locality.max_event_bytes", old.locality.max_event_bytes != new.locality.max_event_bytes),
    ];
    changes.into_iter().filter(|(_, has_changed)| *has_changed).map(|(key, _)| key).collect()
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(std::io::Error::other("it is a directory"));
    }
    let mut bytes = Vec::new();
    // One byte more than is accepted shows that there are too many.
    file.take(tree::MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > tree::MAX_TEXT_BYTES {
        let limit = tree::MAX_TEXT_BYTES;
        return Err(std::io::Error::other(format!("it is longer than {limit} bytes, the most that is read")));
    }
    Ok(bytes)
}
