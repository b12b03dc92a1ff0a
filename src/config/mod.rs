//! The configuration: one YAML file, checked as a whole before any of it is used.
//!
//! The text becomes a tree that knows its lines (`tree`); the schema (`file`), the one place that names a key with its
//! default and range, takes the tree apart (`reader`, by the kinds of `values`) and notes every problem on the way. What
//! comes out is a [`Config`] in which every value is valid, or [`Problems`], all of them at once. `conf/example.yaml`
//! shows every key at its default.
//!
//! Left to others: whether a certificate parses, whether an address can be bound, whether a backend answers.

mod apart;
mod auth;
pub mod check;
mod digest;
mod exact;
mod file;
mod problem;
mod queue;
mod reader;
pub(crate) mod regular;
mod sections;
mod timing;
mod tls;
mod tree;
mod upgrade;
mod url;
mod values;

#[cfg(test)]
mod tests;

pub use crate::queue::Priority;
pub use digest::{KeyDigest, NotADigest};
pub use problem::{Position, Problem, Problems};
pub use sections::{
    AccessLog, Admin, AdminPage, Auth, Backend, BlockTrace, CertificateFiles, Choice, ClientCertificates, Drain,
    Ejection, Engine, EventEndpoint, Health, Hedging, Key, KeyLimits, KvEvents, Limits, Listener, Locality, Logging,
    MaxInFlight, Metrics, Policy, Pool, Protocol, Queue, Retry, Secret, Server, Timeouts, Tls, TlsVersion, Tokenizer,
    Upgrade, UpstreamTls, Verify,
};
pub use timing::drain_deadline;
pub use url::{BackendUrl, Host, Scheme, UrlError};

use std::io::Read;
use std::path::{Path, PathBuf};

/// A checked configuration. Parts compare, so that a reload can tell what has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where clients connect; at least one.
    pub listeners: Vec<Listener>,
    /// The operators' listener.
    pub admin: Admin,
    /// Who may call.
    pub auth: Auth,
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
    parse(&read_text(path, &origin)?, &origin)
}

/// The same in a process that serves, which must not wait for the other end of a pipe.
///
/// # Errors
/// As [`load`], and for what is no regular file.
pub(crate) fn load_again(path: &Path) -> Result<Config, Problems> {
    regular::check(path).map_err(|error| unreadable(&path.display().to_string(), &error))?;
    load(path)
}

/// The configuration in `text`; problems name it `origin`. Files that the text names are looked at.
///
/// # Errors
/// [`Problems`]: everything that is wrong with the text, and with the file of keys that it names.
pub fn parse(text: &str, origin: &str) -> Result<Config, Problems> {
    let tree = tree::read(text).map_err(|problem| Problems::one(origin, problem))?;
    let (mut config, found) = file::read(&tree).map_err(|found| Problems::new(origin, found))?;
    let mut problems = (!found.is_empty()).then(|| Problems::new(origin, found));
    if let Some(path) = &config.auth.keys_file {
        // Names of pools are known only where those could be read.
        let pools = problems.is_none().then_some(&*config.pools);
        match auth::load(path, pools) {
            Ok(keys) => config.auth.keys = keys,
            Err(more) => {
                problems = Some(match problems {
                    Some(problems) => problems.and(more),
                    None => more,
                });
            }
        }
    }
    problems.map_or(Ok(config), Err)
}

impl Config {
    /// The files that a reload reads again besides the configuration itself, and whose change calls for one: those of
    /// keys and tokens.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let keys = self.auth.keys_file.clone();
        let secrets = self.pools.iter().map(|pool| &pool.api_key).chain([&self.admin.token]);
        let secrets = secrets.filter_map(|secret| Some(secret.as_ref()?.file()?.to_owned()));
        let mut files: Vec<PathBuf> = keys.into_iter().chain(secrets).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// The keys that differ between the two and cannot be changed in a running process; empty when `new` can be applied.
pub fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    // The order of listeners means nothing, and what their TLS is like can change.
    let places = |config: &Config, place| config.listeners.iter().filter(|other| other.place() == place).count();
    let same_listeners = old.listeners.len() == new.listeners.len()
        && old.listeners.iter().all(|listener| places(old, listener.place()) == places(new, listener.place()));
    // A gateway is made for its listener.
    let place = |listener: &Listener| (listener.address, listener.requires_key);
    let has_other_callers = |listener: &Listener| {
        let mut there = new.listeners.iter().filter(|other| other.address == listener.address).peekable();
        there.peek().is_some() && !there.any(|other| place(other) == place(listener))
    };
    let changes = [
        // Sockets are bound, and Pingora's services and runtimes sized, before it runs.
        ("listeners", !same_listeners),
        ("listeners[].requires_key", old.listeners.iter().any(has_other_callers)),
        ("admin.address", old.admin.address != new.admin.address),
        ("server.threads", old.server.threads != new.server.threads),
        // Shrinking an index in place would stop its readers for as long as that takes.
        ("locality.max_bytes", old.locality.max_bytes != new.locality.max_bytes),
        ("locality.max_event_bytes", old.locality.max_event_bytes != new.locality.max_event_bytes),
    ];
    changes.into_iter().filter(|(_, has_changed)| *has_changed).map(|(key, _)| key).collect()
}

fn read_text(path: &Path, origin: &str) -> Result<String, Problems> {
    let bytes = read_bounded(path).map_err(|error| unreadable(origin, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|&&byte| byte == b'\n').count() + 1;
        Problems::whole_file(origin, format!("not UTF-8 text from line {line} on"))
    })
}

fn unreadable(origin: &str, error: &std::io::Error) -> Problems {
    Problems::whole_file(origin, format!("cannot be read: {error}"))
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
