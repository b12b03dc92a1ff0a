//! An event of which all fields are read, before anything is made of it.

use std::num::NonZeroU32;
use std::ops::Range;

use super::extra::Entries;
use super::scalar::Scalar;
use super::{Fault, Reader};
use crate::kv_events::{Event, Medium, Removed, Stored};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

/// The fields of an event so far. Lists go to the batch at once, and are cut off again if nothing comes of the event.
pub(super) struct Draft<'de> {
    pub(super) kind: Kind,
    pub(super) fault: Option<Fault>,
    pub(super) has_hashes: bool,
    pub(super) parent: Scalar<'de>,
    pub(super) block_size: Scalar<'de>,
    pub(super) lora_id: Scalar<'de>,
    pub(super) medium: Scalar<'de>,
    pub(super) lora_name: Scalar<'de>,
    pub(super) salt: Scalar<'de>,
    pub(super) extra_entries: Entries,
    pub(super) group: Scalar<'de>,
    pub(super) spec_kind: Scalar<'de>,
    first_hash: usize,
    first_token: usize,
    first_extra: usize,
}

/// What a stored event's fields come to.
struct Values<'de> {
    block_tokens: NonZeroU32,
    medium: Medium,
    group: u32,
    lora_name: Option<&'de str>,
    salt: Option<&'de str>,
}

// === impl Kind ===

impl Kind {
    pub(super) fn named(name: Scalar<'_>) -> Self {
        match name {
            Scalar::Text("BlockStored") => Self::Stored,
            Scalar::Text("BlockRemoved") => Self::Removed,
            Scalar::Text("AllBlocksCleared") => Self::Cleared,
            _ => Self::Unknown,
        }
    }
}

// === impl Draft ===

impl<'de> Draft<'de> {
    pub(super) fn new(reader: &mut Reader<'de, '_>) -> Self {
        reader.items.clear();
        Self {
            kind: Kind::Unknown,
            fault: None,
            has_hashes: false,
            parent: Scalar::Nil,
            block_size: Scalar::Nil,
            lora_id: Scalar::Nil,
            medium: Scalar::Nil,
            lora_name: Scalar::Nil,
            salt: Scalar::Nil,
            extra_entries: Entries::None,
            group: Scalar::Nil,
            spec_kind: Scalar::Nil,
            first_hash: reader.batch.hashes.len(),
            first_token: reader.batch.tokens.len(),
            first_extra: reader.batch.extras.len(),
        }
    }

    /// Adds the event to the batch, or counts it among those left out.
    pub(super) fn finish(self, reader: &mut Reader<'de, '_>) {
        let event = match self.kind {
            Kind::Stored => self.stored(reader),
            Kind::Removed => self.removed(reader),
            Kind::Cleared => Ok(Some(Event::Cleared)),
            Kind::Unknown => {
                reader.left_out.unknown += 1;
                Ok(None)
            }
        };
        let event = event.unwrap_or_else(|fault| {
            reader.left_out.broken += 1;
            reader.left_out.fault = Some(fault);
            // What was removed is not known, so nothing is any more.
            (self.kind == Kind::Removed).then_some(Event::Cleared)
        });
        if !matches!(event, Some(Event::Stored(_))) {
            reader.batch.tokens.truncate(self.first_token);
            reader.batch.extras.truncate(self.first_extra);
        }
        if !matches!(event, Some(Event::Stored(_) | Event::Removed(_))) {
            reader.batch.hashes.truncate(self.first_hash);
        }
        reader.batch.events.extend(event);
    }

    fn removed(&self, reader: &Reader<'de, '_>) -> Result<Option<Event>, Fault> {
        let hashes = self.hashes(reader)?;
        let medium = self.medium.medium().ok_or(Fault::Field)?;
        let group = self.group()?;
        Ok((!hashes.is_empty()).then_some(Event::Removed(Removed { hashes, medium, group })))
    }

    fn stored(&self, reader: &mut Reader<'de, '_>) -> Result<Option<Event>, Fault> {
        let hashes = self.hashes(reader)?;
        let tokens = self.first_token..reader.batch.tokens.len();
        if hashes.is_empty() && tokens.is_empty() {
            return Ok(None);
        }
        let parent = match self.parent {
            Scalar::Nil => None,
            name => Some(name.hash().ok_or(Fault::Hash)?),
        };
        let values = self.values(hashes.len(), tokens.len())?;
        let keys = self.extra_entries.check(hashes.len())?.then_some(&reader.items);
        let extras = &mut reader.batch.extras;
        let salt = keys
            .and_then(|items| super::extra::digest(items, values.lora_name, parent.is_none(), hashes.len(), extras));
        Ok(Some(Event::Stored(Stored {
            parent,
            block_tokens: values.block_tokens,
            medium: values.medium,
            adapter: self.adapter(values.lora_name, reader)?,
            salt: values.salt.or(salt).map(|salt| reader.names.salt(salt)),
            extras: self.first_extra..reader.batch.extras.len(),
            group: values.group,
            is_full_attention: self.is_full_attention()?,
            hashes,
            tokens,
        })))
    }

    fn values(&self, blocks: usize, tokens: usize) -> Result<Values<'de>, Fault> {
        let block_tokens = self.block_size.narrow().and_then(NonZeroU32::new).ok_or(Fault::BlockSize)?;
        if (block_tokens.get() as usize).checked_mul(blocks) != Some(tokens) {
            return Err(Fault::Tokens);
        }
        Ok(Values {
            block_tokens,
            medium: self.medium.medium().ok_or(Fault::Field)?,
            group: self.group()?,
            lora_name: self.lora_name.text().ok_or(Fault::Field)?,
            salt: self.salt.text().ok_or(Fault::Field)?,
        })
    }

    fn hashes(&self, reader: &Reader<'de, '_>) -> Result<Range<usize>, Fault> {
        match self.fault {
            Some(fault) => Err(fault),
            None if !self.has_hashes => Err(Fault::Hash),
            None => Ok(self.first_hash..reader.batch.hashes.len()),
        }
    }

    fn group(&self) -> Result<u32, Fault> {
        match self.group {
            Scalar::Nil => Ok(0),
            group => group.narrow().ok_or(Fault::Field),
        }
    }

    /// Releases before 0.14 of vLLM tell only the adapter's number.
    fn adapter(&self, name: Option<&str>, reader: &mut Reader<'de, '_>) -> Result<Option<std::sync::Arc<str>>, Fault> {
        match (name, self.lora_id) {
            (Some(name), _) => Ok(Some(reader.names.adapter(name))),
            (None, Scalar::Nil) => Ok(None),
            (None, Scalar::Int(id)) => Ok(Some(reader.names.adapter_by_id(id))),
            (None, _) => Err(Fault::Field),
        }
    }

    fn is_full_attention(&self) -> Result<bool, Fault> {
        let kind = self.spec_kind.text().ok_or(Fault::Field)?;
        Ok(kind.is_none_or(|kind| matches!(kind, "full_attention" | "mla" | "mla_attention")))
    }
}
