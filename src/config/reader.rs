//! Takes a tree apart key by key, and notes every problem instead of stopping at the first.
//!
//! The schema is the code that calls this (`file`): a key is known because it was asked for. Whatever is left in a
//! section when its function returns is an unknown key. The same calls, made with nothing in the file, list the schema
//! ([`Reader::listing`]), so that no second list of keys exists that could be forgotten.

use super::problem::{Found, Position, Problem, masked, printable};
use super::tree::{Entry, Item, Node};
use super::values::{Kind, nearest};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

/// A key of the schema, such as `pools[].health.interval`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) path: String,
    /// What its value has to be, in the words of the problems.
    pub(super) right: String,
}

/// Where a value stands: its key for people, and its position.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) path: String,
    pub(super) position: Position,
}

/// What has been learned of the file so far.
#[derive(Default)]
pub(super) struct Reader {
    problems: Found,
    /// Values that may be given once only: (scope, value) and who has it first.
    claims: HashMap<(String, String), Place>,
    /// Whether problems show nothing of what the file says: it may be a secret in the wrong place.
    is_discreet: bool,
    /// Keys asked for; `None` unless the schema is being listed.
    listing: Option<Vec<Key>>,
}

/// A map of the file while its keys are being taken.
pub(super) struct Section<'r, 't> {
    reader: &'r mut Reader,
    place: Place,
    entries: &'t [Entry],
    known: Vec<&'static str>,
}

// === impl Reader ===

impl Reader {
    /// A reader for listing the schema.
    pub(super) fn listing() -> Self {
        Self { listing: Some(Vec::new()), ..Self::default() }
    }

    /// A reader whose problems show nothing of what the file says.
    pub(super) fn discreet() -> Self {
        Self { is_discreet: true, ..Self::default() }
    }

    /// What was found wrong, and the keys if they were being listed.
    pub(super) fn finish(self) -> (Found, Vec<Key>) {
        (self.problems, self.listing.unwrap_or_default())
    }

    /// Reads the whole file with `read`.
    pub(super) fn root<T>(&mut self, item: &Item, read: impl FnOnce(&mut Section<'_, '_>) -> T) -> Option<T> {
        let place = Place { path: String::new(), position: item.position };
        self.map(place, item, read)
    }

    fn problem(&mut self, place: &Place, found: Option<String>, right: impl Into<String>) {
        let Place { path, position } = place.clone();
        let found = found.filter(|_| !self.is_discreet);
        self.problems.add(|| Problem { position: Some(position), path, found, right: right.into() });
    }

    /// What `read` makes of a file, or a section, that says nothing.
    pub(super) fn nothing<T>(&mut self, read: impl FnOnce(&mut Section<'_, '_>) -> T) -> T {
        let place = Place { path: String::new(), position: Position { line: 1, column: 1 } };
        self.entries(place, &[], read)
    }

    fn value<T: 'static>(&mut self, place: &Place, item: &Item, kind: &Kind<T>) -> Option<T> {
        match kind.read(&item.node) {
            Ok(value) => Some(value),
            Err(why) => {
                let why = match why.as_str() {
                    "" => String::new(),
                    question if question.ends_with('?') => format!("{question} "),
                    reason => format!("{reason}; "),
                };
                self.problem(place, Some(item.node.describe()), format!("{why}expected {}", kind.right));
                None
            }
        }
    }

    fn map<T>(&mut self, place: Place, item: &Item, read: impl FnOnce(&mut Section<'_, '_>) -> T) -> Option<T> {
        let Node::Map(entries) = &item.node else {
            self.problem(&place, Some(item.node.describe()), "expected a section: lines of `key: value`");
            return None;
        };
        Some(self.entries(place, entries, read))
    }

    fn entries<T>(&mut self, place: Place, entries: &[Entry], read: impl FnOnce(&mut Section<'_, '_>) -> T) -> T {
        let mut section = Section { reader: self, place, entries, known: Vec::new() };
        let value = read(&mut section);
        section.close();
        value
    }
}

// === impl Section ===

