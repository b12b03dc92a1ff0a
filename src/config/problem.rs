//! What is wrong with a configuration file: all of it at once, printed like a compiler's list.

use std::borrow::Cow;
use std::fmt;

/// Longest value quoted in a problem, in characters.
const MAX_QUOTED: usize = 80;
/// Most problems kept; whoever has more has another kind of file.
const MAX_LISTED: usize = 500;

/// Where something is written; both numbers start at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line of the file.
    pub line: u32,
    /// Column in characters.
    pub column: u32,
}

/// One thing to correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where; `None` when the file as a whole is meant.
    pub position: Option<Position>,
    /// The key, such as `pools[0].backends[1].url`; empty for the file as a whole.
    pub path: String,
    /// The value as found, secrets masked; `None` when no value is at fault.
    pub found: Option<String>,
    /// What is wrong and what would be right.
    pub right: String,
}

/// Everything that is wrong with one file, in the order of its lines. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    origin: String,
    list: Vec<Problem>,
    /// Problems beyond [`MAX_LISTED`], counted only.
    unlisted: usize,
    /// Those of a file that this one names.
    more: Option<Box<Problems>>,
}

/// Problems as they are found, of which no more than [`MAX_LISTED`] are kept.
#[derive(Debug, Default)]
pub(super) struct Found {
    list: Vec<Problem>,
    unlisted: usize,
}

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        if let Some(found) = &self.found {
            write!(f, "found {found}; ")?;
        }
        f.write_str(&self.right)
    }
}

// === impl Found ===

impl Found {
    /// Adds the problem that `make` makes, if there is room for it.
    pub(super) fn add(&mut self, make: impl FnOnce() -> Problem) {
        if self.list.len() < MAX_LISTED { self.list.push(make()) } else { self.unlisted += 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

// === impl Problems ===

impl Problems {
    pub(super) fn new(origin: &str, found: Found) -> Self {
        let Found { mut list, unlisted } = found;
        debug_assert!(!list.is_empty(), "problems are only made of problems");
        list.sort_by_key(|problem| problem.position);
        Self { origin: origin.to_owned(), list, unlisted, more: None }
    }

    /// The one problem of a file that says nothing readable.
    pub(super) fn one(origin: &str, problem: Problem) -> Self {
        Self { origin: origin.to_owned(), list: vec![problem], unlisted: 0, more: None }
    }

    /// A problem with the file itself rather than with what it says.
    pub(super) fn whole_file(origin: &str, right: String) -> Self {
        Self::one(origin, Problem { position: None, path: String::new(), found: None, right })
    }

    /// These and those of a file that this one names.
    pub(super) fn and(self, more: Self) -> Self {
        Self { more: Some(Box::new(more)), ..self }
    }

    /// The name of the file they are in.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Each problem of the file itself, in the order of its lines.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.list.iter()
    }
}

/// `FILE:LINE:COLUMN: KEY: what is wrong`, a line each, and their number at the end.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.list {
            match problem.position {
                Some(Position { line, column }) => writeln!(f, "{}:{line}:{column}: {problem}", self.origin)?,
                None => writeln!(f, "{}: {problem}", self.origin)?,
            }
        }
        write!(f, "{}: {}", self.origin, counted(self.list.len() + self.unlisted, "problem"))?;
        if self.unlisted > 0 {
            write!(f, ", the first {} listed", self.list.len())?;
        }
        self.more.as_ref().map_or(Ok(()), |more| write!(f, "\n{more}"))
    }
}

impl std::error::Error for Problems {}

/// `1 pool`, `2 pools`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The text with control characters escaped and its length bounded, so that a terminal or a log shows it on one line.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (at, character) in text.chars().enumerate() {
        if at == MAX_QUOTED {
            shown.push_str("...");
            break;
        }
        match character {
            '\u{2028}' | '\u{2029}' => shown.extend(character.escape_unicode()),
            control if control.is_control() => shown.extend(control.escape_debug()),
            _ => shown.push(character),
        }
    }
    shown
}

/// The text with the user information and query of a URL hidden: problems go to logs, and those may be secrets.
pub(super) fn masked(text: &str) -> Cow<'_, str> {
    let (scheme, rest) = text.split_at(text.find("://").map_or(0, |at| at + 3));
    // A password may hold any character, so everything up to the last `@` counts as one.
    let (user, host) = match rest.rsplit_once('@') {
        Some((user, host)) if !scheme.is_empty() || user.contains(':') => (Some(user), host),
        _ => (None, rest),
    };
    let front = host.split('?').next().unwrap_or_default();
    Cow::Owned(match user {
        None if scheme.is_empty() => return Cow::Borrowed(text),
        None if front == host => return Cow::Borrowed(text),
        None => format!("{scheme}{front}?***"),
        // The `@` may be the query's, and then even the host is.
        Some(user) if user.contains('?') => format!("{scheme}***"),
        Some(_) if front == host => format!("{scheme}***@{front}"),
        Some(_) => format!("{scheme}***@{front}?***"),
    })
}
