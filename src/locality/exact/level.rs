//! Levels: how near to its use a tenant has a block.

use crate::kv_events::Medium;

/// Where a tenant has a block, ordered from nowhere to the fastest medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Level {
    None = 0,
    Disk = 1,
    Cpu = 2,
    Gpu = 3,
}

/// Media, and with it levels other than none.
pub(super) const MEDIA: usize = 3;

// === impl Level ===

impl Level {
    /// By the lowest two bits.
    pub(super) fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::Disk,
            2 => Self::Cpu,
            _ => Self::Gpu,
        }
    }

    /// The best of the media of which there are any, given as counts in the order of [`Medium`].
    pub(super) fn best(counts: [u16; MEDIA]) -> Self {
        match counts {
            [gpu, ..] if gpu > 0 => Self::Gpu,
            [_, cpu, _] if cpu > 0 => Self::Cpu,
            [.., disk] if disk > 0 => Self::Disk,
            _ => Self::None,
        }
    }
}

/// A medium's place in a list of counts.
pub(super) fn place_of(medium: Medium) -> usize {
    match medium {
        Medium::Gpu => 0,
        Medium::Cpu => 1,
        Medium::Disk => 2,
    }
}