impl<'t> Section<'_, 't> {
    /// The value of `key`, or `default` where the file does not give one or gives a wrong one.
    pub(super) fn value<T: 'static>(&mut self, key: &'static str, kind: Kind<T>, default: T) -> T {
        self.optional(key, kind).unwrap_or(default)
    }

    /// The value of `key` if the file gives it.
    pub(super) fn optional<T: 'static>(&mut self, key: &'static str, kind: Kind<T>) -> Option<T> {
        let item = self.take(key, &kind.right)?;
        let place = self.place_of(key);
        self.reader.value(&place, item, &kind)
    }

    /// The value of `key`, which has to be there.
    pub(super) fn required<T: 'static>(&mut self, key: &'static str, kind: Kind<T>) -> Option<T> {
        let Some(item) = self.take(key, &kind.right) else {
            self.missing(key, &kind.right);
            return None;
        };
        let place = self.place_of(key);
        self.reader.value(&place, item, &kind)
    }

    /// The section `key`; one that is not in the file is read as if it were there and empty.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl Fn(&mut Section<'_, '_>) -> T) -> T {
        let item = self.take(key, "a section");
        let place = self.place_of(key);
        let given = item.and_then(|item| self.reader.map(place.clone(), item, &read));
        given.unwrap_or_else(|| self.reader.entries(place, &[], read))
    }

    /// The section `key` if the file has it.
    pub(super) fn optional_section<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&mut Section<'_, '_>) -> Option<T>,
    ) -> Option<T> {
        let Some(item) = self.take(key, "a section") else {
            if self.reader.listing.is_some() {
                let place = self.place_of(key);
                self.reader.entries(place, &[], read);
            }
            return None;
        };
        let place = self.place_of(key);
        self.reader.map(place, item, read).flatten()
    }

    /// The sections of the list `key`, which has to be there with `least` to `most` of them, each like `example`. One
    /// that cannot be read is left out, its problems noted.
    pub(super) fn sections<T>(
        &mut self,
        key: &'static str,
        (least, most): (usize, usize),
        example: &str,
        mut read: impl FnMut(&mut Section<'_, '_>) -> Option<T>,
    ) -> Vec<T> {
        let right = format!("a list of {least} to {most} lines like `{example}`");
        let Some(item) = self.take(key, &right) else {
            self.missing(key, &right);
            if self.reader.listing.is_some() {
                let mut place = self.place_of(key);
                place.path.push_str("[]");
                self.reader.entries(place, &[], read);
            }
            return Vec::new();
        };
        let place = self.place_of(key);
        let items = self.items(&place, item, (least, most), &right);
        let mut section = |(place, item): (Place, &Item)| match &item.node {
            Node::Map(entries) => self.reader.entries(place, entries, &mut read),
            other => {
                self.reader.problem(&place, Some(other.describe()), format!("expected `{example}`"));
                None
            }
        };
        items.into_iter().filter_map(&mut section).collect()
    }

    /// The same for a list that may be left out.
    pub(super) fn optional_sections<T>(
        &mut self,
        key: &'static str,
        bounds: (usize, usize),
        example: &str,
        read: impl FnMut(&mut Section<'_, '_>) -> Option<T>,
    ) -> Vec<T> {
        if self.reader.listing.is_none() && !self.has(key) {
            self.known.push(key);
            return Vec::new();
        }
        self.sections(key, bounds, example, read)
    }

    /// The values of the list `key` with their places; `None` where the file does not give the list.
    pub(super) fn values<T: 'static>(
        &mut self,
        key: &'static str,
        most: usize,
        kind: Kind<T>,
    ) -> Option<Vec<(Place, T)>> {
        let right = format!("a list of at most {most}, each {}", kind.right);
        let item = self.take(key, &right)?;
        let place = self.place_of(key);
        let items = self.items(&place, item, (0, most), &right);
        let read = |(place, item): (Place, &Item)| Some((place.clone(), self.reader.value(&place, item, &kind)?));
        Some(items.into_iter().filter_map(read).collect())
    }

    /// Whether `value` stands nowhere else in the same `scope`; a problem at `place` if it does.
    pub(super) fn claim(&mut self, place: &Place, scope: &str, value: &str) -> bool {
        let first = self.first_holder(place, scope, value);
        if let Some(first) = &first {
            let found = format!("`{}`", printable(&masked(value)));
            let right = format!("already at {} on line {}; expected another", first.path, first.position.line);
            self.problem(place, Some(found), right);
        }
        first.is_none()
    }

    /// Who has `value` in the same `scope`, or `None`, which makes it the one at `place`.
    pub(super) fn first_holder(&mut self, place: &Place, scope: &str, value: &str) -> Option<Place> {
        match self.reader.claims.entry((scope.to_owned(), value.to_owned())) {
            Slot::Occupied(first) => Some(first.get().clone()),
            Slot::Vacant(free) => {
                free.insert(place.clone());
                None
            }
        }
    }

    /// Notes a problem.
    pub(super) fn problem(&mut self, place: &Place, found: Option<String>, right: impl Into<String>) {
        self.reader.problem(place, found, right);
    }

    /// Notes a problem with the value of `key`, be it the file's or the default.
    pub(super) fn reject(&mut self, key: &str, right: impl Into<String>) {
        let place = self.place_of(key);
        let given = self.entries.iter().find(|entry| is_named(entry, key));
        let found = given.map_or_else(|| "its default".to_owned(), |entry| entry.value.node.describe());
        self.reader.problem(&place, Some(found), right);
    }

    /// Where the value of `key` stands; the section's own position if the file does not give it.
    pub(super) fn place_of(&self, key: &str) -> Place {
        let position = self.entries.iter().find(|entry| is_named(entry, key)).map(|entry| entry.value.position);
        Place { path: joined(&self.place.path, key), position: position.unwrap_or(self.place.position) }
    }

    /// Whether the file gives `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| is_named(entry, key))
    }

    /// Whether the list `key` is not given or has nothing in it.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let given = self.entries.iter().find(|entry| is_named(entry, key));
        given.is_none_or(|entry| matches!(&entry.value.node, Node::List(items) if items.is_empty()))
    }

    /// This section's key, such as `pools[0]`.
    pub(super) fn path(&self) -> &str {
        &self.place.path
    }

    fn take(&mut self, key: &'static str, right: &str) -> Option<&'t Item> {
        self.known.push(key);
        if let Some(keys) = &mut self.reader.listing {
            keys.push(Key { path: joined(&self.place.path, key), right: right.to_owned() });
        }
        self.entries.iter().find(|entry| is_named(entry, key)).map(|entry| &entry.value)
    }

    fn missing(&mut self, key: &str, right: &str) {
        let place = self.place_of(key);
        self.reader.problem(&place, None, format!("missing; expected {right}"));
    }

    fn items<'i>(
        &mut self,
        place: &Place,
        item: &'i Item,
        (least, most): (usize, usize),
        right: &str,
    ) -> Vec<(Place, &'i Item)> {
        let items = match &item.node {
            Node::List(items) => items.as_slice(),
            _ => &[],
        };
        if !matches!(item.node, Node::List(_)) || !(least..=most).contains(&items.len()) {
            self.reader.problem(place, Some(item.node.describe()), format!("expected {right}"));
        }
        let place = |at: usize, item: &Item| Place { path: format!("{}[{at}]", place.path), position: item.position };
        items.iter().take(most).enumerate().map(|(at, item)| (place(at, item), item)).collect()
    }

    /// Notes the keys that were not asked for and those given twice.
    fn close(self) {
        let Self { reader, place, entries, known } = self;
        for (at, entry) in entries.iter().enumerate() {
            let position = Some(entry.key.position);
            let Node::Text(name) = &entry.key.node else {
                let path = place.path.clone();
                let right = "expected a word as the key".to_owned();
                let found = Some(entry.key.node.describe()).filter(|_| !reader.is_discreet);
                reader.problems.add(|| Problem { position, path, found, right });
                continue;
            };
            let is_shown = !reader.is_discreet || known.contains(&name.as_str());
            let path = || if is_shown { joined(&place.path, &printable(name)) } else { place.path.clone() };
            if !known.contains(&name.as_str()) {
                reader.problems.add(|| Problem { position, path: path(), found: None, right: unknown(name, &known) });
            } else if let Some(first) = entries[..at].iter().find(|entry| is_named(entry, name)) {
                let right = format!("given twice, first on line {}; keep one", first.key.position.line);
                reader.problems.add(|| Problem { position, path: path(), found: None, right });
            }
        }
    }
}

fn is_named(entry: &Entry, key: &str) -> bool {
    matches!(&entry.key.node, Node::Text(name) if name == key)
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn unknown(name: &str, known: &[&'static str]) -> String {
    if let Some(near) = nearest(name, known) {
        return format!("unknown key; did you mean `{near}`?");
    }
    let elsewhere = super::file::keys_named(name);
    if !elsewhere.is_empty() {
        return format!("unknown key here; it belongs at {}", elsewhere.join(" or "));
    }
    format!("unknown key; expected one of {}", known.join(", "))
}
