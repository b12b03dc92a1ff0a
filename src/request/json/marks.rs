//! Which bytes of a string a reader has to look at: one bit for each of a block, found for all at once.
//!
//! As in simdjson (Langdale and Lemire, "Parsing Gigabytes of JSON per Second", 2019), where the bits of a whole document are
//! found first; here a string's, block by block, so that nothing is kept.

use std::ops::BitOr;

use wide::{bytemuck, i8x16, u8x16};

pub(super) const BLOCK_BYTES: usize = 64;

/// Bytes compared at once.
pub(super) const PIECE_BYTES: usize = 16;

/// What was found in each piece of a block.
type Pieces = [i8x16; BLOCK_BYTES / PIECE_BYTES];

/// Quotes, backslashes and control characters: with its second bit turned over, a quote lies right behind the controls, and one
/// comparison is for all of them.
#[inline(always)]
pub(super) fn special(piece: &[u8; PIECE_BYTES]) -> i8x16 {
    let bytes = u8x16::new(*piece);
    let turned = bytes ^ u8x16::splat(2);
    bytemuck::cast(turned.min(u8x16::splat(0x20)).simd_eq(turned) | bytes.simd_eq(u8x16::splat(b'\\')))
}

/// The same and all that is not ASCII, which takes less: it is below zero.
#[inline(always)]
pub(super) fn not_plain(piece: &[u8; PIECE_BYTES]) -> i8x16 {
    let bytes: i8x16 = bytemuck::cast(*piece);
    (bytes ^ i8x16::splat(2)).simd_lt(i8x16::splat(0x21)) | bytes.simd_eq(i8x16::splat(b'\\' as i8))
}

/// Bit n is set where byte n of the block at `at` is one that is looked for. What is missing of it behind the end of `input` counts
/// as spaces; nothing where nothing is left.
#[inline(always)]
pub(super) fn marks(input: &[u8], at: usize, search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> Option<u64> {
    let rest = input.get(at..)?;
    if let Some(block) = rest.first_chunk() {
        return Some(of_block(block, search));
    }
    let mut block = [b' '; BLOCK_BYTES];
    block.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    (!rest.is_empty()).then(|| of_block(&block, search))
}

/// The first of the bytes from `at` on that is looked for; none if it is not in the first piece, or that is not whole.
#[inline(always)]
pub(super) fn near(input: &[u8], at: usize, search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> Option<usize> {
    let marks = search(input.get(at..)?.first_chunk()?).to_bitmask();
    (marks != 0).then(|| at + marks.trailing_zeros() as usize)
}

/// The marks of a whole block. Mostly there are none, and to learn that is less than to learn where.
#[inline(always)]
fn of_block(block: &[u8; BLOCK_BYTES], search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> u64 {
    let found = pieces(block, search);
    if found.into_iter().fold(i8x16::splat(0), BitOr::bitor).to_bitmask() == 0 { 0 } else { bits(found) }
}

/// The same where that is not foreseen.
#[inline(always)]
pub(super) fn of_busy_block(block: &[u8; BLOCK_BYTES], search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> u64 {
    bits(pieces(block, search))
}

#[inline(always)]
fn pieces(block: &[u8; BLOCK_BYTES], search: impl Fn(&[u8; PIECE_BYTES]) -> i8x16) -> Pieces {
    let (pieces, _) = block.as_chunks();
    std::array::from_fn(|nth| search(&pieces[nth]))
}

#[inline(always)]
fn bits(found: Pieces) -> u64 {
    let bits = found.into_iter().enumerate().map(|(nth, found)| u64::from(found.to_bitmask()) << (PIECE_BYTES * nth));
    bits.fold(0, BitOr::bitor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    fn is_special(byte: u8) -> bool {
        byte < 0x20 || byte == b'"' || byte == b'\\'
    }

    fn naive(block: &[u8], is_found: impl Fn(u8) -> bool) -> u64 {
        block.iter().enumerate().map(|(nth, byte)| u64::from(is_found(*byte)) << nth).sum()
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn every_byte_has_the_bit_that_is_its_own(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x1E..0x24_u8, 0x5A..0x5E_u8, 0x7E..0x82_u8], 0..100),
            at in 0..40_usize,
        ) {
            let block: Vec<u8> = bytes.iter().copied().skip(at).take(BLOCK_BYTES).collect();
            let (all_special, all_not_plain) = (naive(&block, is_special), naive(&block, |byte| is_special(byte) || !byte.is_ascii()));
            let is_left = at < bytes.len();
            prop_assert_eq!(marks(&bytes, at, special), is_left.then_some(all_special));
            prop_assert_eq!(marks(&bytes, at, not_plain), is_left.then_some(all_not_plain));
            let is_near = block.len() >= PIECE_BYTES && all_special.trailing_zeros() < PIECE_BYTES as u32;
            prop_assert_eq!(near(&bytes, at, special), is_near.then(|| at + all_special.trailing_zeros() as usize));
        }

        #[test]
        fn one_byte_is_found_wherever_it_is(byte in any::<u8>(), at in 0..BLOCK_BYTES) {
            let mut block = [b'~'; BLOCK_BYTES];
            block[at] = byte;
            prop_assert_eq!(marks(&block, 0, special), Some(u64::from(is_special(byte)) << at));
            prop_assert_eq!(marks(&block, 0, not_plain), Some(u64::from(is_special(byte) || !byte.is_ascii()) << at));
        }
    }
}
