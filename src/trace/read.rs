//! Reads a block trace: all of it, or the first thing that is wrong with it.
//!
//! Blank lines and unknown fields are skipped, as other traces have more; what is used is checked.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{BLOCK_TOKENS, TraceError, TraceLine, TraceProblem};

/// Longest line. A prompt of a million tokens takes about 40 KiB.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Most lines, blank ones included: a month of four requests a second.
const MAX_LINES: u64 = 10_000_000;

/// Most ids of all lines: 400 MB of them, or 25 thousand million tokens of prompts.
const MAX_IDS: usize = 50_000_000;

/// Latest timestamp: the last millisecond that a count of nanoseconds holds. Smaller units than milliseconds since 1970
/// are beyond it, and so are found out.
const MAX_TIMESTAMP: u64 = u64::MAX / 1_000_000;

/// Longest number quoted in an error.
const MAX_QUOTED: usize = 40;

const TIMESTAMP: &str = "whole milliseconds from 0 to 18446744073709";
const INPUT_LENGTH: &str = "a whole number of tokens from 1 to 4294967295";
const OUTPUT_LENGTH: &str = "a whole number of tokens from 0 to 4294967295";
const HASH_IDS: &str = "a list of whole numbers from 0 to 18446744073709551615, one for each 512 tokens of the prompt";

/// The fields as they stand in the line; each knows its place by where it is in memory.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow)]
    input_length: Option<&'a RawValue>,
    #[serde(borrow)]
    output_length: Option<&'a RawValue>,
    #[serde(borrow)]
    hash_ids: Option<&'a RawValue>,
}

/// A problem with the byte of the line where it is, if a byte is at fault.
type Fault = (Option<usize>, TraceProblem);

/// The requests of the trace in `file`, in the order of time.
///
/// # Errors
/// As [`read()`]; the error names the file.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<TraceLine>, TraceError> {
    let path = path.as_ref();
    let named = |error: TraceError| TraceError { file: Some(path.to_owned()), ..error };
    let file = File::open(path).map_err(|error| named(whole(error.into())))?;
    read(BufReader::new(file)).map_err(named)
}

/// The requests of a trace in the order of time; those of one millisecond stay in the order of the trace. An answer of no
/// tokens counts as one of one.
///
/// # Errors
/// The first line that is not as it should be, or a trace that has none, or too many lines (ten million) or ids (fifty
/// million), or cannot be read.
pub fn read(reader: impl BufRead) -> Result<Vec<TraceLine>, TraceError> {
    read_within(reader, MAX_IDS)
}

fn read_within(mut reader: impl BufRead, max_ids: usize) -> Result<Vec<TraceLine>, TraceError> {
    let (mut requests, mut bytes, mut ids) = (Vec::new(), Vec::new(), 0);
    for number in 1.. {
        if !next_line(&mut reader, &mut bytes).map_err(|error| on_line(number, None, error.into()))? {
            break;
        }
        if number > MAX_LINES {
            return Err(whole(TraceProblem::TooManyLines(MAX_LINES)));
        }
        let parsed =
            parse(&bytes).map_err(|(at, problem)| on_line(number, at.map(|at| column(&bytes, at)), problem))?;
        ids += parsed.as_ref().map_or(0, |request| request.hash_ids.len());
        if ids > max_ids {
            return Err(on_line(number, None, TraceProblem::TooManyIds(max_ids)));
        }
        requests.extend(parsed);
    }
    if requests.is_empty() {
        return Err(whole(TraceProblem::Empty));
    }
    requests.sort_by_key(|request: &TraceLine| request.timestamp);
    Ok(requests)
}

/// Reads a line, or as much of it as shows that it is too long. False at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    // One byte for the line's end, one to see that there is more.
    reader.by_ref().take(MAX_LINE_BYTES as u64 + 2).read_until(b'\n', line)?;
    Ok(!line.is_empty())
}

/// The request of a line; none if it is blank.
fn parse(bytes: &[u8]) -> Result<Option<TraceLine>, Fault> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.len() > MAX_LINE_BYTES {
        return Err((None, TraceProblem::LongLine(MAX_LINE_BYTES)));
    }
    let line = std::str::from_utf8(bytes).map_err(|error| (Some(error.valid_up_to()), TraceProblem::NotUtf8))?;
    let start = line.trim_start();
    if start.is_empty() {
        return Ok(None);
    }
    // A list would be taken for the fields in their order.
    if !start.starts_with('{') {
        return Err((Some(line.len() - start.len()), TraceProblem::NotAnObject(described(start))));
    }
    let fields: Fields<'_> = serde_json::from_str(line).map_err(|error| not_json(&error))?;
    request(line, &fields).map(Some)
}

