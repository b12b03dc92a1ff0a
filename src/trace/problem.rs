//! What is wrong with a trace: one problem with its place. Values that may be somebody's text are not repeated.

use std::fmt;
use std::path::PathBuf;

use super::BLOCK_TOKENS;

/// A line as it should be.
pub(super) const EXAMPLE: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [7, 8]}"#;

/// Why a trace was not read, and where the reason stands.
#[derive(Debug)]
pub struct TraceError {
    /// The file, if it was read from one.
    pub file: Option<PathBuf>,
    /// The line, from 1; none if the trace as a whole is meant.
    pub line: Option<u64>,
    /// The character of the line, from 1; none if the line as a whole is meant.
    pub column: Option<usize>,
    /// What is wrong.
    pub problem: TraceProblem,
}

/// What can be wrong with a trace.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message is the documentation")]
pub enum TraceProblem {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("it has no requests; expected a line for each, such as {EXAMPLE}")]
    Empty,
    #[error("more than {0} lines, the most that is read; expected a shorter part of the trace")]
    TooManyLines(u64),
    #[error("more than {0} ids up to here, the most that is read; expected a shorter part of the trace")]
    TooManyIds(usize),
    #[error("longer than {0} bytes, the most that is read of a line; expected a JSON object that ends with its line")]
    LongLine(usize),
    #[error("not UTF-8 text; expected {EXAMPLE}")]
    NotUtf8,
    #[error("found {0}; expected an object on a line of its own, such as {EXAMPLE}")]
    NotAnObject(String),
    #[error("not JSON: {0}; expected an object such as {EXAMPLE}")]
    NotJson(String),
    #[error("{field}: missing; expected {right}")]
    Missing { field: &'static str, right: &'static str },
    #[error("{field}: found {found}; expected {right}")]
    Wrong { field: &'static str, found: String, right: &'static str },
    #[error(
        "hash_ids: found {found} for an input_length of {input_length}; expected {}: one for each {BLOCK_TOKENS} tokens",
        expected_ids(*.input_length)
    )]
    IdCount { found: usize, input_length: u32 },
}

// === impl TraceError ===

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}:", file.display())?,
            None => f.write_str("trace:")?,
        }
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if let Some(column) = self.column {
            write!(f, "{column}:")?;
        }
        write!(f, " {}", self.problem)
    }
}

/// Without a source: what the system said is in the message.
impl std::error::Error for TraceError {}

fn expected_ids(input_length: u32) -> String {
    let (whole, all) = (input_length / BLOCK_TOKENS, input_length.div_ceil(BLOCK_TOKENS));
    if whole == all { whole.to_string() } else { format!("{whole} or {all}") }
}
