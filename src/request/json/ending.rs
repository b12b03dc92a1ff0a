//! Where a JSON string ends.

use wide::i8x16;

use super::events::is_short_escape;
use super::marks::{BLOCK_BYTES, PIECE_BYTES, marks, near, not_plain, special};
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
    crowd.note_end(text.escapes != Escapes::None);
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
            let stop = match crowd.gear() {
                Gear::Sparse => self.stop_if_sparse(crowd)?,
                Gear::Dense => self.stop_if_dense(crowd)?,
                Gear::Crowded => return self.stop_in_crowd(),
            };
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
    }

    /// The same, as long as there is little before it.
    #[inline(always)]
    fn stop_if_sparse(&mut self, crowd: &mut Crowd) -> Result<Option<usize>, BadString> {
        let mut last = self.at;
        while crowd.gear() == Gear::Sparse {
            let marked = self.marked(not_plain)?;
            crowd.note_event(self.at - last);
            last = self.at;
            if let Some(stop) = self.block(marked)? {
                return Ok(Some(stop));
            }
        }
        Ok(None)
    }

    /// The same, as long as what there is before it are events that are crossed out.
    #[inline(always)]
    fn stop_if_dense(&mut self, crowd: &mut Crowd) -> Result<Option<usize>, BadString> {
        while crowd.gear() == Gear::Dense {
            let passed = pass(self.input, self.at);
            let distance = passed.end - self.at;
            self.at = passed.end;
            self.note(if passed.has_escapes { Escapes::Short } else { Escapes::None });
            if self.input.get(self.at) == Some(&b'"') {
                return Ok(Some(self.at));
            }
            crowd.note_pass(distance);
            if crowd.gear() == Gear::Dense {
                let marked = self.marked(not_plain)?;
                if let Some(stop) = self.block(marked)? {
                    return Ok(Some(stop));
                }
            }
        }
        Ok(None)
    }

    /// The same whatever there is. Where so much is not ASCII, to look at it as a whole in the end takes less than to stop at each.
    #[inline(always)]
    fn stop_in_crowd(&mut self) -> Result<usize, BadString> {
        self.unchecked = Some(self.at);
        loop {
            let marked = self.marked(special)?;
            if let Some(stop) = self.block(marked)? {
                return Ok(stop);
            }
        }
    }

    /// Passes over blocks without marks, and gives those of the first that has some.
    #[inline(always)]
    fn marked(&mut self, search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> Result<u64, BadString> {
        loop {
            match marks(self.input, self.at, &search) {
                Some(0) => self.at += BLOCK_BYTES,
                Some(marked) => return Ok(marked),
                None => return Err((self.input.len(), UNTERMINATED)),
            }
        }
    }

    /// Looks at what is marked of the block, one by one: the first that ends the string, or else the block is passed.
    #[inline(always)]
    fn block(&mut self, mut marked: u64) -> Result<Option<usize>, BadString> {
        let start = self.at;
        self.at = start + BLOCK_BYTES;
        while marked != 0 {
            let here = start + marked.trailing_zeros() as usize;
            let behind = match (self.input.get(here), self.input.get(here + 1)) {
                // From a table: a jump by what it is would be foreseen wrongly each time.
                (Some(b'\\'), Some(&second)) if is_short_escape(second) => {
                    self.note(Escapes::Short);
                    here + 2
                }
                (Some(b'\\'), _) => {
                    self.note(Escapes::Variant);
                    behind_rare_escape(self.input, here)?
                }
                (Some(0x80..), _) => behind_character(self.input, here)?,
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

/// The offset behind the escape at `at`, which is none of the short ones.
#[inline(never)]
fn behind_rare_escape(input: &[u8], at: usize) -> Result<usize, BadString> {
    match input.get(at + 1) {
        Some(b'/') => Ok(at + 2),
        Some(b'u') if hex_unit(input.get(at..).unwrap_or_default()).is_some() => Ok(at + 6),
        Some(_) => Err((at, "invalid escape in a string")),
        None => Err((at + 1, UNTERMINATED)),
    }
}

/// The offset behind the character at `at`, which is not ASCII.
#[inline(never)]
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
