//! Where a JSON string ends.

use super::events::is_short_escape;
use super::marks::{BLOCK_BYTES, marks, near, not_plain, special};
use super::passing::{Crowd, Gear, pass};
use super::string::{Escapes, hex_unit};

/// Why a string has no end: the byte's offset and the reason.
pub(super) type BadString = (usize, &'static str);

const UNTERMINATED: &str = "unterminated string";
const INVALID_UTF8: &str = "invalid UTF-8";

/// A string, as far as it was looked at.
struct Text<'a> {
    input: &'a [u8],
    at: usize,
    escapes: Escapes,
    /// From where on it was not checked whether what is not ASCII is UTF-8.
    unchecked: Option<usize>,
}

/// The offset of the quote that ends the string whose text starts at `start`, and how it is spelled.
#[inline]
pub(super) fn end_of(input: &[u8], start: usize, crowd: &mut Crowd) -> Result<(usize, Escapes), BadString> {
    // Most strings are names and roles.
    match near(input, start, not_plain) {
        Some(end) if input.get(end) == Some(&b'"') => Ok((end, Escapes::None)),
        _ => far_end_of(input, start, crowd),
    }
}

#[inline(never)]
fn far_end_of(input: &[u8], start: usize, crowd: &mut Crowd) -> Result<(usize, Escapes), BadString> {
    let mut text = Text { input, at: start, escapes: Escapes::None, unchecked: None };
    let end = text.stop(crowd).and_then(|stop| end_at(input, stop));
    *crowd = crowd.for_next();
    if let Some(from) = text.unchecked {
        // Of two faults the first is told.
        let (Ok(looked) | Err((looked, _))) = end;
        check_utf8(input, from, looked)?;
    }
    end.map(|end| (end, text.escapes))
}

// === impl Text ===

impl Text<'_> {
    /// The offset of the next quote or control character that does not belong to an escape.
    #[inline(always)]
    fn stop(&mut self, crowd: &mut Crowd) -> Result<usize, BadString> {
        loop {
            let gear = crowd.gear();
            if gear == Gear::Wide {
                self.unchecked.get_or_insert(self.at);
            }
            let passed = pass(self.input, self.at, crowd);
            self.at = passed.end;
            self.note(if passed.has_escapes { Escapes::Short } else { Escapes::None });
            if self.input.get(self.at) == Some(&b'"') {
                return Ok(self.at);
            }
            let marked = match gear {
                Gear::Wide => marks(self.input, self.at, special),
                Gear::Sparse | Gear::Dense => marks(self.input, self.at, not_plain),
            };
            if let Some(stop) = self.block(marked.ok_or((self.input.len(), UNTERMINATED))?)? {
                return Ok(stop);
            }
        }
    }

    /// Looks at what is marked of the block, one by one: the first that ends the string, or else the block is passed.
    fn block(&mut self, mut marked: u64) -> Result<Option<usize>, BadString> {
        let start = self.at;
        self.at = start + BLOCK_BYTES;
        while marked != 0 {
            let here = start + marked.trailing_zeros() as usize;
            let behind = match self.input.get(here) {
                Some(b'\\') => {
                    let (behind, escapes) = behind_escape(self.input, here)?;
                    self.note(escapes);
                    behind
                }
                Some(0x80..) => behind_character(self.input, here)?,
                _ => return Ok(Some(here)),
            };
            if behind - start >= BLOCK_BYTES {
                self.at = behind;
                break;
            }
            marked &= u64::MAX << (behind - start);
        }
        Ok(None)
    }

    fn note(&mut self, escapes: Escapes) {
        self.escapes = self.escapes.max(escapes);
    }
}

/// The stop at `at`, if a string can end there.
fn end_at(input: &[u8], at: usize) -> Result<usize, BadString> {
    if input.get(at) == Some(&b'"') { Ok(at) } else { Err((at, "control character in a string")) }
}

fn check_utf8(input: &[u8], start: usize, end: usize) -> Result<(), BadString> {
    let text = input.get(start..end).unwrap_or_default();
    if simdutf8::basic::from_utf8(text).is_ok() {
        return Ok(());
    }
    // It does not say where.
    std::str::from_utf8(text).map(drop).map_err(|error| (start + error.valid_up_to(), INVALID_UTF8))
}

/// The offset behind the escape at `at`, and its kind.
fn behind_escape(input: &[u8], at: usize) -> Result<(usize, Escapes), BadString> {
    match input.get(at + 1) {
        Some(&second) if is_short_escape(second) => Ok((at + 2, Escapes::Short)),
        Some(b'/') => Ok((at + 2, Escapes::Variant)),
        Some(b'u') if hex_unit(input.get(at..).unwrap_or_default()).is_some() => Ok((at + 6, Escapes::Variant)),
        Some(_) => Err((at, "invalid escape in a string")),
        None => Err((at + 1, UNTERMINATED)),
    }
}

/// The offset behind the character at `at`, which is not ASCII.
fn behind_character(input: &[u8], at: usize) -> Result<usize, BadString> {
    let bytes = match input.get(at) {
        Some(..0xE0) => 2,
        Some(0xE0..0xF0) => 3,
        _ => 4,
    };
    match input.get(at..at + bytes).map(std::str::from_utf8) {
        Some(Ok(_)) => Ok(at + bytes),
        _ => Err((at, INVALID_UTF8)),
    }
}