fn request(line: &str, fields: &Fields<'_>) -> Result<TraceLine, Fault> {
    let timestamp = field(line, "timestamp", fields.timestamp, TIMESTAMP, |&millis: &u64| millis <= MAX_TIMESTAMP)?;
    let input_length = field(line, "input_length", fields.input_length, INPUT_LENGTH, |&tokens: &u32| tokens > 0)?;
    let output_length: u32 = field(line, "output_length", fields.output_length, OUTPUT_LENGTH, |_| true)?;
    let hash_ids: Vec<u64> = field(line, "hash_ids", fields.hash_ids, HASH_IDS, |_| true)?;
    let (whole, all) = (input_length / BLOCK_TOKENS, input_length.div_ceil(BLOCK_TOKENS));
    if !(whole as usize..=all as usize).contains(&hash_ids.len()) {
        let at = fields.hash_ids.map(|raw| place(line, raw));
        return Err((at, TraceProblem::IdCount { found: hash_ids.len(), input_length }));
    }
    Ok(TraceLine { timestamp, input_length, output_length: output_length.max(1), hash_ids })
}

/// The value of a field, which has to be `right`.
fn field<T: DeserializeOwned>(
    line: &str,
    name: &'static str,
    raw: Option<&RawValue>,
    right: &'static str,
    is_right: impl Fn(&T) -> bool,
) -> Result<T, Fault> {
    let raw = raw.ok_or((None, TraceProblem::Missing { field: name, right }))?;
    let wrong = |found: &str| TraceProblem::Wrong { field: name, found: described(found), right };
    match serde_json::from_str::<T>(raw.get()) {
        Ok(value) if is_right(&value) => Ok(value),
        Ok(_) => Err((Some(place(line, raw)), wrong(raw.get()))),
        Err(error) => {
            let (at, found) = culprit(raw.get(), error.column());
            Err((Some(place(line, raw) + at), wrong(found)))
        }
    }
}

/// The item of a list whose last byte, or the byte behind it, is at `column`; the value itself if it is no list.
fn culprit(raw: &str, column: usize) -> (usize, &str) {
    if !raw.starts_with('[') {
        return (0, raw);
    }
    let until = raw.floor_char_boundary(column.saturating_sub(1));
    let start = raw[..until].rfind([',', '[']).map_or(0, |at| at + 1);
    let item = raw[start..].trim_start();
    (raw.len() - item.len(), item.split([',', ']']).next().unwrap_or(item))
}

/// What a value is. Only numbers and words of JSON are quoted: text may be somebody's.
fn described(raw: &str) -> String {
    if let Some(word) = ["true", "false", "null"].iter().find(|word| raw.starts_with(**word)) {
        return format!("`{word}`");
    }
    match raw.as_bytes().first() {
        Some(b'[') => "a list".to_owned(),
        Some(b'{') => "an object".to_owned(),
        Some(b'-' | b'0'..=b'9') => number(raw),
        _ => "text".to_owned(),
    }
}

/// The number at the start of `raw`, or as much of it as is worth repeating.
fn number(raw: &str) -> String {
    let end = raw.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E')).unwrap_or(raw.len());
    if end > MAX_QUOTED { format!("`{}...`", &raw[..MAX_QUOTED]) } else { format!("`{}`", &raw[..end]) }
}

fn not_json(error: &serde_json::Error) -> Fault {
    let text = error.to_string();
    let what = text.strip_suffix(&format!(" at line {} column {}", error.line(), error.column())).unwrap_or(&text);
    (Some(error.column().saturating_sub(1)), TraceProblem::NotJson(what.to_owned()))
}

/// Where in `line` the value begins that was found in it.
fn place(line: &str, raw: &RawValue) -> usize {
    raw.get().as_ptr().addr() - line.as_ptr().addr()
}

/// The column, from 1, of the byte `at`.
fn column(line: &[u8], at: usize) -> usize {
    String::from_utf8_lossy(&line[..at.min(line.len())]).chars().count() + 1
}

fn whole(problem: TraceProblem) -> TraceError {
    TraceError { file: None, line: None, column: None, problem }
}

fn on_line(number: u64, column: Option<usize>, problem: TraceProblem) -> TraceError {
    TraceError { file: None, line: Some(number), column, problem }
}

#[cfg(test)]
mod tests;
