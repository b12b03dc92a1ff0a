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

    /// Takes note of what could not be crossed out so many bytes behind the last.
    #[inline(always)]
    pub(super) fn note_pass(&mut self, distance: usize) {
        self.0 += u8::from(distance < 8 * BLOCK_BYTES);
    }

    /// What the next string begins with; that it is like the last has to be seen once more.
    pub(super) fn for_next(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// Passes over what there is from `at` on, as far as it is text and events that are crossed out.
#[inline(never)]
pub(super) fn pass(input: &[u8], mut at: usize) -> Passed {
    let mut kinds = 0;
    while let Some(piece) = piece(input, at) {
        let (left, crossed_out) = cross_out(piece, of_busy_block(block(piece), not_plain));
        kinds |= crossed_out;
        if left == 0 {
            at += BLOCK_BYTES;
            continue;
        }
        let plain = left.trailing_zeros() as usize;
        at += plain;
        if plain <= MAX_START {
            break;
        }
    }
    Passed { end: at, has_escapes: kinds & ESCAPE != 0 }
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
pub(super) fn any_crowd() -> impl proptest::strategy::Strategy<Value = Crowd> {
    use proptest::strategy::Strategy;
    (0..=Crowd::CROWDED).prop_map(Crowd)
}
