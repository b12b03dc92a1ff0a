//! JSON strings: finding their end, and unescaping them piece by piece.
//!
//! The end is found by looking for any of quote, backslash and control character at once: the first words by the
//! has-zero-byte trick (Mycroft 1987; "Bit Twiddling Hacks", determine if a word has a byte less than n), so that
//! short keys cost little, then 64-byte blocks in a form the compiler turns into vector instructions.

use std::borrow::Cow;

use crate::request::writer::Writer;

/// The bytes between a string's quotes, as they are spelled.
///
/// Escapes were checked when it was read. An escaped surrogate pair is one character; a lone surrogate (`\ud800`),
/// which Python's parser accepts, is given as its three bytes of generalised UTF-8 (WTF-8) so that different ones
/// stay different, and as U+FFFD where text is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawStr<'a> {
    raw: &'a [u8],
    has_escape: bool,
}

/// Why a string has no end: the byte's offset and the reason.
pub(super) type BadString = (usize, &'static str);

/// Bytes tried word by word before blocks are used. Longer than nearly every key.
const SHORT_BYTES: usize = 32;
const BLOCK_BYTES: usize = 64;

// === impl RawStr ===

impl<'a> RawStr<'a> {
    pub(crate) const fn new(raw: &'a [u8], has_escape: bool) -> Self {
        Self { raw, has_escape }
    }

    /// A string without escapes.
    pub(crate) const fn plain(text: &'static str) -> RawStr<'static> {
        RawStr { raw: text.as_bytes(), has_escape: false }
    }

    /// The length as spelled, bytes.
    pub(crate) fn raw_len(&self) -> usize {
        self.raw.len()
    }

    /// Writes the text, unescaped.
    pub(crate) fn decode(&self, out: &mut Writer<'_, impl FnMut(&[u8])>) {
        if !self.has_escape {
            return out.write(self.raw);
        }
        let mut rest = out.write_to_backslash(self.raw);
        while !rest.is_empty() {
            let behind = unescape(rest, out);
            rest = out.write_to_backslash(behind);
        }
    }

    /// The text in one piece; copied only if it has escapes.
    pub(crate) fn bytes(&self) -> Cow<'a, [u8]> {
        if !self.has_escape {
            return Cow::Borrowed(self.raw);
        }
        let mut text = Vec::with_capacity(self.raw.len());
        let mut sink = |piece: &[u8]| text.extend_from_slice(piece);
        let mut out = Writer::new(&mut sink);
        self.decode(&mut out);
        out.finish();
        Cow::Owned(text)
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

/// Writes the character of the escape at the start of `input` and returns what follows it.
fn unescape<'a>(input: &'a [u8], out: &mut Writer<'_, impl FnMut(&[u8])>) -> &'a [u8] {
    let character = match input.get(1) {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'r') => b'\r',
        Some(b'b') => 0x08,
        Some(b'f') => 0x0C,
        Some(b'u') => return unescape_unicode(input, out),
        // A quote, a backslash or a slash; nothing else was let in.
        Some(itself) => *itself,
        None => return &[],
    };
    out.byte(character);
    input.get(2..).unwrap_or_default()
}

fn unescape_unicode<'a>(input: &'a [u8], out: &mut Writer<'_, impl FnMut(&[u8])>) -> &'a [u8] {
    let unit = hex_unit(input).unwrap_or(0xFFFD);
    let rest = input.get(6..).unwrap_or_default();
    let (code, rest) = match (unit, hex_unit(rest)) {
        (0xD800..=0xDBFF, Some(low @ 0xDC00..=0xDFFF)) => {
            (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), rest.get(6..).unwrap_or_default())
        }
        _ => (unit, rest),
    };
    match char::from_u32(code) {
        Some(character) => out.write(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.write(&[0xE0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3F) as u8, 0x80 | (code & 0x3F) as u8]),
    }
    rest
}

/// The number in `\uXXXX` at the start of `input`.
fn hex_unit(input: &[u8]) -> Option<u32> {
    let digits = input.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}

/// The offset of the quote that ends the string whose text starts at `start`, and whether it has escapes.
pub(super) fn end_of(input: &[u8], start: usize) -> Result<(usize, bool), BadString> {
    let mut at = start;
    let mut has_escape = false;
    loop {
        at += clean_len(input.get(at..).unwrap_or_default());
        match input.get(at) {
            Some(b'"') => return Ok((at, has_escape)),
            Some(b'\\') => {
                has_escape = true;
                at = after_escape(input, at)?;
            }
            Some(_) => return Err((at, "control character in a string")),
            None => return Err((at, "unterminated string")),
        }
    }
}

fn after_escape(input: &[u8], at: usize) -> Result<usize, BadString> {
    match input.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') if hex_unit(input.get(at..).unwrap_or_default()).is_some() => Ok(at + 6),
        Some(_) => Err((at, "invalid escape in a string")),
        None => Err((at + 1, "unterminated string")),
    }
}

/// How many bytes from the start are none of quote, backslash and control character.
#[inline]
fn clean_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let marks = special_bytes(u64::from_le_bytes(*word));
        if marks != 0 {
            // A borrow can only mark bytes above a true one, so the lowest mark is exact.
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
        if at == SHORT_BYTES {
            at += clean_blocks_len(bytes.get(at..).unwrap_or_default());
        }
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\').unwrap_or(rest.len())
}

/// The high bit of each byte that is quote, backslash or control character.
#[inline]
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let below = |value: u64, limit: u64| value.wrapping_sub(ONES * limit) & !value;
    (below(word, 0x20) | below(quote, 1) | below(backslash, 1)) & HIGHS
}

fn clean_blocks_len(bytes: &[u8]) -> usize {
    let (blocks, _) = bytes.as_chunks::<BLOCK_BYTES>();
    blocks.iter().position(has_special).unwrap_or(blocks.len()) * BLOCK_BYTES
}

fn has_special(block: &[u8; BLOCK_BYTES]) -> bool {
    block.iter().fold(false, |found, &byte| found | (byte < 0x20) | (byte == b'"') | (byte == b'\\'))
}
