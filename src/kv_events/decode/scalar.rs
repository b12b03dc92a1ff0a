//! Single values, read without ever refusing one: a value of the wrong type makes its event faulty, not the batch.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use xxhash_rust::xxh3::xxh3_64;

use crate::kv_events::{EngineHash, Medium};

/// A value of any type; what it borrows is part of the payload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar<'de> {
    Nil,
    /// A whole number by its 64 bits; a negative one thus exceeds every bound.
    Int(u64),
    Float(f64),
    Text(&'de str),
    Bytes(&'de [u8]),
    /// Anything else. It was passed over.
    Other,
}

struct ScalarVisitor;

/// Gives each element of a list to a function, which may end it all; whether it is a list.
pub(super) struct List<F>(pub(super) F);

/// The methods of a visitor for what is no list and no map. They pass over it and give `$other`, or `$nil` for nothing.
macro_rules! anything_else {
    (|$this:ident| $other:expr, nil: $nil:expr) => {
        anything_else!(@ $this, $other, visit_bool(bool) visit_u64(u64) visit_i64(i64) visit_f64(f64));
        anything_else!(@ $this, $other, visit_str(&str) visit_bytes(&[u8]));
        anything_else!(@ $this, $nil, visit_unit());

        fn visit_newtype_struct<D: serde::Deserializer<'de>>(self, extension: D) -> Result<Self::Value, D::Error> {
            <serde::de::IgnoredAny as serde::Deserialize>::deserialize(extension)?;
            let $this = self;
            Ok($other)
        }
    };
    (@ $this:ident, $value:expr, $($method:ident($($kind:ty)?))*) => {
        $(
            fn $method<E>(self $(, _: $kind)?) -> Result<Self::Value, E> {
                let $this = self;
                Ok($value)
            }
        )*
    };
}
pub(super) use anything_else;

/// The next element of a sequence, `otherwise` after its end.
pub(super) fn next_or<'de, A: SeqAccess<'de>>(seq: &mut A, otherwise: Scalar<'de>) -> Result<Scalar<'de>, A::Error> {
    Ok(seq.next_element()?.unwrap_or(otherwise))
}

// === impl Scalar ===

impl<'de> Scalar<'de> {
    /// A whole number of 32 bits.
    pub(super) fn narrow(self) -> Option<u32> {
        match self {
            Self::Int(value) => u32::try_from(value).ok(),
            _ => None,
        }
    }

    pub(super) fn float(self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(value),
            #[expect(clippy::cast_precision_loss, reason = "a time in whole seconds")]
            Self::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// A block's name. Digests that fit are the number that they spell, most significant byte first.
    pub(super) fn hash(self) -> Option<EngineHash> {
        match self {
            Self::Int(value) => Some(EngineHash(value)),
            Self::Bytes([]) => None,
            Self::Bytes(bytes) if bytes.len() <= 8 => {
                Some(EngineHash(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))))
            }
            Self::Bytes(bytes) => Some(EngineHash(xxh3_64(bytes))),
            _ => None,
        }
    }

    /// A tier by the names that engines have for them. One that is not known is the slowest: the block is somewhere.
    pub(super) fn medium(self) -> Option<Medium> {
        match self {
            Self::Nil | Self::Text("GPU") => Some(Medium::Gpu),
            Self::Text("CPU" | "CPU_PINNED") => Some(Medium::Cpu),
            // DISK, STORAGE and EXTERNAL at present.
            Self::Text(_) => Some(Medium::Disk),
            _ => None,
        }
    }

    /// Text that may be missing; none is not the same as a value of the wrong type.
    pub(super) fn text(self) -> Option<Option<&'de str>> {
        match self {
            Self::Nil => Some(None),
            Self::Text(text) => Some(Some(text)),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Nil)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Other)
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Int(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Int(value.cast_unsigned()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E>(self, _: &str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Other)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Other)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Text(text))
    }

    fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Scalar<'de>, E> {
        Ok(Scalar::Bytes(bytes))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, extension: D) -> Result<Scalar<'de>, D::Error> {
        IgnoredAny::deserialize(extension)?;
        Ok(Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar<'de>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

// === impl List ===

impl<'de, F: FnMut(Scalar<'de>) -> Result<(), &'static str>> DeserializeSeed<'de> for List<F> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Scalar<'de>) -> Result<(), &'static str>> Visitor<'de> for List<F> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<bool, A::Error> {
        while let Some(element) = seq.next_element()? {
            (self.0)(element).map_err(serde::de::Error::custom)?;
        }
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    anything_else!(|_list| false, nil: false);
}
