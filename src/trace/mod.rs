//! Block traces: which requests came when, how long they were, and which prefixes they shared. No text.
//!
//! The form is that of the traces which the Mooncake project published with "Mooncake: Trading More Storage for Less
//! Computation" (FAST 2025): a JSON object a line. A prompt is the ids of its prefix blocks of [`BLOCK_TOKENS`] tokens; the
//! last id may stand for a block that is not full. Equal ids mean equal prefixes, and nothing else can be read from them.

mod ids;
mod problem;
mod read;
mod record;
mod rotation;

pub use ids::{MAX_INPUT_TOKENS, Salt};
pub use problem::{TraceError, TraceProblem};
pub use read::{read, read_file};
pub use record::Recorder;
pub use rotation::Target;

use serde::Serialize;

/// Tokens of a block that has an id.
pub const BLOCK_TOKENS: u32 = 512;

/// One request. The names are those of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TraceLine {
    /// When it came, in milliseconds since the start of the trace.
    pub timestamp: u64,
    /// Tokens of the prompt; at least 1.
    pub input_length: u32,
    /// Tokens of the answer; at least 1.
    pub output_length: u32,
    /// One id for each whole block of the prompt, and at most one more for the rest.
    pub hash_ids: Vec<u64>,
}
