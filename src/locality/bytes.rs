//! What an allocation costs: the one rule by which everything in the byte budget is counted.

/// Bytes that an allocator spends on a request of `requested` bytes, at most.
///
/// mimalloc's size classes are an eighth apart, glibc puts 8 bytes before a block and rounds to 16; this covers both.
pub(super) const fn heap_bytes(requested: usize) -> usize {
    if requested == 0 { 0 } else { (requested + requested / 8 + 8).next_multiple_of(16) }
}

/// The most items of 8 bytes whose allocation costs no more than `bytes`.
pub(super) const fn hashes_within(bytes: usize) -> usize {
    // The inverse of the above for 8 n: n + 8 n + 8, rounded up by at most 15.
    bytes.saturating_sub(8 + 15) / 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_to_fit_fits() {
        for bytes in 0..4096 {
            assert!(heap_bytes(hashes_within(bytes) * 8) <= bytes, "{bytes} bytes do not hold what they should");
        }
        assert_eq!(hashes_within(23 + 9), 1);
    }
}
