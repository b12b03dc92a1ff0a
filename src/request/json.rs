//! A strict JSON pull scanner over a request body: one pass, nothing built, everything borrowed.
//!
//! Own code because this is the hot path: reading and hashing a body must cost less than a typed parse of it. A
//! library that builds values copies the prompt, and one that only skips must be followed by a second scan. A reader
//! asks for the members it knows and [`Scanner::skip`]s the rest, so each byte is looked at once, strings are unescaped
//! only on demand ([`RawStr::write`]), and no step recurses over input nesting.
//!
//! Grammar: RFC 8259 to the letter; strings are checked to be UTF-8, and nothing else can be more than ASCII. Python's extras (`NaN`, `Infinity`) are
//! refused. Two liberties, both taken by the engines' own parsers: a leading byte-order mark is passed over, and an
//! escaped lone surrogate is a character (see [`RawStr`]). Nesting beyond [`MAX_DEPTH`] is [`JsonError::TooDeep`],
//! which says nothing about validity.

mod ending;
mod events;
mod marks;
mod passing;
mod string;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use passing::Crowd;

pub(crate) use string::RawStr;

/// Nested arrays and objects that a skipped value may have. Engines' parsers give up at about 1,000; beyond this the
/// verdict is theirs. The bound keeps the nesting state of one scan under 13 KB.
pub(crate) const MAX_DEPTH: usize = 100_000;

/// Why a scan stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// The bytes are not JSON: what was wrong, and at which byte of the scanned input.
    NotJson { offset: usize, what: &'static str },
    /// Nested deeper than [`MAX_DEPTH`]; may be JSON.
    TooDeep,
}

/// What kind of value comes next, told by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    /// `true`, `false` or `null`.
    Literal,
}

/// A position in a JSON text. Each method reads one value and leaves the position behind it.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    input: &'a [u8],
    at: usize,
    /// What strings are taken to be like.
    crowd: Crowd,
}

/// Whether each open bracket is an object (1) or an array (0), innermost last.
struct Nesting {
    bits: SmallVec<[u64; 2]>,
    depth: usize,
}

type Scan<T> = Result<T, JsonError>;

// === impl Scanner ===

impl<'a> Scanner<'a> {
    /// Starts at the first byte of a whole document, after a byte-order mark.
    pub(crate) fn new(document: &'a [u8]) -> Self {
        let at = if document.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        Self { input: document, at, crowd: Crowd::default() }
    }

    /// Starts at a value that [`Scanner::skip`] returned.
    pub(crate) fn of_value(value: &'a [u8]) -> Self {
        Self { input: value, at: 0, crowd: Crowd::default() }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// What was read since `start`, an earlier [`Scanner::position`].
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        self.input.get(start..self.at).unwrap_or_default()
    }

