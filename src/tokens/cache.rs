//! Token ids of texts that were seen before, by the hash of the text, bounded in bytes.
//!
//! The key is the 128-bit XXH3 of the text under a secret seed: 2^64 texts would have to be tried for two that share
//! a key, and without the seed nobody can look for such texts elsewhere.

use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// What an entry takes beside its ids: key, pointer and links, the table's slot with its share of free ones, and the
/// counters and allocator's rounding of the shared slice.
const ENTRY_BYTES: usize = 144;

/// The ids of one text.
pub(super) type Ids = Arc<[u32]>;

/// Least recently used texts go first.
pub(super) struct SegmentCache {
    seed: u64,
    max_bytes: usize,
    /// Written and read by all requests of the pool; held for one look-up at a time.
    state: Mutex<State>,
}

/// Names a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

struct State {
    entries: LruCache<Key, Ids, foldhash::fast::RandomState>,
    bytes: usize,
}

// === impl SegmentCache ===

impl SegmentCache {
    pub(super) fn new(max_bytes: usize) -> Self {
        let entries = LruCache::unbounded_with_hasher(foldhash::fast::RandomState::default());
        Self { seed: fastrand::u64(..), max_bytes, state: Mutex::new(State { entries, bytes: 0 }) }
    }

    pub(super) fn key(&self, text: &str) -> Key {
        Key(xxh3_128_with_seed(text.as_bytes(), self.seed))
    }

    pub(super) fn get(&self, key: Key) -> Option<Ids> {
        self.state.lock().entries.get(&key).cloned()
    }

    pub(super) fn put(&self, key: Key, ids: Ids) {
        self.state.lock().put(key, ids, self.max_bytes);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl std::fmt::Debug for SegmentCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither the seed nor what was seen.
        f.debug_struct("SegmentCache").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

// === impl State ===

impl State {
    fn put(&mut self, key: Key, ids: Ids, max_bytes: usize) {
        let bytes = entry_bytes(&ids);
        if bytes > max_bytes {
            return;
        }
        if let Some(old) = self.entries.put(key, ids) {
            self.bytes -= entry_bytes(&old);
        }
        self.bytes += bytes;
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.entries.pop_lru() else { break };
            self.bytes -= entry_bytes(&oldest);
        }
    }
}

fn entry_bytes(ids: &Ids) -> usize {
    ENTRY_BYTES + size_of_val::<[u32]>(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let cache = SegmentCache::new(3 * (ENTRY_BYTES + 40));
        let ids: Ids = Arc::from([7_u32; 10].as_slice());
        let keys: Vec<Key> = ["a", "b", "c", "d"].map(|text| cache.key(text)).to_vec();
        for key in &keys[..3] {
            cache.put(*key, ids.clone());
        }
        assert!(cache.get(keys[0]).is_some(), "looking it up makes it the newest");
        cache.put(keys[3], ids.clone());
        assert_eq!(cache.get(keys[1]), None, "the oldest is gone");
        assert!([0, 2, 3].iter().all(|at| cache.get(keys[*at]).is_some()), "the others are there");
        assert_eq!(cache.bytes(), 3 * (ENTRY_BYTES + 40));
    }

    #[test]
    fn what_can_never_fit_is_not_kept() {
        let cache = SegmentCache::new(ENTRY_BYTES);
        let key = cache.key("a");
        cache.put(key, Arc::from([1_u32].as_slice()));
        assert_eq!((cache.get(key), cache.bytes()), (None, 0));
    }

    #[test]
    fn an_entry_that_comes_again_counts_once() {
        let cache = SegmentCache::new(1 << 20);
        for _ in 0..3 {
            cache.put(cache.key("a"), Arc::from([1_u32, 2].as_slice()));
        }
        assert_eq!(cache.bytes(), ENTRY_BYTES + 8);
    }
}
