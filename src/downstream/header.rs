//! Whether bytes are the header of an HTTP/1 request that every reader reads alike, and what body follows. Pure.
//!
//! Stricter than Pingora and than RFC 9112 asks for: whoever is in front of this proxy or behind it must not see other
//! requests than it does, so that what can be read in two ways is refused. Lines end with CR and LF and nothing else
//! holds either, no line is folded, no space is before a colon, a length is stated once and in digits, and not beside
//! chunks (sections 2.2, 5.1, 5.2, 6.1 and 6.3).

use std::ops::Range;

use super::fault::Fault;
use super::target;

/// Most fields; Pingora parses no more.
const MAX_FIELDS: usize = 256;

/// Longest request target, bytes; the limit of the `http` crate.
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

/// Longest method, bytes.
const MAX_METHOD_BYTES: usize = 32;

/// What no host's name and port has, but what servers take for the end of one, or for what is around it.
const NO_HOST: &[u8] = b" \t,/\\?#@";

/// Digits of a length that 64 bits hold in any case.
const MAX_LENGTH_DIGITS: usize = 18;

/// What follows a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Nothing,
    /// So many bytes; where the header says so.
    Sized(u64, Range<usize>),
    Chunked,
}

/// Looks for the end of a header in bytes that grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Search {
    /// Where the current line begins.
    line: usize,
    /// Bytes of it that have no line end.
    looked: usize,
    /// Lines before it.
    lines: usize,
}

/// A request line.
struct Line<'a> {
    method: &'a [u8],
    target: &'a [u8],
    /// Whether it is one of HTTP/1.0.
    is_old: bool,
}

#[derive(Debug, Default)]
struct Fields<'a> {
    count: usize,
    host: Option<&'a [u8]>,
    length: Option<(u64, Range<usize>)>,
    is_chunked: bool,
}

// === impl Search ===

impl Search {
    /// The length of the header that `bytes` begin with, if they hold all of it. They may have grown since the last call.
    ///
    /// # Errors
    /// What can be told to be wrong before the end.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        while let Some(at) = memchr::memchr(b'\n', &bytes[self.line + self.looked..]) {
            let end = self.line + self.looked + at;
            let Some(line) = bytes[self.line..end].strip_suffix(b"\r") else { return Err(self.broken_line()) };
            if line.is_empty() && self.lines > 0 {
                return Ok(Some(end + 1));
            }
            *self = Self { line: end + 1, looked: 0, lines: self.lines + 1 };
            if self.lines > MAX_FIELDS + 1 {
                return Err(Fault::ManyFields);
            }
        }
        self.looked = bytes.len() - self.line;
        match self.lines {
            0 => begins_request(bytes).map(|()| None),
            _ => Ok(None),
        }
    }

    fn broken_line(&self) -> Fault {
        if self.lines == 0 { Fault::NotHttp } else { Fault::Field }
    }
}

/// What makes a header longer than `most_bytes`, of which `bytes` are the beginning.
pub(super) fn too_large(bytes: &[u8], most_bytes: usize) -> Fault {
    let within = bytes.get(..most_bytes).unwrap_or(bytes);
    if memchr::memchr(b'\n', within).is_none() { Fault::LongTarget } else { Fault::LargeHeader }
}

/// Whether a request line can go on like this.
fn begins_request(bytes: &[u8]) -> Result<(), Fault> {
    let method = bytes.split(|&byte| byte == b' ').next().unwrap_or_default();
    let is_method = method.len() <= MAX_METHOD_BYTES && are_tokens(method);
    if is_method { Ok(()) } else { Err(Fault::NotHttp) }
}

/// The lines of a header, each with where it begins and without the CR and LF that end it. One that ends otherwise has its LF.
pub(super) fn lines(header: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    memchr::memchr_iter(b'\n', header).scan(0, |start, end| {
        let begin = std::mem::replace(start, end + 1);
        let line = &header[begin..=end];
        Some((begin, line.strip_suffix(b"\r\n").unwrap_or(line)))
    })
}

