//! JSON strings: finding their end, and writing them unescaped or in one spelling.

use std::borrow::Cow;

use wide::i8x16;

use super::marks::{BLOCK_BYTES, PIECE_BYTES, marks, near, not_plain, special};
use crate::request::writer::Writer;

/// The bytes between a string's quotes, as they are spelled.
///
/// Escapes were checked when it was read. An escaped surrogate pair is one character; a lone surrogate (`\ud800`),
/// which Python's parser accepts, is given as its three bytes of generalised UTF-8 (WTF-8) so that different ones
/// stay different, and as U+FFFD where text is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawStr<'a> {
    raw: &'a [u8],
    escapes: Escapes,
}

/// How a string is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Escapes {
    /// As it is.
    #[default]
    None,
    /// With escapes that have no other short form: `\n`, `\"`.
    Short,
    /// With characters that could be spelled in another way: `\u00e9`, `\/`.
    Variant,
}

/// Why a string has no end: the byte's offset and the reason.
pub(super) type BadString = (usize, &'static str);

// === impl RawStr ===

impl<'a> RawStr<'a> {
    pub(super) const fn new(raw: &'a [u8], escapes: Escapes) -> Self {
        Self { raw, escapes }
    }

    /// A string without escapes.
    pub(crate) const fn plain(text: &'static str) -> RawStr<'static> {
        RawStr { raw: text.as_bytes(), escapes: Escapes::None }
    }

    /// The length as spelled, bytes.
    pub(crate) fn raw_len(&self) -> usize {
        self.raw.len()
    }

    /// Writes the string in the one spelling that all spellings of its text share: what JSON makes shorter than `\uXXXX`
    /// by an escape stays one, everything else is a character. It is how nearly all clients spell it, so nearly always the
    /// bytes of the body are passed on as they lie there.
    pub(crate) fn write(&self, out: &mut Writer<'_, impl FnMut(&[u8])>) {
        match self.escapes {
            Escapes::None | Escapes::Short => out.write(self.raw),
            Escapes::Variant => write_with(self.raw, out, variant_at, respell),
        }
    }

    /// The text in one piece; copied only if it has escapes.
    #[inline]
    pub(crate) fn bytes(&self) -> Cow<'a, [u8]> {
        match self.escapes {
            Escapes::None => Cow::Borrowed(self.raw),
            Escapes::Short | Escapes::Variant => Cow::Owned(self.unescaped()),
        }
    }

    #[cold]
    fn unescaped(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.raw.len());
        let mut sink = |piece: &[u8]| text.extend_from_slice(piece);
        let mut out = Writer::new(&mut sink);
        write_with(self.raw, &mut out, escape_at, unescape);
        out.finish();
        text
    }

    /// The text as a `str`; lone surrogates become U+FFFD.
    pub(crate) fn text(&self) -> Cow<'a, str> {
        match self.bytes() {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Cow::Owned(text),
                Err(error) => Cow::Owned(lossy(error.as_bytes())),
            },
        }
    }
}

/// One replacement character for each surrogate, where `from_utf8_lossy` would give three.
fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                text.push('\u{FFFD}');
                rest = invalid.get(3..).unwrap_or_default();
            }
        }
    }
    text
}

/// Writes `raw`; what `find` finds, which says where, is written as `rewrite` has it, which returns what follows.
fn write_with<'a, S: FnMut(&[u8])>(
    raw: &'a [u8],
    out: &mut Writer<'_, S>,
    find: impl Fn(&[u8]) -> Option<usize>,
    rewrite: impl Fn(&'a [u8], &mut Writer<'_, S>) -> &'a [u8],
) {
    let mut rest = raw;
    while !rest.is_empty() {
        let (clean, found) = rest.split_at(find(rest).unwrap_or(rest.len()));
        out.write(clean);
        rest = if found.is_empty() { found } else { rewrite(found, out) };
    }
}

/// Where the first escape is.
fn escape_at(raw: &[u8]) -> Option<usize> {
    memchr::memchr(b'\\', raw)
}

/// Where the first escape is that could be spelled in another way.
fn variant_at(raw: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += escape_at(raw.get(at..)?)?;
        match raw.get(at + 1) {
            Some(b'u' | b'/') => return Some(at),
            _ => at += 2,
        }
    }
}

/// Writes the character of the escape at the start of `input` and returns what follows it.
fn unescape<'a>(input: &'a [u8], out: &mut Writer<'_, impl FnMut(&[u8])>) -> &'a [u8] {
    let (code, rest) = escaped(input);
    write_code(code, out);
    rest
}

/// The same in the spelling of [`RawStr::write`].
fn respell<'a>(input: &'a [u8], out: &mut Writer<'_, impl FnMut(&[u8])>) -> &'a [u8] {
    let (code, rest) = escaped(input);
    let short = match code {
        0x08 => br"\b",
        0x09 => br"\t",
        0x0A => br"\n",
        0x0C => br"\f",
        0x0D => br"\r",
        0x22 => br#"\""#,
        0x5C => br"\\",
        _ => {
            write_code(code, out);
            return rest;
        }
    };
    out.write(short);
    rest
}

