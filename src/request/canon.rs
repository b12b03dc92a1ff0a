//! The canonical form of arbitrary JSON inside a prompt: tool definitions, call arguments, documents.
//!
//! Keys are sorted (of equal ones the last counts), white space is dropped and strings are unescaped, so that the
//! spelling does not matter; numbers stay as they are spelled. Each string is written as a quote, its text and
//! [`END`], a byte no text has, so that different values have different forms. Engines render objects in the order
//! they came, so two orders may be two prompts to them; a client that changes its mind between requests is the rarer
//! case than two client libraries that sort differently, and a wrong guess costs one prediction.
//!
//! One scan makes a flat list of values, which is then written in order. Values too large ([`MAX_BYTES`]) or too deep
//! ([`MAX_DEPTH`]) for that stand for themselves, byte by byte.

use smallvec::SmallVec;

use super::json::{JsonError, Kind, RawStr, Scanner};
use super::prompt::END;
use super::writer::Writer;

/// Longest value that is put into canonical form, bytes: five times a large set of tools. Bounds the list of values,
/// which takes up to 20 times as much for an array of single digits.
const MAX_BYTES: usize = 1 << 19;

/// Deepest value that is put into canonical form. Writing recurses this far at most.
const MAX_DEPTH: usize = 64;

/// What is written of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    All,
    /// Leaves out `cache_control` of the value itself or of the elements of the array that it is: a hint for billing
    /// that no template renders. Deeper it may be a tool's own parameter.
    WithoutCacheControl,
}

/// One value. Children follow their parent; `next` is the index behind the last of them.
struct Node<'a> {
    value: Value<'a>,
    next: usize,
}

enum Value<'a> {
    /// Members: a [`Value::String`] with the key, then the member's value.
    Object,
    Array,
    String(RawStr<'a>),
    /// A number or literal, as spelled.
    Scalar(&'a [u8]),
}

/// Writes the canonical form of `json`, a valid JSON value.
pub(super) fn write(json: &[u8], keep: Keep, out: &mut Writer<'_, impl FnMut(&[u8])>) {
    let mut nodes = Vec::new();
    let listed = json.len() <= MAX_BYTES && list(&mut Scanner::of_value(json), &mut nodes, 0).is_ok();
    if listed {
        let strip_depth = if keep == Keep::WithoutCacheControl { 2 } else { 0 };
        write_node(&nodes, 0, strip_depth, out);
    } else {
        out.write(json);
    }
}

fn list<'a>(scanner: &mut Scanner<'a>, nodes: &mut Vec<Node<'a>>, depth: usize) -> Result<(), JsonError> {
    if depth > MAX_DEPTH {
        return Err(JsonError::TooDeep);
    }
    let index = nodes.len();
    let value = match scanner.peek()? {
        Kind::String => Value::String(scanner.string()?),
        Kind::Number | Kind::Literal => Value::Scalar(scanner.skip()?),
        Kind::Array => {
            nodes.push(Node { value: Value::Array, next: index });
            scanner.array(|scanner| list(scanner, nodes, depth + 1))?;
            return end(nodes, index);
        }
        Kind::Object => {
            nodes.push(Node { value: Value::Object, next: index });
            scanner.object(|key, scanner| {
                let next = nodes.len() + 1;
                nodes.push(Node { value: Value::String(key), next });
                list(scanner, nodes, depth + 1)
            })?;
            return end(nodes, index);
        }
    };
    nodes.push(Node { value, next: index + 1 });
    Ok(())
}

fn end(nodes: &mut [Node<'_>], index: usize) -> Result<(), JsonError> {
    let next = nodes.len();
    if let Some(node) = nodes.get_mut(index) {
        node.next = next;
    }
    Ok(())
}

fn write_node(nodes: &[Node<'_>], index: usize, strip_depth: usize, out: &mut Writer<'_, impl FnMut(&[u8])>) {
    let Some(node) = nodes.get(index) else { return };
    match node.value {
        Value::Scalar(text) => out.write(text),
        Value::String(text) => write_string(text, out),
        Value::Array => {
            out.byte(b'[');
            let mut child = index + 1;
            while child < node.next {
                write_node(nodes, child, strip_depth.saturating_sub(1), out);
                out.byte(b',');
                child = nodes.get(child).map_or(node.next, |child| child.next);
            }
            out.byte(b']');
        }
        Value::Object => {
            out.byte(b'{');
            for (key, value) in members(nodes, index, node.next) {
                if strip_depth > 0 && key.bytes().as_ref() == b"cache_control" {
                    continue;
                }
                write_string(key, out);
                // Only an object in the outermost array is stripped, not one in a stripped object.
                write_node(nodes, value, 0, out);
            }
            out.byte(b'}');
        }
    }
}

fn write_string(text: RawStr<'_>, out: &mut Writer<'_, impl FnMut(&[u8])>) {
    out.byte(b'"');
    text.write(out);
    out.byte(END);
}

/// The members of the object at `index`, by key, the last of equal ones only: each key with its value's index.
fn members<'a>(nodes: &[Node<'a>], index: usize, end: usize) -> SmallVec<[(RawStr<'a>, usize); 8]> {
    let mut members = SmallVec::<[(RawStr<'a>, usize); 8]>::new();
    let mut at = index + 1;
    while at + 1 < end {
        let (Some(Node { value: Value::String(key), .. }), Some(value)) = (nodes.get(at), nodes.get(at + 1)) else {
            break;
        };
        members.push((*key, at + 1));
        at = value.next;
    }
    // Stable, so that of equal keys the last stands first among them once reversed.
    members.reverse();
    members.sort_by(|(left, _), (right, _)| left.bytes().cmp(&right.bytes()));
    members.dedup_by(|(later, _), (first, _)| later.bytes() == first.bytes());
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value as Json;

    fn canonical(json: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut sink = |piece: &[u8]| bytes.extend_from_slice(piece);
        let mut out = Writer::new(&mut sink);
        write(json.as_bytes(), Keep::All, &mut out);
        out.finish();
        bytes
    }

    fn any_json() -> impl Strategy<Value = Json> {
        let scalar = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            (0..3).prop_map(Json::from),
            "[ab\"\\\\,]{0,3}".prop_map(Json::from)
        ];
        scalar.prop_recursive(4, 16, 3, |inner| {
            let members = prop::collection::btree_map("[ab\"]{0,2}", inner.clone(), 0..3);
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(Json::from),
                members.prop_map(|members| Json::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn two_values_have_one_form_only_if_they_are_equal(left in any_json(), right in any_json()) {
            let pretty = serde_json::to_string_pretty(&left).unwrap();
            prop_assert_eq!(canonical(&left.to_string()), canonical(&pretty));
            prop_assert_eq!(canonical(&left.to_string()) == canonical(&right.to_string()), left == right);
        }
    }

    #[test]
    fn what_is_too_large_or_too_deep_stands_for_itself() {
        let deep = "[ ".repeat(MAX_DEPTH + 2) + &"]".repeat(MAX_DEPTH + 2);
        assert_eq!(canonical(&deep), deep.as_bytes());
        let shallow = "[ ".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        assert!(!canonical(&shallow).contains(&b' '));
        let large = format!("[ {}]", "1, ".repeat(MAX_BYTES / 3) + "1");
        assert_eq!(canonical(&large), large.as_bytes());
    }
}
