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

/// Longest value that is put into canonical form, bytes: 20 times a large set of tools. Bounds the list of values.
const MAX_BYTES: usize = 1 << 20;

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
pub(super) fn write(json: &[u8], keep: Keep, sink: &mut impl FnMut(&[u8])) {
    let mut nodes = Vec::new();
    let listed = json.len() <= MAX_BYTES && list(&mut Scanner::of_value(json), &mut nodes, 0).is_ok();
    if listed {
        let strip_depth = if keep == Keep::WithoutCacheControl { 2 } else { 0 };
        write_node(&nodes, 0, strip_depth, sink);
    } else {
        sink(json);
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

fn write_node(nodes: &[Node<'_>], index: usize, strip_depth: usize, sink: &mut impl FnMut(&[u8])) {
    let Some(node) = nodes.get(index) else { return };
    match node.value {
        Value::Scalar(text) => sink(text),
        Value::String(text) => write_string(text, sink),
        Value::Array => {
            sink(b"[");
            let mut child = index + 1;
            while child < node.next {
                write_node(nodes, child, strip_depth.saturating_sub(1), sink);
                sink(b",");
                child = nodes.get(child).map_or(node.next, |child| child.next);
            }
            sink(b"]");
        }
        Value::Object => {
            sink(b"{");
            for (key, value) in members(nodes, index, node.next) {
                if strip_depth > 0 && key.bytes().as_ref() == b"cache_control" {
                    continue;
                }
                write_string(key, sink);
                // Only an object in the outermost array is stripped, not one in a stripped object.
                write_node(nodes, value, 0, sink);
            }
            sink(b"}");
        }
    }
}

fn write_string(text: RawStr<'_>, sink: &mut impl FnMut(&[u8])) {
    sink(b"\"");
    text.decode(sink);
    sink(&[END]);
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
