//! YAML text as a tree in which every node knows its line and column.
//!
//! Serde stops at its first error; reading into this tree first lets the schema (`file`) report all of them. Repeated
//! keys stay in the tree for the same reason. Aliases and merge keys are already expanded; what the text can cost is
//! bounded, so that a few bytes cannot ask for gigabytes.

use super::problem::{Position, Problem, printable};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, MessageFormatter, Options, Spanned, UserMessageFormatter};
use std::fmt;

/// Largest text read, in bytes: 2,000 backends take about 100 KB.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 20;
/// Deepest nesting; the schema needs 5.
const MAX_DEPTH: usize = 24;
/// Most nodes, written out or repeated by aliases; 2,000 backends take about 8,000.
const MAX_NODES: usize = 100_000;
/// Most bytes of text that anchors and aliases may repeat.
const MAX_REPEATED_BYTES: usize = 4 << 20;
/// Most `*alias` uses; a file has a handful.
const MAX_ALIASES: usize = 1_000;

/// A node and where it is written. For an alias that is its anchor, where a mistake would be corrected.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) node: Node,
    pub(super) position: Position,
}

/// What stands at a place of the file.
#[derive(Debug)]
pub(super) enum Node {
    Empty,
    Flag(bool),
    Whole(i128),
    Real(f64),
    Text(String),
    List(Vec<Item>),
    Map(Vec<Entry>),
}

/// A key with its value. Keys may repeat, and may be anything.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Item,
    pub(super) value: Item,
}

/// Reads the text's one document. Fails with what is wrong with it as YAML; parsers know no more than the first such.
pub(super) fn read(text: &str) -> Result<Item, Problem> {
    if text.len() > MAX_TEXT_BYTES {
        let right = format!("longer than {MAX_TEXT_BYTES} bytes, the most that is read");
        return Err(Problem { position: None, path: String::new(), found: None, right });
    }
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| syntax(&error))
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_recorded_anchor_events: MAX_NODES,
            max_recorded_anchor_bytes: MAX_REPEATED_BYTES,
            max_total_scalar_bytes: MAX_REPEATED_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_NODES,
            max_replay_stack_depth: MAX_DEPTH,
        },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::PassThrough,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
        // `access_log: off` is a word here, as YAML 1.2 has it.
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn syntax(error: &serde_saphyr::Error) -> Problem {
    let what = UserMessageFormatter.format_message(error.without_snippet());
    Problem {
        position: error.location().and_then(known),
        path: String::new(),
        found: None,
        right: format!("not readable as YAML: {}", printable(&what)),
    }
}

fn known(location: Location) -> Option<Position> {
    let small = |number: u64| u32::try_from(number).ok().filter(|&number| number > 0);
    Some(Position { line: small(location.line())?, column: small(location.column())? })
}

// === impl Item, Node ===

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Node>::deserialize(deserializer)?;
        let position = known(spanned.defined).unwrap_or(Position { line: 1, column: 1 });
        Ok(Self { node: spanned.value, position })
    }
}

impl Node {
    /// What this is, for "found ...": scalars as written but for spelling, secrets masked.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Empty => "nothing".to_owned(),
            Self::Flag(flag) => format!("`{flag}`"),
            Self::Whole(number) => format!("`{number}`"),
            Self::Real(number) => format!("`{number:?}`"),
            Self::Text(text) => format!("`{}`", printable(&super::problem::masked(text))),
            Self::List(items) => format!("a list of {}", items.len()),
            Self::Map(entries) => format!("a section of {}", super::problem::counted(entries.len(), "key")),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Empty)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Whole(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Whole(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Node, E> {
        Ok(Node::Whole(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Node, E> {
        Ok(Node::Whole(i128::try_from(number).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Real(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            entries.push(Entry { key, value });
        }
        Ok(Node::Map(entries))
    }
}
