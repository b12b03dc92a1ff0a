//! How a text is passed over, and passing over one in which nothing is foreseen.

use super::events::{ESCAPE, MAX_START, Piece, cross_out};
use super::marks::{BLOCK_BYTES, not_plain, of_busy_block};

/// How a text is passed over; what is quickest depends on how much there is to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gear {
    /// Most blocks have nothing, and a branch foresees it.
    Sparse,
    /// Nothing foresees which have, so each is taken to have some events.
    Dense,
    /// Most have more than that, or other things.
    Crowded,
}

/// How much there is to look at, from what there was. A text's strings are alike, so that it goes on from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Crowd(u8);

/// What was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passed {
    /// The offset behind it. No event reaches over it.
    pub(super) end: usize,
    pub(super) has_escapes: bool,
}

// === impl Crowd ===

impl Crowd {
    /// Times that there was much to look at, less the times that there was little, from which on this is expected.
    const DENSE: u8 = 4;
    const CROWDED: u8 = 12;

    pub(super) fn gear(self) -> Gear {
        match self.0 {
            ..Self::DENSE => Gear::Sparse,
            Self::DENSE..Self::CROWDED => Gear::Dense,
            Self::CROWDED.. => Gear::Crowded,
        }
    }

    /// Takes note of an event so many bytes behind the last.
    #[inline(always)]
    pub(super) fn note_event(&mut self, distance: usize) {
        self.0 = if distance < 4 * BLOCK_BYTES { self.0 + 1 } else { self.0.saturating_sub(1) };
    }

    /// Takes note of what was passed over before something that could not be crossed out.
    #[inline(always)]
    pub(super) fn note_pass(&mut self, bytes: usize) {
        self.0 += u8::from(bytes < 8 * BLOCK_BYTES);
    }

    /// Takes note of the end of a string: what made it crowded has to be seen again, but only one without an escape leads back to
    /// where most blocks have nothing.
    pub(super) fn note_end(&mut self, has_escapes: bool) {
        let least = if has_escapes { Self::DENSE } else { 0 };
        self.0 = self.0.saturating_sub(1).max(self.0.min(least));
    }
}

/// Passes over what there is from `at` on, as far as it is text and events that are crossed out.
#[inline(never)]
pub(super) fn pass(input: &[u8], mut at: usize) -> Passed {
    let mut has_escapes = false;
    while let Some(piece) = piece(input, at) {
        let (left, kinds) = cross_out(piece, of_busy_block(block(piece), not_plain));
        if left == 0 {
            has_escapes |= kinds & ESCAPE != 0;
            at += BLOCK_BYTES;
            continue;
        }
        let plain = left.trailing_zeros() as usize;
        // What was crossed out behind that belongs to something else.
        has_escapes |= piece[..plain].contains(&b'\\');
        at += plain;
        if plain <= MAX_START {
            break;
        }
    }
    Passed { end: at, has_escapes }
}

#[inline(always)]
fn piece(input: &[u8], at: usize) -> Option<&Piece> {
    input.get(at..)?.first_chunk()
}

#[inline(always)]
fn block(piece: &Piece) -> &[u8; BLOCK_BYTES] {
    let [block @ .., _, _] = piece;
    block
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::json::ending::end_of;

    pub(in crate::request::json) fn any_crowd() -> impl Strategy<Value = Crowd> {
        (0..=Crowd::CROWDED).prop_map(Crowd)
    }

    /// The gear behind some strings of one text.
    fn behind(crowd: &mut Crowd, strings: usize, text: &str) -> Gear {
        for _ in 0..strings {
            end_of(format!("{text}\"").as_bytes(), 0, crowd).unwrap();
        }
        crowd.gear()
    }

    #[test]
    fn the_gear_follows_the_text() {
        let sentence = "Words enough for a block or two, as people write them, and then a line's end or a café.\\n";
        let (prose, plain, chinese) = (sentence.repeat(24), "no escape in any word ".repeat(100), "漢字".repeat(400));
        let mut crowd = Crowd::default();
        assert_eq!(behind(&mut crowd, 9, &plain), Gear::Sparse);
        assert_eq!(behind(&mut crowd, 1, &prose), Gear::Dense, "from a few events on");
        assert_eq!(behind(&mut crowd, 99, &prose), Gear::Dense);
        assert_eq!(behind(&mut crowd, 1, &plain), Gear::Sparse, "a string without any leads back");

        behind(&mut crowd, 1, &chinese);
        assert_eq!(crowd, Crowd(Crowd::CROWDED - 1), "it was crowded, and the next string is to show it again");
        assert_eq!(behind(&mut crowd, 20, &prose), Gear::Dense);
        assert_eq!(crowd, Crowd(Crowd::DENSE), "what made it crowded is forgotten");
    }
}
