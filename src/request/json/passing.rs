//! Passing over a text by blocks, in one of three gears: what is quickest depends on how much there is to look at.

use wide::i8x16;

use super::events::{ESCAPE, Kinds, MAX_START, Piece, cross_out};
use super::marks::{BLOCK_BYTES, PIECE_BYTES, not_plain, of_block, of_busy_block, special};

/// How a text is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gear {
    /// Most blocks have nothing to look at, and a branch foresees it.
    Sparse,
    /// Nothing foresees which have, so each is taken to have some events.
    Dense,
    /// More is not ASCII than can be looked at piece by piece: it is passed over, to be checked as a whole.
    Wide,
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
    const WIDE: u8 = 12;

    pub(super) fn gear(self) -> Gear {
        match self.0 {
            ..Self::DENSE => Gear::Sparse,
            Self::DENSE..Self::WIDE => Gear::Dense,
            Self::WIDE.. => Gear::Wide,
        }
    }

    /// What the next string begins with; that it is like the last has to be seen once more.
    pub(super) fn for_next(self) -> Self {
        Self(self.0.min(Self::WIDE).saturating_sub(1))
    }
}

// === impl Passed ===

impl Passed {
    fn new(end: usize, kinds: Kinds) -> Self {
        Self { end, has_escapes: kinds & ESCAPE != 0 }
    }
}

/// Passes over what there is from `at` on, as far as it is text and events that are crossed out, or as long as the gear is right.
#[inline(always)]
pub(super) fn pass(input: &[u8], at: usize, crowd: &mut Crowd) -> Passed {
    match crowd.gear() {
        Gear::Sparse => pass_sparse(input, at, crowd),
        Gear::Dense => {
            let passed = pass_dense(input, at, not_plain);
            crowd.0 += u8::from(passed.end - at < 2 * BLOCK_BYTES);
            passed
        }
        Gear::Wide => pass_dense(input, at, special),
    }
}

#[inline(always)]
fn pass_sparse(input: &[u8], start: usize, crowd: &mut Crowd) -> Passed {
    /// Bytes within which it is soon that there is something to look at again.
    const SOON: usize = 4 * BLOCK_BYTES;
    let (mut at, mut last, mut kinds) = (start, start, 0);
    while let Some(piece) = piece(input, at) {
        let marked = of_block(block(piece), not_plain);
        if marked == 0 {
            at += BLOCK_BYTES;
            continue;
        }
        crowd.0 = if at - last < SOON { crowd.0 + 1 } else { crowd.0.saturating_sub(1) };
        last = at;
        let (left, crossed_out) = cross_out::<1>(piece, marked);
        kinds |= crossed_out;
        if left == 0 {
            at += BLOCK_BYTES;
        } else {
            let plain = left.trailing_zeros() as usize;
            at += plain;
            if plain <= MAX_START {
                break;
            }
        }
        if crowd.gear() != Gear::Sparse {
            break;
        }
    }
    Passed::new(at, kinds)
}

#[inline(always)]
fn pass_dense(input: &[u8], mut at: usize, search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> Passed {
    /// Events of a block that are crossed out. Few blocks of text, or of code in JSON, have more.
    const MAX_EVENTS: usize = 3;
    let mut kinds = 0;
    while let Some(piece) = piece(input, at) {
        let (left, crossed_out) = cross_out::<MAX_EVENTS>(piece, of_busy_block(block(piece), &search));
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
    Passed::new(at, kinds)
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
    (0..=Crowd::WIDE).prop_map(Crowd)
}