    /// What was not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.input.get(self.at..).unwrap_or_default()
    }

    /// Passes over a value that was read by other means: the next `bytes` of [`Scanner::rest`].
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.at = self.input.len().min(self.at + bytes);
    }

    /// The kind of the value that comes next.
    pub(crate) fn peek(&mut self) -> Scan<Kind> {
        self.space();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f' | b'n') => Ok(Kind::Literal),
            _ => self.fail("expected a value"),
        }
    }

    /// Reads an object; `member` is given each key, in order, and must read exactly the value.
    pub(crate) fn object(&mut self, mut member: impl FnMut(RawStr<'a>, &mut Self) -> Scan<()>) -> Scan<()> {
        self.expect(b'{', "expected an object")?;
        if self.next_is(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            member(key, self)?;
            if self.next_is(b',') {
                continue;
            }
            return self.expect(b'}', "expected ',' or '}' after a member");
        }
    }

    /// Reads an array; `element` must read exactly one value each time.
    pub(crate) fn array(&mut self, mut element: impl FnMut(&mut Self) -> Scan<()>) -> Scan<()> {
        self.expect(b'[', "expected an array")?;
        if self.next_is(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if self.next_is(b',') {
                continue;
            }
            return self.expect(b']', "expected ',' or ']' after an element");
        }
    }

    /// Reads a string.
    pub(crate) fn string(&mut self) -> Scan<RawStr<'a>> {
        self.quoted("expected a string")
    }

    // Inlined, so that a string goes on in registers: most are short, and through memory it takes as long as to read it.
    #[inline(always)]
    fn quoted(&mut self, expected: &'static str) -> Scan<RawStr<'a>> {
        self.space();
        if self.byte() != Some(b'"') {
            return self.fail(expected);
        }
        let start = self.at + 1;
        match ending::end_of(self.input, start, &mut self.crowd) {
            Ok((end, escapes)) => {
                self.at = end + 1;
                work::add(self.at - start);
                Ok(RawStr::new(self.input.get(start..end).unwrap_or_default(), escapes))
            }
            Err((at, what)) => {
                self.at = at;
                self.fail(what)
            }
        }
    }

    /// Reads a string, or skips a value of another kind.
    pub(crate) fn string_or_skip(&mut self) -> Scan<Option<RawStr<'a>>> {
        if self.peek()? == Kind::String {
            return self.string().map(Some);
        }
        self.skip().map(|_| None)
    }

    /// Skips any value; true only for the literal `true`.
    pub(crate) fn is_true(&mut self) -> Scan<bool> {
        Ok(self.skip()? == b"true")
    }

    /// Skips any value; its number if it is an integer that fits.
    pub(crate) fn integer(&mut self) -> Scan<Option<u64>> {
        let value = self.skip()?;
        Ok(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()))
    }

    /// The same for an integer that may be below zero.
    pub(crate) fn signed_integer(&mut self) -> Scan<Option<i64>> {
        let value = self.skip()?;
        Ok(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()))
    }

    /// Reads a number; its value if it is an integer from 0 to `u32::MAX`. The quick way through a list of token ids.
    pub(crate) fn small_integer(&mut self) -> Scan<Option<u32>> {
        /// The digits of `u32::MAX`.
        const MAX_DIGITS: usize = 10;
        self.space();
        let rest = self.input.get(self.at..).unwrap_or_default();
        let digits = rest.iter().take(MAX_DIGITS).take_while(|byte| byte.is_ascii_digit());
        let (value, len) =
            digits.fold((0_u64, 0), |(value, len), digit| (value * 10 + u64::from(digit - b'0'), len + 1));
        let is_plain = len == 1 || len > 1 && rest.first() != Some(&b'0');
        if !is_plain || matches!(rest.get(len), Some(b'0'..=b'9' | b'.' | b'e' | b'E')) {
            return self.number().map(|_| None);
        }
        self.at += len;
        work::add(len);
        Ok(u32::try_from(value).ok())
    }

    /// Reads a number as it is spelled.
    pub(crate) fn number(&mut self) -> Scan<&'a [u8]> {
        self.space();
        let start = self.at;
        self.at += usize::from(self.byte() == Some(b'-'));
        match self.byte() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return self.fail("expected a digit"),
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            self.some_digits()?;
        }
        work::add(self.at - start);
        Ok(self.since(start))
    }

    /// Reads a value of any kind and returns its text, from its first byte to its last.
    pub(crate) fn skip(&mut self) -> Scan<&'a [u8]> {
        let mut nesting = Nesting::new();
        self.space();
        let start = self.at;
        loop {
            match self.peek()? {
                Kind::String => drop(self.string()?),
                Kind::Number => drop(self.number()?),
                Kind::Literal => self.literal()?,
                Kind::Object => {
                    self.at += 1;
                    if !self.next_is(b'}') {
                        nesting.open(true)?;
                        self.key()?;
                        continue;
                    }
                }
                Kind::Array => {
                    self.at += 1;
                    if !self.next_is(b']') {
                        nesting.open(false)?;
                        continue;
                    }
                }
            }
            if self.close(&mut nesting)? {
                return Ok(self.since(start));
            }
        }
    }

    /// Checks that nothing but white space follows.
    pub(crate) fn end(&mut self) -> Scan<()> {
        self.space();
        match self.byte() {
            None => Ok(()),
            Some(_) => self.fail("unexpected characters after the document"),
        }
    }

    /// After a value inside `nesting`: closes brackets until a comma (false) or until none is open (true).
    fn close(&mut self, nesting: &mut Nesting) -> Scan<bool> {
        while let Some(is_object) = nesting.innermost() {
            work::add(1);
            self.space();
            match self.byte() {
                Some(b',') => {
                    self.at += 1;
                    if is_object {
                        self.key()?;
                    }
                    return Ok(false);
                }
                Some(b'}') if is_object => nesting.close(),
                Some(b']') if !is_object => nesting.close(),
                _ if is_object => return self.fail("expected ',' or '}' after a member"),
                _ => return self.fail("expected ',' or ']' after an element"),
            }
            self.at += 1;
        }
        Ok(true)
    }

    #[inline(always)]
    fn key(&mut self) -> Scan<RawStr<'a>> {
        let key = self.quoted("expected a member name")?;
        self.expect(b':', "expected ':' after a member name")?;
        Ok(key)
    }

    fn literal(&mut self) -> Scan<()> {
        let rest = self.input.get(self.at..).unwrap_or_default();
        for literal in [b"true".as_slice(), b"false", b"null"] {
            if rest.starts_with(literal) {
                self.at += literal.len();
                return Ok(());
            }
        }
        self.fail("expected a value")
    }

    fn some_digits(&mut self) -> Scan<()> {
        if !matches!(self.byte(), Some(b'0'..=b'9')) {
            return self.fail("expected a digit");
        }
        self.digits();
        Ok(())
    }

    fn digits(&mut self) {
        while matches!(self.byte(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    /// Passes over `byte` if it is the next one after white space.
    fn next_is(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Scan<()> {
        work::add(1);
        if self.next_is(byte) { Ok(()) } else { self.fail(what) }
    }

    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
            work::add(1);
        }
    }

    fn byte(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    fn fail<T>(&self, what: &'static str) -> Scan<T> {
        let what = if self.at >= self.input.len() { "unexpected end" } else { what };
        Err(JsonError::NotJson { offset: self.at.min(self.input.len()), what })
    }
}

// === impl Nesting ===

impl Nesting {
    fn new() -> Self {
        Self { bits: SmallVec::new(), depth: 0 }
    }

    fn open(&mut self, is_object: bool) -> Scan<()> {
        if self.depth == MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        work::add(1);
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        if let Some(word) = self.bits.get_mut(word) {
            *word = *word & !(1 << bit) | u64::from(is_object) << bit;
        }
        self.depth += 1;
        Ok(())
    }

    fn innermost(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        self.bits.get(last / 64).map(|word| word >> (last % 64) & 1 == 1)
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}

/// Counts bytes looked at, in tests only, so that they can show that time is linear without a clock.
pub(crate) mod work {
    #[cfg(test)]
    thread_local! {
        pub(crate) static DONE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[inline(always)]
    pub(super) fn add(_bytes: usize) {
        #[cfg(test)]
        DONE.with(|done| done.set(done.get() + _bytes));
    }
}
