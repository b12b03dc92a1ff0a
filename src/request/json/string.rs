//! JSON strings: written unescaped or in one spelling.

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
    escapes: Escapes,
}

/// How a string is spelled. As large as what stands beside it: a string is moved by words, and a word of which a single
/// byte was just written has to be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(usize)]
pub(super) enum Escapes {
    /// As it is.
    #[default]
    None,
    /// With escapes that have no other short form: `\n`, `\"`.
    Short,
    /// With characters that could be spelled in another way: `\u00e9`, `\/`.
    Variant,
}

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
pub(super) fn hex_unit(input: &[u8]) -> Option<u32> {
    let digits = input.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}