/// The code point, or lone surrogate, of the escape at the start of `input`, and what follows it.
fn escaped(input: &[u8]) -> (u32, &[u8]) {
    let character = match input.get(1) {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'r') => b'\r',
        Some(b'b') => 0x08,
        Some(b'f') => 0x0C,
        Some(b'u') => return escaped_unit(input),
        // A quote, a backslash or a slash; nothing else was let in.
        Some(itself) => *itself,
        None => return (0xFFFD, &[]),
    };
    (u32::from(character), input.get(2..).unwrap_or_default())
}

fn escaped_unit(input: &[u8]) -> (u32, &[u8]) {
    let unit = hex_unit(input).unwrap_or(0xFFFD);
    let rest = input.get(6..).unwrap_or_default();
    match (unit, hex_unit(rest)) {
        (0xD800..=0xDBFF, Some(low @ 0xDC00..=0xDFFF)) => {
            (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), rest.get(6..).unwrap_or_default())
        }
        _ => (unit, rest),
    }
}

fn write_code(code: u32, out: &mut Writer<'_, impl FnMut(&[u8])>) {
    match char::from_u32(code) {
        Some(character) => out.write(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.write(&[0xE0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3F) as u8, 0x80 | (code & 0x3F) as u8]),
    }
}

/// The number in `\uXXXX` at the start of `input`.
fn hex_unit(input: &[u8]) -> Option<u32> {
    let digits = input.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

/// The offset of the quote that ends the string whose text starts at `start`, and how it is spelled.
#[inline]
pub(super) fn end_of(input: &[u8], start: usize) -> Result<(usize, Escapes), BadString> {
    // Most strings are names and roles.
    match near(input, start, not_plain) {
        Some(end) if input.get(end) == Some(&b'"') => Ok((end, Escapes::None)),
        _ => far_end_of(input, start),
    }
}

#[inline(never)]
fn far_end_of(input: &[u8], start: usize) -> Result<(usize, Escapes), BadString> {
    let mut escapes = Escapes::None;
    let stop = stop_behind(input, start, not_plain, &mut escapes)?;
    if input.get(stop).is_some_and(u8::is_ascii) {
        return end_at(input, stop).map(|end| (end, escapes));
    }
    // Where there is one such character there are more, and to stop at each takes longer than to look at all in the end.
    let end = stop_behind(input, stop, special, &mut escapes).and_then(|stop| end_at(input, stop));
    // Of two faults the first is told.
    let (Ok(looked) | Err((looked, _))) = end;
    check_utf8(input, stop, looked)?;
    end.map(|end| (end, escapes))
}

/// The offset of the first byte from `at` on that is looked for and does not belong to an escape.
#[inline(always)]
fn stop_behind(
    input: &[u8],
    mut at: usize,
    search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16,
    escapes: &mut Escapes,
) -> Result<usize, BadString> {
    while at < input.len() {
        let (mut found, mut next) = (marks(input, at, &search), at + BLOCK_BYTES);
        while found != 0 {
            let here = at + found.trailing_zeros() as usize;
            let behind = match input.get(here) {
                Some(b'\\') if is_short(input, here) => {
                    *escapes = (*escapes).max(Escapes::Short);
                    here + 2
                }
                Some(b'\\') => {
                    let (behind, kind) = after_escape(input, here)?;
                    *escapes = (*escapes).max(kind);
                    behind
                }
                _ => return Ok(here),
            };
            if behind - at >= BLOCK_BYTES {
                next = behind;
                break;
            }
            found &= u64::MAX << (behind - at);
        }
        at = next;
    }
    Err((input.len(), "unterminated string"))
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
    std::str::from_utf8(text).map(drop).map_err(|error| (start + error.valid_up_to(), "invalid UTF-8"))
}

/// Whether the escape at `at` is one that most are. From a table: a jump by what it is would be foreseen wrongly each time.
#[inline(always)]
fn is_short(input: &[u8], at: usize) -> bool {
    input.get(at + 1).is_some_and(|&byte| IS_SHORT[usize::from(byte)])
}

static IS_SHORT: [bool; 256] = {
    let (mut is_short, mut at) = ([false; 256], 0);
    let all = br#""\bfnrt"#;
    while at < all.len() {
        is_short[all[at] as usize] = true;
        at += 1;
    }
    is_short
};

/// The offset behind the escape at `at`, which is none of those, and its kind.
#[inline(never)]
fn after_escape(input: &[u8], at: usize) -> Result<(usize, Escapes), BadString> {
    match input.get(at + 1) {
        Some(b'/') => Ok((at + 2, Escapes::Variant)),
        Some(b'u') if hex_unit(input.get(at..).unwrap_or_default()).is_some() => Ok((at + 6, Escapes::Variant)),
        Some(_) => Err((at, "invalid escape in a string")),
        None => Err((at + 1, "unterminated string")),
    }
}
