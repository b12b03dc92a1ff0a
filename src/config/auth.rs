//! The schema of the section about callers, and of the file of keys that it names.
//!
//! The file of keys is one of its own: it changes with the callers, not with the fleet, and other people may write it
//! and read it. It is YAML as well, and its problems are reported in the same way, each with its line; but what it says
//! is not repeated in them, as it could be a key in the place of its hash.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::problem::Problems;
use super::reader::{Reader, Section};
use super::values as kind;
use super::{Auth, Key, KeyLimits, Pool, Priority, tree};

/// Most callers: each has series of its own in the metrics.
const MAX_KEYS: usize = 4096;
/// Most entries of a caller's lists of models, pools and paths.
const MAX_ALLOWED: usize = 256;
/// Most units of a limit, and most requests at a time.
const MAX_A_MINUTE: u32 = 1_000_000_000;
const MAX_AT_A_TIME: u32 = 1_000_000;

pub(super) fn auth(section: &mut Section<'_, '_>) -> Auth {
    Auth { keys_file: section.value("keys_file", kind::readable_file_or_none(), None), keys: Arc::default() }
}

/// The callers in the file at `path`, who may be sent to some of `pools`, if these are known.
pub(super) fn load(path: &Path, pools: Option<&[Pool]>) -> Result<Arc<[Key]>, Problems> {
    let origin = path.display().to_string();
    let text = super::read_text(path, &origin)?;
    let tree = tree::read(&text).map_err(|problem| Problems::one(&origin, problem))?;
    let names: Option<HashSet<&str>> = pools.map(|pools| pools.iter().map(|pool| &*pool.name).collect());
    let mut reader = Reader::discreet();
    let keys = reader.root(&tree, |file| {
        file.sections("keys", (0, MAX_KEYS), "- {label: team-a, hash: 'sha256:...'}", |section| {
            key(section, names.as_ref())
        })
    });
    let (problems, _) = reader.finish();
    if problems.is_empty() { Ok(keys.unwrap_or_default().into()) } else { Err(Problems::new(&origin, problems)) }
}

fn key(section: &mut Section<'_, '_>, pool_names: Option<&HashSet<&str>>) -> Option<Key> {
    let label = section.required("label", kind::word(64, "_.-"));
    let digests = section.required("hash", kind::key_digests());
    if let Some(label) = &label {
        section.claim(&section.place_of("label"), "label", label);
    }
    for digest in digests.iter().flatten() {
        section.claim(&section.place_of("hash"), "hash", &digest.to_string());
    }
    let limits = KeyLimits {
        requests_per_minute: section.optional("requests_per_minute", kind::count(MAX_A_MINUTE)),
        tokens_per_minute: section.optional("tokens_per_minute", kind::count(MAX_A_MINUTE)),
        uncached_tokens_per_minute: section.optional("uncached_tokens_per_minute", kind::count(MAX_A_MINUTE)),
        concurrent_requests: section.optional("concurrent_requests", kind::count(MAX_AT_A_TIME)),
    };
    let models = allowed(section, "models", kind::model());
    let pools = allowed(section, "pools", kind::word(64, "_.-"));
    let is_pool = |name: &String| pool_names.is_none_or(|names| names.contains(&**name));
    if !pools.iter().flatten().all(is_pool) {
        section.reject("pools", "not all of these are names of pools; expected those of the configuration");
    }
    let paths = allowed(section, "paths", kind::path_or_under());
    let priority = section.value("priority", kind::choice(), Priority::Normal);
    Some(Key { label: label?.into(), digests: digests?, limits, models, pools, paths, priority })
}

/// What a list allows. An empty one is refused: one may take it for everything, another for nothing.
fn allowed(section: &mut Section<'_, '_>, key: &'static str, kind: kind::Kind<String>) -> Option<Vec<String>> {
    let given = section.values(key, MAX_ALLOWED, kind)?;
    if section.is_empty_list(key) {
        section.reject(key, "expected at least one, or no such key to allow all");
    }
    Some(given.into_iter().map(|(_, name)| name).collect())
}

#[cfg(test)]
mod tests;
