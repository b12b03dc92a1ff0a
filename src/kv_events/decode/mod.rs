//! Batches of KV events as engines send them: msgpack, every release's form, into one [`Batch`] that is used again.
//!
//! A batch is `[time, [event, ..], rank]`. An event is an array with its kind first, or a map with a `type` in any place;
//! fields that are not known are passed over, those that are missing have the value they had before there was such a field.
//! Nothing is trusted: what is kept is at most a constant times what was sent, whatever lengths are claimed.
//!
//! An event that cannot be understood does not take the others with it. Stored blocks are then left out, which claims too
//! little. Removed ones cannot be left out, since that would claim what is gone: everything is forgotten in their place.

mod draft;
mod event;
mod extra;
mod scalar;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::Batch;
use event::EventSeed;
use extra::Item;
use scalar::{Scalar, next_or};

/// Most events of a batch. A step of an engine makes one a request and a few for what it removes.
const MAX_EVENTS: usize = 1 << 17;

/// Most hashes of a batch, and most extra keys: all blocks of a large cache.
const MAX_HASHES: usize = 1 << 20;

/// Most token ids of a batch: several prompts of a million.
const MAX_TOKENS: usize = 1 << 22;

/// Deepest nesting: that of extra keys within an event is 6.
const MAX_DEPTH: usize = 16;

/// What is kept from batch to batch, so that names that come again and again are one allocation.
#[derive(Debug, Default)]
pub struct Decoder {
    adapter: Option<Arc<str>>,
    adapter_id: Option<(u64, Arc<str>)>,
    salt: Option<Arc<str>>,
}

/// What a decoded batch leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Events of a kind that is not known.
    pub unknown: u64,
    /// Events that are not as they should be.
    pub broken: u64,
    /// What is wrong with the last of these.
    pub fault: Option<Fault>,
}

/// What is wrong with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A block has no name, or one that is neither a whole number nor bytes.
    #[error("a block hash is neither a whole number nor bytes")]
    Hash,
    /// A token id is no number of 32 bits.
    #[error("a token id is not a whole number of 32 bits")]
    Token,
    /// The block size is zero or no number.
    #[error("the block size is not a whole number above zero")]
    BlockSize,
    /// There are not as many token ids as blocks have.
    #[error("the number of token ids is not that of the blocks times their size")]
    Tokens,
    /// There is not one entry of extra keys for each block.
    #[error("the extra keys are not one entry a block")]
    ExtraKeys,
    /// Another field has a value of the wrong type.
    #[error("a field has a value of the wrong type")]
    Field,
}

/// A payload that is no batch, or one beyond all bounds.
#[derive(Debug, thiserror::Error)]
#[error("the payload is not [time, events, rank] in msgpack, or exceeds the bounds of a batch")]
pub struct DecodeError(#[from] rmp_serde::decode::Error);

/// A batch while it is read.
struct Reader<'de, 'a> {
    batch: &'a mut Batch,
    names: &'a mut Decoder,
    items: Vec<Item<'de>>,
    left_out: LeftOut,
}

struct BatchSeed<'r, 'de, 'a>(&'r mut Reader<'de, 'a>);

struct EventsSeed<'r, 'de, 'a>(&'r mut Reader<'de, 'a>);

// === impl Decoder ===

impl Decoder {
    /// Reads a message's payload into `batch`, whose former content is dropped; says what it leaves out.
    ///
    /// # Errors
    /// [`DecodeError`]; the batch is empty then.
    pub fn decode(&mut self, payload: &[u8], batch: &mut Batch) -> Result<LeftOut, DecodeError> {
        batch.clear();
        let mut reader = Reader { batch, names: self, items: Vec::new(), left_out: LeftOut::default() };
        let mut msgpack = rmp_serde::Deserializer::from_read_ref(payload);
        msgpack.set_max_depth(MAX_DEPTH);
        match BatchSeed(&mut reader).deserialize(&mut msgpack) {
            Ok(()) => Ok(reader.left_out),
            Err(error) => {
                reader.batch.clear();
                Err(DecodeError(error))
            }
        }
    }

    fn adapter(&mut self, name: &str) -> Arc<str> {
        same_or_new(&mut self.adapter, name)
    }

    fn salt(&mut self, salt: &str) -> Arc<str> {
        same_or_new(&mut self.salt, salt)
    }

    /// The name of an adapter of which only the number is known.
    fn adapter_by_id(&mut self, id: u64) -> Arc<str> {
        match &self.adapter_id {
            Some((known, name)) if *known == id => Arc::clone(name),
            _ => {
                let name: Arc<str> = format!("id:{id}").into();
                self.adapter_id = Some((id, Arc::clone(&name)));
                name
            }
        }
    }
}

fn same_or_new(last: &mut Option<Arc<str>>, value: &str) -> Arc<str> {
    match last {
        Some(last) if **last == *value => Arc::clone(last),
        _ => Arc::clone(last.insert(value.into())),
    }
}

// === the batch ===

impl<'de> DeserializeSeed<'de> for BatchSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BatchSeed<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[time, events, rank]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let too_short = || serde::de::Error::invalid_length(0, &"[time, events, rank]");
        let time: Scalar<'_> = seq.next_element()?.ok_or_else(too_short)?;
        self.0.batch.timestamp = time.float().unwrap_or_default();
        seq.next_element_seed(EventsSeed(&mut *self.0))?.ok_or_else(too_short)?;
        self.0.batch.rank = next_or(&mut seq, Scalar::Nil)?.narrow();
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for EventsSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EventsSeed<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(EventSeed(&mut *self.0))?.is_some() {
            if self.0.batch.events.len() > MAX_EVENTS {
                return Err(serde::de::Error::custom("too many events"));
            }
        }
        Ok(())
    }
}
