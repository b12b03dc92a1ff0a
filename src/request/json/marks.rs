//! Which bytes of a block a reader of strings has to look at: one bit for each, found for all at once.
//!
//! As in simdjson (Langdale and Lemire, "Parsing Gigabytes of JSON per Second", 2019), where the bits of a whole document are
//! found first; here a string's, block by block, so that nothing is kept.

use wide::u8x16;

pub(super) const BLOCK_BYTES: usize = 64;

/// What is in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    /// Bit n is set where byte n is a quote, a backslash or a control character.
    pub(super) special: u64,
    /// Whether all bytes are ASCII.
    pub(super) is_ascii: bool,
}

/// What is in the block of `input` that starts at `at`. What is missing of it behind the end counts as spaces.
#[inline]
pub(super) fn marks(input: &[u8], at: usize) -> Marks {
    let rest = input.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(block) => of_block(block),
        None => {
            let mut block = [b' '; BLOCK_BYTES];
            block.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
            of_block(&block)
        }
    }
}

#[inline]
fn of_block(block: &[u8; BLOCK_BYTES]) -> Marks {
    let (quarters, _) = block.as_chunks::<16>();
    let (quote, backslash, last_control) = (u8x16::splat(b'"'), u8x16::splat(b'\\'), u8x16::splat(0x1F));
    let (mut special, mut all) = (0, u8x16::splat(0));
    for (nth, quarter) in quarters.iter().enumerate() {
        let bytes = u8x16::new(*quarter);
        let is_control = bytes.min(last_control).simd_eq(bytes);
        let is_special = bytes.simd_eq(quote) | bytes.simd_eq(backslash) | is_control;
        special |= u64::from(is_special.to_bitmask()) << (16 * nth);
        all |= bytes;
    }
    Marks { special, is_ascii: all.to_bitmask() == 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::config;

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn every_byte_has_the_bit_that_is_its_own(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x1E..0x24_u8, 0x5A..0x5E_u8, 0x7E..0x82_u8], 0..100), at in 0..40_usize) {
            let block: Vec<u8> = bytes.iter().copied().skip(at).take(BLOCK_BYTES).collect();
            let is_special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
            let special = block.iter().enumerate().map(|(nth, byte)| u64::from(is_special(byte)) << nth).sum();
            prop_assert_eq!(marks(&bytes, at), Marks { special, is_ascii: block.is_ascii() });
        }
    }
}
