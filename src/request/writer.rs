//! Small pieces in, large pieces out: collects what canonical bytes are made of, so that whoever hashes them is called
//! a few times for each kilobyte and not once for each escape, brace and key.

/// Bytes collected before they are passed on: some blocks' worth, and little to clear on the stack.
const BUFFER_BYTES: usize = 512;

/// Pieces of this length go straight on, uncopied.
const LONG_BYTES: usize = 128;

/// Writes to `sink` through a buffer. [`Writer::finish`] passes on the rest.
pub(crate) struct Writer<'s, S> {
    sink: &'s mut S,
    buffer: [u8; BUFFER_BYTES],
    len: usize,
}

// === impl Writer ===

impl<'s, S: FnMut(&[u8])> Writer<'s, S> {
    pub(super) fn new(sink: &'s mut S) -> Self {
        Self { sink, buffer: [0; BUFFER_BYTES], len: 0 }
    }

    #[inline]
    pub(super) fn byte(&mut self, byte: u8) {
        self.make_room(1);
        if let Some(place) = self.buffer.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if bytes.len() >= LONG_BYTES {
            self.flush();
            (self.sink)(bytes);
            return;
        }
        self.make_room(bytes.len());
        if let Some(place) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    /// Writes `text` up to its first backslash, and returns what is from there on.
    pub(super) fn write_to_backslash<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        // Escapes mostly come every few words, where a call of memchr costs more than it finds.
        self.make_room(LONG_BYTES);
        let (slots, _) = self.buffer.get_mut(self.len..).unwrap_or_default().as_chunks_mut::<8>();
        let (words, _) = text.as_chunks::<8>();
        let mut clean = 0;
        for (slot, word) in slots.iter_mut().zip(words).take(LONG_BYTES / 8) {
            *slot = *word;
            let in_word = bytes_before_backslash(*word);
            clean += in_word;
            if in_word < 8 {
                self.len += clean;
                return text.get(clean..).unwrap_or_default();
            }
        }
        self.len += clean;
        let rest = text.get(clean..).unwrap_or_default();
        let (clean, rest) = rest.split_at(memchr::memchr(b'\\', rest).unwrap_or(rest.len()));
        self.write(clean);
        rest
    }

    pub(super) fn finish(mut self) {
        self.flush();
    }

    #[inline]
    fn make_room(&mut self, len: usize) {
        if self.len + len > BUFFER_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let full = self.buffer.get(..self.len).unwrap_or_default();
        if !full.is_empty() {
            (self.sink)(full);
        }
        self.len = 0;
    }
}

/// How many bytes of `word` come before its first backslash; 8 if there is none.
#[inline]
fn bytes_before_backslash(word: [u8; 8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let word = u64::from_le_bytes(word) ^ (ONES * u64::from(b'\\'));
    // The lowest mark of a zero byte is exact; without one, 64 zeros are eight bytes.
    let marks = word.wrapping_sub(ONES) & !word & HIGHS;
    marks.trailing_zeros() as usize / 8
}
