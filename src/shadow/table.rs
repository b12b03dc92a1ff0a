//! A hash table of marks in which every mark has one cache line where it can be.
//!
//! A full bucket loses its least recently used mark to a new one: statistics may lose some, and a table that does not chain
//! takes one miss of the processor's cache for each mark, found or not.

use super::marks::{NUMBER_BITS, Tag};
use super::memory::Grant;

/// Marks of a bucket: as many as a cache line holds.
const WAYS: usize = 8;

/// Buckets of the first table.
const MIN_BUCKETS: usize = 16;

/// Buckets of the largest: 2 MiB, 262,144 marks. A tag has bits for no more, and to make it of one of half the size takes a
/// millisecond.
const MAX_BUCKETS: usize = 1 << 15;

/// The last use of each mark, by [`Tag`].
#[derive(Debug, Default)]
pub(super) struct Table {
    /// None or a power of two.
    buckets: Vec<Bucket>,
    _grant: Option<Grant>,
}

/// A place without a mark has the tag 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WAYS],
    used: [u32; WAYS],
}

/// What there was of a mark that has just been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Former {
    /// It was there, used last in this epoch.
    Held(u32),
    /// It took the place of this one, used last in this epoch. The tag is 0 if the place was free.
    Missing(Tag, u32),
}

// === impl Table ===

impl Table {
    /// Bytes of a table with so many buckets.
    pub(super) fn bytes(buckets: usize) -> usize {
        buckets * size_of::<Bucket>()
    }

    /// How many buckets it should have for so many marks, if that is more than it has.
    pub(super) fn wanted_buckets(&self, marks: usize) -> Option<usize> {
        // Filled by a third at most: then one bucket in seven hundred has too few places.
        let wanted = marks.saturating_mul(3).div_ceil(WAYS).next_power_of_two().clamp(MIN_BUCKETS, MAX_BUCKETS);
        (wanted > self.buckets.len()).then_some(wanted)
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The same marks in a table of `buckets`, a power of two and no fewer than there are.
    pub(super) fn resized(&self, buckets: usize, grant: Grant) -> Self {
        let mut resized = Self { buckets: vec![Bucket::default(); buckets], _grant: Some(grant) };
        for bucket in &self.buckets {
            for (&tag, &used) in bucket.tags.iter().zip(&bucket.used).filter(|&(&tag, _)| tag != 0) {
                let place = resized.place(Tag(tag));
                // There is one: no bucket gets more than one had.
                let bucket = &mut resized.buckets[place];
                if let Some(way) = bucket.find(Tag::default()) {
                    (bucket.tags[way], bucket.used[way]) = (tag, used);
                }
            }
        }
        resized
    }

    /// When the mark was last used.
    pub(super) fn last_use(&self, tag: Tag) -> Option<u32> {
        let bucket = self.buckets.get(self.place(tag))?;
        bucket.find(tag).map(|way| bucket.used[way])
    }

    /// Has the processor fetch the buckets of all these marks at once. They are far apart, and each touch would wait for its
    /// own.
    pub(super) fn fetch(&self, tags: &[Tag]) {
        let first_of = |tag: &Tag| self.buckets.get(self.place(*tag)).map_or(0, |bucket| bucket.tags[0]);
        std::hint::black_box(tags.iter().fold(0, |all, tag| all ^ first_of(tag)));
    }

    /// Notes that the mark is used in epoch `now`, the latest so far. The table must not be empty.
    pub(super) fn touch(&mut self, tag: Tag, now: u32) -> Former {
        let place = self.place(tag);
        let bucket = &mut self.buckets[place];
        if let Some(way) = bucket.find(tag) {
            return Former::Held(std::mem::replace(&mut bucket.used[way], now));
        }
        let way = bucket.oldest(now);
        let former = Tag(std::mem::replace(&mut bucket.tags[way], tag.0));
        Former::Missing(former, std::mem::replace(&mut bucket.used[way], now))
    }

    fn place(&self, tag: Tag) -> usize {
        (tag.0 >> NUMBER_BITS) as usize & self.buckets.len().wrapping_sub(1)
    }
}

// === impl Bucket ===

impl Bucket {
    fn find(&self, tag: Tag) -> Option<usize> {
        // Without a branch for each place.
        let found =
            self.tags.iter().enumerate().fold(0_u32, |found, (way, &held)| found | u32::from(held == tag.0) << way);
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    /// The place that is free, or else was used the longest ago.
    fn oldest(&self, now: u32) -> usize {
        let age = |way: usize| if self.tags[way] == 0 { u32::MAX } else { now.wrapping_sub(self.used[way]) };
        let mut oldest = (age(0), 0);
        for way in 1..WAYS {
            if age(way) > oldest.0 {
                oldest = (age(way), way);
            }
        }
        oldest.1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::memory::ShadowMemory;
    use super::*;

    fn table(buckets: usize) -> (Table, Arc<ShadowMemory>) {
        let memory = Arc::new(ShadowMemory::new(1 << 20, 1));
        let grant = memory.take(Table::bytes(buckets)).unwrap();
        (Table::default().resized(buckets, grant), memory)
    }

    /// Tags that fall into buckets one after the other.
    fn tag(number: u32) -> Tag {
        Tag(number << NUMBER_BITS | 1)
    }

    #[test]
    fn a_full_bucket_loses_what_was_used_the_longest_ago() {
        let (mut table, _memory) = table(4);
        let same: Vec<_> = (1..=9).map(|number| tag(4 * number)).collect();
        for (now, &tag) in same[..8].iter().enumerate() {
            assert_eq!(table.touch(tag, now as u32 + 1), Former::Missing(Tag(0), 0));
        }
        assert_eq!(table.touch(same[0], 9), Former::Held(1));
        assert_eq!(table.touch(same[8], 10), Former::Missing(same[1], 2));
        assert_eq!(table.touch(tag(1), 10), Former::Missing(Tag(0), 0), "another bucket has room");
        assert_eq!((table.last_use(same[0]), table.last_use(same[1])), (Some(9), None));
    }

    #[test]
    fn a_larger_table_has_all_that_the_smaller_had() {
        let (mut small, memory) = table(4);
        let now = |number: u32| number * 7 % 20;
        for number in 1..=32 {
            let Tag(same) = tag(number);
            let bucket = &mut small.buckets[number as usize % 4];
            let way = bucket.find(Tag(0)).unwrap();
            (bucket.tags[way], bucket.used[way]) = (same, now(number));
        }
        let large = small.resized(16, memory.take(Table::bytes(16)).unwrap());
        assert!(
            (1..=32).all(|number| large.last_use(tag(number)) == Some(now(number))),
            "in whatever order they are used"
        );
        assert_eq!(memory.used_bytes(), 20 * 64);
        drop((small, large));
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn tables_are_made_to_be_a_third_full_at_most() {
        let wanted = |buckets, marks| table(buckets).0.wanted_buckets(marks);
        assert_eq!((Table::default().wanted_buckets(0), Table::default().last_use(tag(1))), (Some(MIN_BUCKETS), None));
        assert_eq!([42, 43, 86].map(|marks| wanted(16, marks)), [None, Some(32), Some(64)]);
        assert_eq!(wanted(16, 1 << 40), Some(MAX_BUCKETS));
        assert_eq!(MAX_BUCKETS.ilog2() + 10, 32 - NUMBER_BITS, "ten bits and more tell the marks of a bucket apart");
    }
}
