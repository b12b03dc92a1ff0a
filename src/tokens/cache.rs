//! What was made of texts that were seen before, by the hash of the text, bounded in bytes: token ids of the segments of
//! prompts, the hashes of their blocks, and the values that messages of requests are read to. The latter hold what the
//! messages say: prompts stay in memory here for as long as there is room, and nowhere else.
//!
//! The key is the 128-bit XXH3 of the text under a secret: 2^64 texts would have to be tried for two that share a key, and
//! without the secret nobody can look for such texts elsewhere.
//!
//! Where a message ends is known only when it was read. So one is looked up by how it begins, which tells how long the one
//! was that began so the last time, and is the same if so much text is. JSON of an object ends with its bracket, so that
//! what follows changes nothing.

use std::num::NonZeroU32;
use std::sync::Arc;

use lru::LruCache;
use minijinja::Value;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128_with_secret;

use super::json;
use crate::prefix::BlockHash;

/// What an entry takes beside what it holds: its key, pointer and links, the table's slot with its share of free ones, and
/// the counters and allocator's rounding of a shared slice.
const ENTRY_BYTES: usize = 208;

/// What a value or a member's name takes at most, beside its text: its place in a list or an object, with free places
/// and the object's table, and its own header and allocator's rounding.
const VALUE_BYTES: usize = 128;

/// By so much of its begin a message is looked up; one that is shorter is read faster than found. XXH3 takes several times
/// as long for one byte more.
pub(super) const BEGIN_BYTES: usize = 240;

/// XXH3's own length of a secret, by which no hash is slower.
const SECRET_BYTES: usize = 192;

/// The ids of one text.
pub(super) type Ids = Arc<[u32]>;

/// The hashes of the blocks that end in one text.
pub(super) type Blocks = Arc<[BlockHash]>;

/// Least recently used texts go first.
pub(super) struct TextCache {
    /// Under which whole segments are hashed.
    of_segments: [u8; SECRET_BYTES],
    /// Under which all else is, so that the two never share a key.
    of_parts: [u8; SECRET_BYTES],
    max_bytes: usize,
    /// Written and read by all requests of the pool; held for one look-up at a time.
    state: Mutex<State>,
}

/// Names a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

/// What is kept of a text.
#[derive(Clone)]
enum Entry {
    Ids(Ids),
    Blocks(Blocks),
    Message(Message),
    Cut(Cut),
}

/// A segment that ended where another begins, by its begin.
#[derive(Clone)]
struct Cut {
    len: usize,
    /// That of all the text that decided it.
    decided_by: Key,
    segment: Segment,
}

/// The ids of a segment, and the segment's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) key: Key,
    pub(super) ids: Ids,
}

/// A message as it was read, by its begin.
#[derive(Clone)]
struct Message {
    /// Its length in JSON, bytes.
    len: usize,
    /// That of all its JSON.
    key: Key,
    value: Value,
    /// What the value takes.
    bytes: usize,
}

struct State {
    entries: LruCache<Key, Entry, foldhash::fast::RandomState>,
    bytes: usize,
}

// === impl TextCache ===

impl TextCache {
    pub(super) fn new(max_bytes: usize) -> Self {
        let entries = LruCache::unbounded_with_hasher(foldhash::fast::RandomState::default());
        let (of_segments, of_parts) = (secret(), secret());
        Self { of_segments, of_parts, max_bytes, state: Mutex::new(State { entries, bytes: 0 }) }
    }

    pub(super) fn key(&self, text: &[u8]) -> Key {
        Key(xxh3_128_with_secret(text, &self.of_segments))
    }

    pub(super) fn ids(&self, key: Key) -> Option<Ids> {
        match self.state.lock().entries.get(&key) {
            Some(Entry::Ids(ids)) => Some(Arc::clone(ids)),
            Some(_) | None => None,
        }
    }

    fn put_ids(&self, key: Key, ids: Ids) {
        self.state.lock().put(key, Entry::Ids(ids), self.max_bytes);
    }

    pub(super) fn blocks(&self, key: Key) -> Option<Blocks> {
        match self.state.lock().entries.get(&key) {
            Some(Entry::Blocks(blocks)) => Some(Arc::clone(blocks)),
            Some(_) | None => None,
        }
    }

    pub(super) fn put_blocks(&self, key: Key, blocks: Blocks) {
        self.state.lock().put(key, Entry::Blocks(blocks), self.max_bytes);
    }

    /// Names a text with all that stands before it.
    pub(super) fn key_behind(&self, before: Key, text: Key) -> Key {
        let parts = [before.0.to_le_bytes(), text.0.to_le_bytes()];
        self.key_of_part(parts.as_flattened())
    }

