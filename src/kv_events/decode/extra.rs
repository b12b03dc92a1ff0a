//! Extra keys: what goes into a block besides its tokens, one entry a block, in whatever form the engine has it.
//!
//! The adapter's name and the salt are known by their places and are taken out. The rest (pictures and such) becomes a
//! digest, so that such a block never passes for one of plain text; what it stands for does not matter.

use std::fmt;
use std::num::NonZeroU64;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::scalar::{Scalar, anything_else};
use super::{Fault, MAX_HASHES};

/// One extra key, and the number of the block within its event.
pub(super) struct Item<'de> {
    block: usize,
    key: Key<'de>,
}

#[derive(Debug, Clone, Copy)]
enum Key<'de> {
    Text(&'de str),
    /// `["lora", name]` or `["cache_salt", salt]`.
    Tagged {
        tag: &'de str,
        value: &'de str,
    },
    Digest(u64),
}

/// What the field was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    None,
    /// So many entries.
    Some(usize),
    /// Neither nothing nor a list of lists.
    Wrong,
}

/// Collects the keys of a whole event.
pub(super) struct ExtraKeys<'r, 'de>(pub(super) &'r mut Vec<Item<'de>>);

/// Collects the keys of one block; whether they are a list, or nothing.
struct Entry<'r, 'de> {
    items: &'r mut Vec<Item<'de>>,
    block: usize,
}

struct KeyVisitor;

// The kinds of values, so that a digest tells them apart.
const TEXT: u64 = 1;
const BYTES: u64 = 2;
const INT: u64 = 3;
const FLOAT: u64 = 4;
const LIST: u64 = 5;
const MAP: u64 = 6;
const OTHER: u64 = 7;

/// Adds a digest for each of `blocks` to `extras`, nothing if there is none for any. The salt, if there is one.
///
/// Untagged, a salt is known by being the one thing left at the beginning of a prompt.
pub(super) fn digest<'de>(
    items: &[Item<'de>],
    adapter: Option<&str>,
    is_first: bool,
    blocks: usize,
    extras: &mut Vec<Option<NonZeroU64>>,
) -> Option<&'de str> {
    let is_adapter = |key: Key<'_>| match key {
        Key::Text(name) => adapter == Some(name),
        Key::Tagged { tag, value } => tag == "lora" && adapter == Some(value),
        Key::Digest(_) => false,
    };
    let remaining = || items.iter().filter(|item| !is_adapter(item.key));
    let is_alone = is_first && remaining().filter(|item| item.block == 0).count() == 1;
    let mut salt = None;
    let start = extras.len();
    for item in remaining() {
        match item.key {
            Key::Text(text) if is_alone && item.block == 0 => salt = Some(text),
            Key::Tagged { tag: "cache_salt", value } if is_first && item.block == 0 => salt = Some(value),
            key => {
                extras.resize(start + blocks, None);
                let extra = &mut extras[start + item.block];
                let digest = combine(extra.map_or(0, NonZeroU64::get), key.digest());
                *extra = NonZeroU64::new(digest).or(Some(NonZeroU64::MIN));
            }
        }
    }
    salt
}

fn combine(before: u64, next: u64) -> u64 {
    xxh3_64_with_seed(&next.to_le_bytes(), before)
}

// === impl Entries ===

impl Entries {
    /// Whether there are any, one for each of `blocks`.
    pub(super) fn check(self, blocks: usize) -> Result<bool, Fault> {
        match self {
            Self::None => Ok(false),
            Self::Some(entries) if entries == blocks => Ok(true),
            Self::Some(_) | Self::Wrong => Err(Fault::ExtraKeys),
        }
    }
}

// === impl Key ===

impl Key<'_> {
    fn digest(self) -> u64 {
        match self {
            Self::Text(text) => xxh3_64_with_seed(text.as_bytes(), TEXT),
            Self::Tagged { tag, value } => {
                [tag, value].iter().fold(LIST, |before, text| combine(before, Key::Text(text).digest()))
            }
            Self::Digest(digest) => digest,
        }
    }
}

impl<'de> From<Scalar<'de>> for Key<'de> {
    fn from(value: Scalar<'de>) -> Self {
        Self::Digest(match value {
            Scalar::Text(text) => return Self::Text(text),
            Scalar::Bytes(bytes) => xxh3_64_with_seed(bytes, BYTES),
            Scalar::Int(value) => combine(INT, value),
            Scalar::Float(value) => combine(FLOAT, value.to_bits()),
            Scalar::Nil | Scalar::Other => OTHER,
        })
    }
}

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_u64<E>(self, value: u64) -> Result<Key<'de>, E> {
        Ok(Scalar::Int(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Key<'de>, E> {
        Ok(Scalar::Int(value.cast_unsigned()).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Key<'de>, E> {
        Ok(Scalar::Float(value).into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Key<'de>, E> {
        Ok(Key::Digest(combine(OTHER, u64::from(value))))
    }

    fn visit_unit<E>(self) -> Result<Key<'de>, E> {
        Ok(Scalar::Nil.into())
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
        Ok(Key::Text(text))
    }

    fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Key<'de>, E> {
        Ok(Scalar::Bytes(bytes).into())
    }

    // Extensions of msgpack: a number and bytes.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, extension: D) -> Result<Key<'de>, D::Error> {
        Key::deserialize(extension)
    }

    // The single bytes of an extension come this way.
    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Key<'de>, E> {
        Ok(Key::Digest(xxh3_64_with_seed(bytes, BYTES)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Key<'de>, A::Error> {
        let (mut digest, mut count, mut texts) = (LIST, 0, [None; 2]);
        while let Some(key) = seq.next_element::<Key<'de>>()? {
            digest = combine(digest, key.digest());
            if let (Some(place), Key::Text(text)) = (texts.get_mut(count), key) {
                *place = Some(text);
            }
            count += 1;
        }
        Ok(match texts {
            [Some(tag @ ("lora" | "cache_salt")), Some(value)] if count == 2 => Key::Tagged { tag, value },
            _ => Key::Digest(digest),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Key<'de>, A::Error> {
        let mut digest = MAP;
        while let Some((name, value)) = map.next_entry::<Key<'de>, Key<'de>>()? {
            digest = combine(combine(digest, name.digest()), value.digest());
        }
        Ok(Key::Digest(digest))
    }
}

// === impl ExtraKeys ===

impl<'de> DeserializeSeed<'de> for ExtraKeys<'_, 'de> {
    type Value = Entries;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entries, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ExtraKeys<'_, 'de> {
    type Value = Entries;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entries, A::Error> {
        let (mut block, mut are_lists) = (0, true);
        while let Some(is_list) = seq.next_element_seed(Entry { items: &mut *self.0, block })? {
            are_lists &= is_list;
            block += 1;
        }
        Ok(if are_lists { Entries::Some(block) } else { Entries::Wrong })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Entries::Wrong)
    }

    anything_else!(|_keys| Entries::Wrong, nil: Entries::None);
}

impl<'de> DeserializeSeed<'de> for Entry<'_, 'de> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_, 'de> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while let Some(key) = seq.next_element()? {
            self.items.push(Item { block: self.block, key });
            if self.items.len() > MAX_HASHES {
                return Err(serde::de::Error::custom("too many extra keys"));
            }
        }
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    anything_else!(|_entry| false, nil: true);
}
