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
