//! Counts HTTP/2 frames that cost the sender next to nothing and the receiver some work: a connection that sends many more
//! of them than its requests need is a flood. Pure.
//!
//! h2 bounds the memory that such frames take, and closes over streams that are reset before they are accepted; Pingora
//! accepts them at once, so that opening and resetting streams ("rapid reset", CVE-2023-44487) has no bound there, nor have
//! PING, SETTINGS, PRIORITY and empty DATA frames (CVE-2019-9512, -9513, -9515 and -9518).

use std::time::Duration;

use crate::time::Moment;

/// The bytes that a client begins with.
pub(super) const PREFACE_BYTES: usize = 24;

const HEADER_BYTES: usize = 9;

/// Kinds of frames, and a flag, by which a request's header is followed.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Such frames that may come at once, and how many more each second: clients of a busy gateway that all give up are fewer.
const BURST: u32 = 1000;
const PER_SECOND: u32 = 200;

/// Follows the frames of one connection.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes to pass over: the preface, then payloads.
    skip: usize,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that are there.
    have: usize,
    /// In the frames of a request's header: whether this is the last of them.
    in_header: Option<bool>,
    allowed: u32,
    /// Since when `allowed` has grown.
    since: Moment,
}

// === impl Frames ===

impl Frames {
    /// At the start of a connection.
    pub(super) fn new(now: Moment) -> Self {
        Self { skip: PREFACE_BYTES, header: [0; HEADER_BYTES], have: 0, in_header: None, allowed: BURST, since: now }
    }

    /// Looks at the next bytes; false if they are those of a flood.
    pub(super) fn take(&mut self, mut bytes: &[u8], now: Moment) -> bool {
        self.refill(now);
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let copied = (HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + copied].copy_from_slice(&bytes[..copied]);
            self.have += copied;
            bytes = &bytes[copied..];
            if self.have == HEADER_BYTES && !self.frame() {
                return false;
            }
        }
        true
    }

    /// Whether a request's header has begun and is not whole.
    pub(super) fn is_in_header(&self) -> bool {
        self.in_header.is_some_and(|is_last| !is_last || self.skip > 0)
    }

    fn frame(&mut self) -> bool {
        let [high, middle, low, kind, flags, ..] = self.header;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        (self.skip, self.have) = (length, 0);
        self.in_header = matches!(kind, HEADERS | CONTINUATION).then_some(flags & END_HEADERS != 0);
        if is_cheap(kind, flags, length) {
            let Some(left) = self.allowed.checked_sub(1) else { return false };
            self.allowed = left;
        }
        true
    }

    fn refill(&mut self, now: Moment) {
        let seconds = now.since(self.since).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.allowed = self.allowed.saturating_add(more).min(BURST);
            self.since = self.since + Duration::from_secs(seconds);
        }
    }
}

fn is_cheap(kind: u8, flags: u8, length: usize) -> bool {
    const END_STREAM: u8 = 1;
    match kind {
        // DATA
        0 => length == 0 && flags & END_STREAM == 0,
        // PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION, and what nobody knows
        2 | 3 | 4 | 6 | 7 | CONTINUATION.. => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![0, (length >> 8) as u8, length as u8, kind, flags, 0, 0, 0, 1];
        frame.resize(HEADER_BYTES + length, 0xff);
        frame
    }

    fn at(seconds: u64) -> Moment {
        Moment::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn requests_never_are_a_flood_and_resets_are_one_beyond_the_burst() {
        let mut frames = Frames::new(at(0));
        assert!(frames.take(&[b'x'; PREFACE_BYTES], at(0)));
        for _ in 0..10 * BURST {
            // HEADERS, DATA with content, DATA that ends a stream, WINDOW_UPDATE.
            let request = [frame(1, 4, 70), frame(0, 0, 300), frame(0, 1, 0), frame(8, 0, 4)].concat();
            assert!(frames.take(&request, at(0)));
        }
        for kind in [0, 2, 3, 4, 6, 7, 9, 10, 0xff] {
            let mut frames = Frames::new(at(0));
            assert!(frames.take(&[b'x'; PREFACE_BYTES], at(0)));
            assert!(frames.take(&frame(kind, 0, 0).repeat(BURST as usize), at(0)), "{kind}");
            assert!(!frames.take(&frame(kind, 0, 0), at(0)), "{kind}");
        }
    }

    #[test]
    fn a_header_is_whole_when_its_last_frame_is() {
        let mut frames = Frames::new(at(0));
        let mut take = |bytes: &[u8]| {
            assert!(frames.take(bytes, at(0)));
            frames.is_in_header()
        };
        assert!(!take(&[b'x'; PREFACE_BYTES]));
        let (whole, begun) = (frame(1, END_HEADERS, 70), frame(1, 0, 70));
        assert!(!take(&whole) && !take(&frame(0, 0, 300)));
        assert!(take(&whole[..HEADER_BYTES]) && take(&whole[HEADER_BYTES..70]));
        assert!(!take(&whole[70..]));
        assert!(take(&begun) && take(&frame(9, 0, 0)) && take(&frame(9, 0, 5)));
        assert!(!take(&frame(9, END_HEADERS, 0)));
    }

    #[test]
    fn the_allowance_comes_back_up_to_the_burst() {
        let mut frames = Frames::new(at(0));
        let resets = |count: u32| frame(3, 0, 4).repeat(count as usize);
        assert!(frames.take(&[&[b'x'; PREFACE_BYTES][..], &resets(BURST)].concat(), at(0)));
        assert!(frames.take(&resets(PER_SECOND), at(1)));
        assert!(frames.take(&resets(BURST), at(1000)));
        assert!(!frames.take(&resets(1), at(1000)));
    }

    #[test]
    fn where_the_bytes_are_cut_makes_no_difference() {
        let mut bytes = vec![b'x'; PREFACE_BYTES];
        for at in 0..BURST as usize {
            bytes.extend(frame((at % 10) as u8, (at % 3) as u8, at % 40));
        }
        let cut_at = |piece: usize| {
            let mut frames = Frames::new(at(0));
            bytes.chunks(piece).all(|chunk| frames.take(chunk, at(0))).then_some(frames.allowed)
        };
        assert!(cut_at(bytes.len()).is_some_and(|left| left < BURST));
        for piece in [1, 2, 7, 9, 10, 1000] {
            assert_eq!(cut_at(piece), cut_at(bytes.len()), "pieces of {piece}");
        }
    }
}
