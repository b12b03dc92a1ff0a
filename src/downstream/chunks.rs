//! What a chunked body holds, and whether its chunks are as they have to be (RFC 9112, section 7.1). Pure.

use bytes::BytesMut;

use super::fault::Fault;
use super::header::is_text;

/// Most hexadecimal digits of a size.
const MAX_DIGITS: u8 = 15;

/// Bytes of extensions and trailers that one body may have: nobody needs them, and they are not passed on.
const MAX_EXTRA_BYTES: usize = 16 * 1024;

/// Follows the chunks of one body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunks {
    at: At,
    /// Bytes of extensions and trailers so far.
    extra: usize,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// A digit of the size, or what ends it.
    Size {
        size: u64,
        digits: u8,
    },
    Extension {
        size: u64,
    },
    /// The LF behind a size.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    /// The CR or the LF behind a chunk.
    DataEnd {
        wants: u8,
    },
    /// A trailer, or the CR that ends the body.
    Trailers,
    Trailer,
    /// The LF behind a trailer.
    TrailerEnd,
    /// The LF that ends the body.
    Last,
}

// === impl Chunks ===

impl Chunks {
    /// At the start of a body.
    pub(super) fn new() -> Self {
        Self { at: At::Size { size: 0, digits: 0 }, extra: 0 }
    }

    /// Looks at the next bytes and appends what they hold to `data`; how many of them are the body's, if it ends among them.
    ///
    /// # Errors
    /// [`Fault::Chunk`].
    pub(super) fn scan(&mut self, bytes: &[u8], data: &mut BytesMut) -> Result<Option<usize>, Fault> {
        let mut place = 0;
        while let Some(&byte) = bytes.get(place) {
            if let At::Data { left } = self.at {
                let here = left.min((bytes.len() - place) as u64);
                // No more than there are, which fit.
                let end = place + here as usize;
                data.extend_from_slice(&bytes[place..end]);
                place = end;
                self.at = if here == left { At::DataEnd { wants: b'\r' } } else { At::Data { left: left - here } };
                continue;
            }
            place += 1;
            if self.at == At::Last && byte == b'\n' {
                return Ok(Some(place));
            }
            self.at = self.step(byte).ok_or(Fault::Chunk)?;
        }
        Ok(None)
    }

    fn step(&mut self, byte: u8) -> Option<At> {
        match (self.at, byte) {
            (At::Size { size, digits }, _) if byte.is_ascii_hexdigit() && digits < MAX_DIGITS => {
                let digit = char::from(byte).to_digit(16)?;
                Some(At::Size { size: size * 16 + u64::from(digit), digits: digits + 1 })
            }
            (At::Size { digits: 0, .. }, _) => None,
            (At::Size { size, .. }, b';') => Some(At::Extension { size }),
            (At::Size { size, .. } | At::Extension { size }, b'\r') => Some(At::SizeEnd { size }),
            (At::Extension { .. } | At::Trailer, _) if is_text(byte) => self.extra(),
            (At::SizeEnd { size: 0 }, b'\n') => Some(At::Trailers),
            (At::SizeEnd { size }, b'\n') => Some(At::Data { left: size }),
            (At::DataEnd { wants: b'\r' }, b'\r') => Some(At::DataEnd { wants: b'\n' }),
            (At::DataEnd { wants: b'\n' }, b'\n') => Some(At::Size { size: 0, digits: 0 }),
            (At::Trailers, b'\r') => Some(At::Last),
            // A folded line would be a part of the one before.
            (At::Trailers, _) if is_text(byte) && byte > b' ' => {
                self.at = At::Trailer;
                self.extra()
            }
            (At::Trailer, b'\r') => Some(At::TrailerEnd),
            (At::TrailerEnd, b'\n') => Some(At::Trailers),
            _ => None,
        }
    }

    /// One more byte of what nobody needs.
    fn extra(&mut self) -> Option<At> {
        self.extra += 1;
        (self.extra <= MAX_EXTRA_BYTES).then_some(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(body: &[u8]) -> Result<Option<usize>, Fault> {
        Chunks::new().scan(body, &mut BytesMut::new())
    }

    #[test]
    fn a_body_ends_behind_its_last_chunk_wherever_it_is_cut() {
        let bodies: [(&[u8], &[u8]); 4] = [
            (b"0\r\n\r\n", b""),
            (b"5\r\nhello\r\n000A;name=\"value\"\r\n0123456789\r\n0\r\n\r\n", b"hello0123456789"),
            (b"1\r\n\n\r\n0;x\r\nx-sum: 1\r\ny:\r\n\r\n", b"\n"),
            (b"3\r\n\r\n0\r\n0\r\n\r\n", b"\r\n0"),
        ];
        for (body, expected) in bodies {
            let more = [body, b"GET / HTTP/1.1\r\n"].concat();
            for cut in 0..body.len() {
                let (mut chunks, mut data) = (Chunks::new(), BytesMut::new());
                let shown = body.escape_ascii();
                assert_eq!(chunks.scan(&more[..cut], &mut data), Ok(None), "{shown} at {cut}");
                assert_eq!(chunks.scan(&more[cut..], &mut data), Ok(Some(body.len() - cut)), "{shown} at {cut}");
                assert_eq!(data, expected, "{shown} at {cut}");
            }
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        let bodies: [&[u8]; 16] = [
            b"\r\n",
            b";x\r\n",
            b" 5\r\n",
            b"5 \r\n",
            b"5\n",
            b"5\r\r",
            b"+5\r\n",
            b"-1\r\n",
            b"0x5\r\n",
            b"5_0\r\n",
            b"1000000000000000\r\n",
            b"1\r\nab\r\n",
            b"1\r\na\n",
            b"1;a\nb\r\n",
            b"0\r\n x: folded\r\n",
            b"0\r\nx: a\rb\r\n",
        ];
        for body in bodies {
            assert_eq!(whole(body), Err(Fault::Chunk), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded_over_the_whole_body() {
        let extension = [&b"1;"[..], &[b'x'; 1000], b"\r\na\r\n"].concat();
        assert_eq!(whole(&extension.repeat(16)), Ok(None));
        assert_eq!(whole(&extension.repeat(17)), Err(Fault::Chunk));
        let trailer = [&b"0\r\nx: "[..], &[b'x'; MAX_EXTRA_BYTES]].concat();
        assert_eq!(whole(&trailer), Err(Fault::Chunk));
    }
}
