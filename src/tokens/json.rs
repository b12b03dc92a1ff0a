//! JSON as Python's `json` reads it, made into values for templates: members keep their order, the last of equal names
//! wins in the place of the first.
//!
//! A number that Python keeps whole and a double cannot is refused, since a template would print it otherwise.

use std::fmt;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::NotTokenized;

/// Whole numbers from here on may be rounded.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

struct Document(Value);

struct DocumentVisitor;

/// Reads one document.
///
/// # Errors
/// [`NotTokenized::Form`] if it is not JSON, nested deeper than 128 levels, or holds a number that is not kept whole.
pub(super) fn parse(text: &[u8]) -> Result<Value, NotTokenized> {
    match serde_json::from_slice::<Document>(text) {
        Ok(Document(value)) => Ok(value),
        Err(_) => Err(NotTokenized::Form("JSON")),
    }
}

/// Reads the value that a text begins with, and says how long it is, bytes.
///
/// # Errors
/// As [`parse`].
pub(super) fn parse_first(text: &[u8]) -> Result<(Value, usize), NotTokenized> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Document>();
    match values.next() {
        Some(Ok(Document(value))) => Ok((value, values.byte_offset())),
        Some(Err(_)) | None => Err(NotTokenized::Form("JSON")),
    }
}

/// The member of that name; none also for null.
pub(super) fn member(value: &Value, name: &str) -> Option<Value> {
    value.get_attr(name).ok().filter(|member| !member.is_undefined() && !member.is_none())
}

/// The elements of a list; none for anything else.
pub(super) fn list(value: &Value) -> Option<impl Iterator<Item = Value>> {
    (value.kind() == minijinja::value::ValueKind::Seq).then(|| value.try_iter().ok()).flatten()
}

/// The members of an object, in order.
pub(super) fn members(value: &Value) -> Option<Vec<(Value, Value)>> {
    value
        .as_object()
        .filter(|_| value.kind() == minijinja::value::ValueKind::Map)?
        .try_iter_pairs()
        .map(Iterator::collect)
}

/// An object of these members.
pub(super) fn object(members: impl IntoIterator<Item = (impl Into<Value>, Value)>) -> Value {
    Value::from_pairs(members.into_iter().map(|(name, value)| (name.into(), value)))
}

/// An object without members.
pub(super) fn empty() -> Value {
    Value::from_pairs::<_, Value, Value>([])
}

/// The object with one member set.
pub(super) fn with(value: &Value, name: &str, member: Value) -> Value {
    let members = members(value).unwrap_or_default();
    Value::from_pairs(members.into_iter().chain([(Value::from(name), member)]))
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // It may have been written as a whole number of more than 64 bits.
        if value.fract() == 0.0 && value.abs() >= EXACT_BELOW {
            return Err(E::custom("a number too large"));
        }
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(Document(element)) = access.next_element()? {
            elements.push(element);
        }
        Ok(Value::from(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members: Vec<(Value, Value)> = Vec::new();
        while let Some((Document(name), Document(value))) = access.next_entry()? {
            members.push((name, value));
        }
        Ok(Value::from_pairs(members))
    }
}