    /// Names the hashes of the blocks that end in a text; `text` names it with all before it.
    pub(super) fn key_of_blocks(&self, text: Key, root: BlockHash, block_tokens: NonZeroU32) -> Key {
        let blocks = u128::from(root.0) << 64 | u128::from(block_tokens.get());
        self.key_behind(text, Key(blocks))
    }

    /// The value that a text of JSON begins with, if that is a message that was put, and its length there.
    pub(super) fn message(&self, json: &[u8]) -> Option<(Value, usize)> {
        let begin = self.key_of_begin(json)?;
        let (len, key, value) = match self.state.lock().entries.get(&begin) {
            Some(Entry::Message(message)) => (message.len, message.key, message.value.clone()),
            Some(_) | None => return None,
        };
        (self.key_of_part(json.get(..len)?) == key).then_some((value, len))
    }

    /// Keeps the value of an object's JSON.
    pub(super) fn put_message(&self, json: &[u8], value: &Value) {
        let Some(begin) = self.key_of_begin(json) else { return };
        let (value, bytes) = (value.clone(), value_bytes(value));
        let message = Message { len: json.len(), key: self.key_of_part(json), value, bytes };
        self.state.lock().put(begin, Entry::Message(message), self.max_bytes);
    }

    /// The segment that a text begins with, and its length, if the text is the same as when that was put: the first `begin`
    /// bytes, by which it is looked up, those of the segment, and `ahead` more.
    pub(super) fn cut(&self, text: &[u8], begin: usize, ahead: usize) -> Option<(usize, Segment)> {
        let begin = self.key_of_part(text.get(..begin)?);
        let cut = match self.state.lock().entries.get(&begin) {
            Some(Entry::Cut(cut)) => cut.clone(),
            Some(_) | None => return None,
        };
        let same = self.key_of_part(text.get(..cut.len + ahead)?) == cut.decided_by;
        same.then_some((cut.len, cut.segment))
    }

    /// Keeps the text's first segment, that long, to be found by [`cut`](Self::cut); if the text goes on for less than
    /// `ahead`, to be found by its key only.
    pub(super) fn put_segment(&self, text: &[u8], begin: usize, len: usize, ahead: usize, segment: Segment) {
        let (Some(begin), Some(decides)) = (text.get(..begin), text.get(..len + ahead)) else {
            return self.put_ids(segment.key, segment.ids);
        };
        let cut = Cut { len, decided_by: self.key_of_part(decides), segment };
        self.state.lock().put(self.key_of_part(begin), Entry::Cut(cut), self.max_bytes);
    }

    fn key_of_begin(&self, json: &[u8]) -> Option<Key> {
        json.get(..BEGIN_BYTES).map(|begin| self.key_of_part(begin))
    }

    fn key_of_part(&self, text: &[u8]) -> Key {
        Key(xxh3_128_with_secret(text, &self.of_parts))
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl std::fmt::Debug for TextCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither the secrets nor what was seen.
        f.debug_struct("TextCache").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

// === impl State ===

impl State {
    fn put(&mut self, key: Key, entry: Entry, max_bytes: usize) {
        let bytes = entry.bytes();
        if bytes > max_bytes {
            return;
        }
        if let Some(old) = self.entries.put(key, entry) {
            self.bytes -= old.bytes();
        }
        self.bytes += bytes;
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.entries.pop_lru() else { break };
            self.bytes -= oldest.bytes();
        }
    }
}

// === impl Entry ===

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                Self::Ids(ids) => size_of_val::<[u32]>(ids),
                Self::Blocks(blocks) => size_of_val::<[BlockHash]>(blocks),
                Self::Message(message) => message.bytes,
                Self::Cut(cut) => size_of_val::<[u32]>(&cut.segment.ids),
            }
    }
}

fn secret() -> [u8; SECRET_BYTES] {
    std::array::from_fn(|_| fastrand::u8(..))
}

/// What a value takes in memory, at most. As deep as JSON is read.
fn value_bytes(value: &Value) -> usize {
    let text = value.as_str().map_or(0, |text| text.len() + text.len() / 4);
    let elements = json::list(value).into_iter().flatten().map(|element| value_bytes(&element)).sum::<usize>();
    let members = json::members(value).unwrap_or_default();
    let members = members.iter().map(|(name, member)| value_bytes(name) + value_bytes(member)).sum::<usize>();
    VALUE_BYTES + text + elements + members
}

#[cfg(test)]
mod tests;
