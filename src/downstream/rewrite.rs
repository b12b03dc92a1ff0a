//! What is changed in the header of a response after Pingora has written it, byte by byte.
//!
//! Fields of our own are added here as well: as entries of Pingora's header each would cost several allocations.

use bytes::BytesMut;
use http::header::DATE;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;

use super::header::lines;

/// Room for the beginning of what follows.
const BEHIND_BYTES: usize = 512;

const LINE_END: &[u8] = b"\r\n";

/// What is added, mostly.
const USUAL_BYTES: usize = 192;

/// The changes to one header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rewrite {
    /// The line that takes the place of `Date`, between two line ends. None leaves Pingora's.
    date: Option<Vec<u8>>,
    /// Lines that are added, each with its end.
    more: Vec<u8>,
}

// === impl Rewrite ===

impl Rewrite {
    /// Keeps the `Date` that `header` came with, if it has one.
    pub(crate) fn of(header: &ResponseHeader) -> Self {
        let sent =
            header.case_header_iter().find(|(name, _)| name.as_slice().eq_ignore_ascii_case(DATE.as_str().as_bytes()));
        let date = sent.map(|(name, value)| [LINE_END, name.as_slice(), b": ", value.as_bytes(), LINE_END].concat());
        Self { date, more: Vec::new() }
    }

    /// Adds a field.
    ///
    /// # Errors
    /// The value is not [`is_line_text`].
    pub(crate) fn add(&mut self, name: &'static str, value: &str) -> Result<()> {
        if self.more.is_empty() {
            self.more.reserve(USUAL_BYTES);
        }
        if !is_line_text(value) {
            return Err(Error::explain(ErrorType::InvalidHTTPHeader, "a response header of our own"));
        }
        for part in [name.as_bytes(), b": ", value.as_bytes(), LINE_END] {
            self.more.extend_from_slice(part);
        }
        Ok(())
    }

    /// `header` with the changes; none where it is no whole header.
    pub(super) fn apply(&self, header: &[u8]) -> Option<BytesMut> {
        let fields = header.strip_suffix(LINE_END).filter(|fields| fields.ends_with(LINE_END))?;
        let mut changed = BytesMut::with_capacity(header.len() + self.bytes() + BEHIND_BYTES);
        match self.date.as_deref().zip(date_in(fields)) {
            Some((date, (start, end))) => {
                changed.extend_from_slice(&fields[..start]);
                changed.extend_from_slice(date);
                changed.extend_from_slice(&fields[end..]);
            }
            None => changed.extend_from_slice(fields),
        }
        changed.extend_from_slice(&self.more);
        changed.extend_from_slice(LINE_END);
        Some(changed)
    }

    fn bytes(&self) -> usize {
        self.more.len() + self.date.as_ref().map_or(0, Vec::len)
    }
}

/// Whether `text` can be the value of a field that is added: visible ASCII characters and spaces.
pub(crate) fn is_line_text(text: &str) -> bool {
    text.bytes().fold(true, |is, byte| is & matches!(byte, b' '..=b'~'))
}

/// Where the line of `Date` is among `fields`, the line ends on both sides included.
fn date_in(fields: &[u8]) -> Option<(usize, usize)> {
    const NAME: &[u8] = b"date:";
    let is_date = |line: &[u8]| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME));
    // The first line has the status.
    let (begin, line) = lines(fields).skip(1).find(|(_, line)| is_date(line))?;
    Some((begin - LINE_END.len(), begin + line.len() + LINE_END.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE_LINE: &[u8] = b"\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

    fn dated() -> Rewrite {
        Rewrite { date: Some(DATE_LINE.to_vec()), more: Vec::new() }
    }

    #[test]
    fn the_date_is_replaced_and_nothing_else() {
        let header = b"HTTP/1.1 200 OK\r\nx-date: 1\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n\r\n";
        let expected =
            b"HTTP/1.1 200 OK\r\nx-date: 1\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nserver: uvicorn\r\n\r\n";
        assert_eq!(dated().apply(header).unwrap(), &expected[..]);
        let last = dated().apply(b"HTTP/1.1 200 OK\r\nDATE:x\r\n\r\n").unwrap();
        assert_eq!(last, &b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"[..]);
    }

    #[test]
    fn fields_are_added_at_the_end_whether_there_is_a_date_or_not() {
        let mut rewrite = Rewrite::default();
        rewrite.add("x-a", "1/2").unwrap();
        rewrite.add("x-b", "b").unwrap();
        let header = b"HTTP/1.1 200 OK\r\nDate: now\r\n\r\n";
        assert_eq!(rewrite.apply(header).unwrap(), &b"HTTP/1.1 200 OK\r\nDate: now\r\nx-a: 1/2\r\nx-b: b\r\n\r\n"[..]);
        let bare = rewrite.apply(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        assert_eq!(bare, &b"HTTP/1.1 200 OK\r\nx-a: 1/2\r\nx-b: b\r\n\r\n"[..]);
    }

    #[test]
    fn a_value_cannot_end_its_line() {
        let mut rewrite = Rewrite::default();
        for value in ["a\r\nb: c", "a\n", "\0", "\u{e9}"] {
            rewrite.add("x-a", value).unwrap_err();
        }
        assert_eq!(rewrite, Rewrite::default(), "nothing is left of it");
    }

    #[test]
    fn what_is_no_whole_header_is_left_alone() {
        for bytes in [&b""[..], b"\r\n", b"HTTP/1.1 200 OK\r\ndate: cut", b"HTTP/1.1 200 OK\r\ndate: now\r\n"] {
            assert_eq!(dated().apply(bytes), None);
        }
    }
}