/// Looks at a whole header, its empty line included.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(header: &[u8]) -> Result<Body, Fault> {
    let mut lines = lines(header);
    let (_, line) = lines.next().unwrap_or_default();
    let line = request_line(line)?;
    let mut fields = Fields::default();
    for (begin, field) in lines.take_while(|(_, field)| !field.is_empty()) {
        fields.take(begin, field)?;
    }
    let host = fields.host;
    let body = fields.body(line.is_old)?;
    if target::is_good(line.method, line.target, host) { Ok(body) } else { Err(Fault::Target) }
}

fn request_line(line: &[u8]) -> Result<Line<'_>, Fault> {
    let mut words = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Fault::NotHttp);
    };
    let is_method = (1..=MAX_METHOD_BYTES).contains(&method.len()) && are_tokens(method);
    // Bytes above ASCII do not belong there either, but clients send them, and they are read in one way.
    let is_target = !target.is_empty() && target.iter().all(|&byte| byte > b' ' && byte != 0x7f);
    if !is_method || !is_target {
        return Err(Fault::NotHttp);
    }
    if target.len() > MAX_TARGET_BYTES {
        return Err(Fault::LongTarget);
    }
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" => Ok(Line { method, target, is_old: version == b"HTTP/1.0" }),
        _ => Err(Fault::NotHttp),
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// Looks at the line that begins at `begin`.
    fn take(&mut self, begin: usize, line: &'a [u8]) -> Result<(), Fault> {
        self.count += 1;
        if self.count > MAX_FIELDS {
            return Err(Fault::ManyFields);
        }
        let colon = memchr::memchr(b':', line).ok_or(Fault::Field)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !are_tokens(name) || !are_text(&line[colon + 1..]) {
            return Err(Fault::Field);
        }
        if name.eq_ignore_ascii_case(b"host") {
            // Whose it would be is read in two ways.
            if self.host.is_some() || value.iter().any(|byte| NO_HOST.contains(byte)) {
                return Err(Fault::Host);
            }
            self.host = Some(value);
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = length(value).filter(|_| self.length.is_none()).ok_or(Fault::Framing)?;
            let digits = begin + line.len() - line[colon + 1..].trim_ascii_start().len();
            self.length = Some((length, digits..digits + value.len()));
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Framing);
            }
            self.is_chunked = true;
        }
        Ok(())
    }

    fn body(self, is_old: bool) -> Result<Body, Fault> {
        if self.host.is_none() && !is_old {
            return Err(Fault::Host);
        }
        match (self.is_chunked, self.length) {
            (true, Some(_)) => Err(Fault::Framing),
            (true, None) if is_old => Err(Fault::Framing),
            (true, None) => Ok(Body::Chunked),
            (false, None | Some((0, _))) => Ok(Body::Nothing),
            (false, Some((length, digits))) => Ok(Body::Sized(length, digits)),
        }
    }
}

fn length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=MAX_LENGTH_DIGITS).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

/// Whether each byte may stand in a method or a field's name.
static IS_TOKEN: [bool; 256] = {
    let (mut is_token, mut byte) = ([false; 256], 0);
    while byte < 256 {
        is_token[byte] = matches!(
            byte as u8,
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~'
        );
        byte += 1;
    }
    is_token
};

/// Whether all of them may stand in a name. Without a branch for each: most names are good to their end.
fn are_tokens(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |are, &byte| are & IS_TOKEN[usize::from(byte)])
}

/// Whether all of them may stand in a value; many at a time, as a compiler makes it.
fn are_text(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |are, &byte| are & is_text(byte))
}

/// Whether it may stand in a value.
pub(super) fn is_text(byte: u8) -> bool {
    (byte == b'\t') | ((byte >= b' ') & (byte != 0x7f))
}

#[cfg(test)]
mod tests;
