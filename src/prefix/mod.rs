//! Prefix blocks: the units in which locality is believed, looked up and accounted.

/// Identifies a prefix block: the block, every block before it, and what separates caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);
