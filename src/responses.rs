//! Which backend made a stored response.
//!
//! An engine keeps the responses of `/v1/responses` in its own memory, so a request that names one, by
//! `previous_response_id` or in its path, must go to the engine that made it. Bounded: the least recently used are
//! forgotten, and their requests go by load. Ids are kept as hashes only.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Responses that are remembered: about 6 MB.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Where a response was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The backend's name.
    pub backend: Arc<str>,
}

/// Remembers the makers of responses.
#[derive(Debug)]
pub struct ResponseOwners(Mutex<LruCache<u64, Owner>>);

// === impl ResponseOwners ===

impl Default for ResponseOwners {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl ResponseOwners {
    /// Remembers who made the response `id`.
    pub fn remember(&self, id: &str, owner: Owner) {
        self.0.lock().put(xxh3_64(id.as_bytes()), owner);
    }

    /// All of them by the hashes of their ids, the least recently used first: for another process.
    pub(crate) fn all(&self) -> Vec<(u64, Owner)> {
        self.0.lock().iter().rev().map(|(hash, owner)| (*hash, owner.clone())).collect()
    }

    /// Remembers what another process did, in the order of [`Self::all`].
    pub(crate) fn restore(&self, remembered: impl Iterator<Item = (u64, Owner)>) {
        let mut owners = self.0.lock();
        remembered.for_each(|(hash, owner)| {
            owners.put(hash, owner);
        });
    }

    /// Who made the response `id`, if that is remembered.
    pub fn owner(&self, id: &str) -> Option<Owner> {
        self.0.lock().get(&xxh3_64(id.as_bytes())).cloned()
    }
}

/// The response id in a path such as `/v1/responses/resp_1` or `/v1/responses/resp_1/cancel`.
pub(crate) fn id_in_path(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/v1/responses/")?;
    let id = rest.split('/').next()?;
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_found_by_its_id_alone() {
        let owners = ResponseOwners::default();
        let owner = Owner { pool: "p".into(), backend: "a:1".into() };
        owners.remember("resp_1", owner.clone());
        assert_eq!(owners.owner("resp_1"), Some(owner));
        assert_eq!(owners.owner("resp_2"), None);
    }

    #[test]
    fn the_oldest_is_forgotten_beyond_the_bound() {
        let owners = ResponseOwners::default();
        let owner = Owner { pool: "p".into(), backend: "a:1".into() };
        for number in 0..=REMEMBERED.get() {
            owners.remember(&number.to_string(), owner.clone());
        }
        assert_eq!(owners.owner("0"), None);
        assert!(owners.owner("1").is_some());
    }

    #[test]
    fn another_process_remembers_the_same_in_the_same_order() {
        let (old, new) = (ResponseOwners::default(), ResponseOwners::default());
        for number in 0..100 {
            let owner = Owner { pool: "p".into(), backend: format!("b{}", number % 7).into() };
            old.remember(&number.to_string(), owner);
        }
        old.owner("3");
        new.restore(old.all().into_iter());
        assert_eq!(new.all(), old.all());
        assert_eq!(new.owner("99"), old.owner("99"));
    }

    #[test]
    fn ids_are_taken_from_paths() {
        assert_eq!(id_in_path("/v1/responses/resp_1"), Some("resp_1"));
        assert_eq!(id_in_path("/v1/responses/resp_1/cancel"), Some("resp_1"));
        assert_eq!(id_in_path("/v1/responses/"), None);
        assert_eq!(id_in_path("/v1/responses"), None);
    }
}
