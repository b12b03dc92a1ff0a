//! One event, as an array with its kind first or as a map with a `type`.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::draft::{Draft, Kind};
use super::extra::ExtraKeys;
use super::scalar::{List, Scalar, anything_else};
use super::{Fault, MAX_HASHES, MAX_TOKENS, Reader};

/// What a field means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Kind,
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    SpecKind,
    Salt,
    Other,
}

/// The fields of an array after its kind; each release has added some at the end.
const STORED: [Field; 10] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::SpecKind,
];
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

pub(super) struct EventSeed<'r, 'de, 'a>(pub(super) &'r mut Reader<'de, 'a>);

struct FieldSeed<'s, 'de, 'a> {
    reader: &'s mut Reader<'de, 'a>,
    draft: &'s mut Draft<'de>,
    field: Field,
}

// === impl Field ===

impl Field {
    fn named(name: Scalar<'_>) -> Self {
        let Scalar::Text(name) = name else { return Self::Other };
        match name {
            "type" => Self::Kind,
            "block_hashes" => Self::Hashes,
            "parent_block_hash" => Self::Parent,
            "token_ids" => Self::Tokens,
            "block_size" => Self::BlockSize,
            "lora_id" => Self::LoraId,
            "medium" => Self::Medium,
            "lora_name" => Self::LoraName,
            "extra_keys" => Self::ExtraKeys,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::SpecKind,
            "cache_salt" => Self::Salt,
            _ => Self::Other,
        }
    }
}

// === impl EventSeed ===

impl<'de> DeserializeSeed<'de> for EventSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EventSeed<'_, 'de, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut draft = Draft::new(self.0);
        draft.kind = Kind::named(seq.next_element()?.unwrap_or(Scalar::Nil));
        let fields: &[Field] = match draft.kind {
            Kind::Stored => &STORED,
            Kind::Removed => &REMOVED,
            Kind::Cleared | Kind::Unknown => &[],
        };
        let mut fields = fields.iter();
        loop {
            let field = fields.next().copied().unwrap_or(Field::Other);
            let seed = FieldSeed { reader: &mut *self.0, draft: &mut draft, field };
            if seq.next_element_seed(seed)?.is_none() {
                break;
            }
        }
        draft.finish(self.0);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut draft = Draft::new(self.0);
        while let Some(name) = map.next_key()? {
            let field = Field::named(name);
            map.next_value_seed(FieldSeed { reader: &mut *self.0, draft: &mut draft, field })?;
        }
        draft.finish(self.0);
        Ok(())
    }

    anything_else!(|event| event.0.left_out.unknown += 1, nil: event.0.left_out.unknown += 1);
}

// === impl FieldSeed ===

impl<'de> DeserializeSeed<'de> for FieldSeed<'_, 'de, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self { reader, draft, field } = self;
        match field {
            Field::Kind => draft.kind = Kind::named(Scalar::deserialize(deserializer)?),
            Field::Hashes => draft.has_hashes = hashes(reader, draft, deserializer)?,
            Field::Tokens => tokens(reader, draft, deserializer)?,
            Field::ExtraKeys => draft.extra_entries = ExtraKeys(&mut reader.items).deserialize(deserializer)?,
            Field::Parent => draft.parent = Scalar::deserialize(deserializer)?,
            Field::BlockSize => draft.block_size = Scalar::deserialize(deserializer)?,
            Field::LoraId => draft.lora_id = Scalar::deserialize(deserializer)?,
            Field::Medium => draft.medium = Scalar::deserialize(deserializer)?,
            Field::LoraName => draft.lora_name = Scalar::deserialize(deserializer)?,
            Field::Group => draft.group = Scalar::deserialize(deserializer)?,
            Field::SpecKind => draft.spec_kind = Scalar::deserialize(deserializer)?,
            Field::Salt => draft.salt = Scalar::deserialize(deserializer)?,
            Field::Other => drop(IgnoredAny::deserialize(deserializer)?),
        }
        Ok(())
    }
}

fn hashes<'de, D: Deserializer<'de>>(
    reader: &mut Reader<'_, '_>,
    draft: &mut Draft<'_>,
    deserializer: D,
) -> Result<bool, D::Error> {
    let hashes = &mut reader.batch.hashes;
    List(|value: Scalar<'de>| {
        match value.hash() {
            Some(hash) => hashes.push(hash),
            None => draft.fault = Some(Fault::Hash),
        }
        if hashes.len() > MAX_HASHES { Err("too many block hashes") } else { Ok(()) }
    })
    .deserialize(deserializer)
}

fn tokens<'de, D: Deserializer<'de>>(
    reader: &mut Reader<'_, '_>,
    draft: &mut Draft<'_>,
    deserializer: D,
) -> Result<(), D::Error> {
    let tokens = &mut reader.batch.tokens;
    let is_list = List(|value: Scalar<'de>| {
        match value.narrow() {
            Some(token) => tokens.push(token),
            None => draft.fault = Some(Fault::Token),
        }
        if tokens.len() > MAX_TOKENS { Err("too many token ids") } else { Ok(()) }
    })
    .deserialize(deserializer)?;
    if !is_list {
        draft.fault = Some(Fault::Token);
    }
    Ok(())
}
