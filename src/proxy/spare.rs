//! Memory of long bodies that is used again. Given back and taken anew it would come from the system each time, page by page,
//! each one cleared: a twentieth of what a body of 1 MiB costs.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};

/// What is worth it.
const LEAST_BYTES: usize = 128 * 1024;

/// More is given back, so that little is held for nobody.
const MOST_BYTES: usize = 2 * 1024 * 1024;

/// Pieces that a thread has.
const MOST_PIECES: usize = 4;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Empty memory for `length` bytes, if there is some that fits; else memory for none.
pub(super) fn take(length: usize) -> BytesMut {
    let fits = |spare: &BytesMut| (length..=2 * length).contains(&spare.capacity());
    let take = |pieces: &mut Vec<BytesMut>| Some(pieces.swap_remove(pieces.iter().position(fits)?));
    SPARE.with_borrow_mut(take).unwrap_or_default()
}

/// Keeps the memory of `bytes`, if nobody else has a part of it.
pub(super) fn give(bytes: Bytes) {
    if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes.len()) {
        return;
    }
    let Ok(mut memory) = bytes.try_into_mut() else { return };
    memory.clear();
    // A thread that ends has no use for it.
    let _ = SPARE.try_with(|spare| {
        let mut pieces = spare.borrow_mut();
        if pieces.len() == MOST_PIECES {
            pieces.remove(0);
        }
        if memory.capacity() <= MOST_BYTES {
            pieces.push(memory);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(length: usize) -> Bytes {
        BytesMut::from(&vec![b'x'; length][..]).freeze()
    }

    #[test]
    fn memory_is_used_again_where_it_fits() {
        let first = body(300_000);
        let place = first.as_ptr();
        give(first);
        assert_eq!(take(100_000).capacity(), 0, "too much for it");
        assert_eq!(take(300_001).capacity(), 0, "not enough");
        let again = take(200_000);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(again.capacity() >= 300_000);
        assert_eq!(take(200_000).capacity(), 0, "it is there once");
    }

    #[test]
    fn what_is_in_use_or_of_no_use_is_not_kept() {
        let bytes = body(300_000);
        let share = bytes.clone();
        give(bytes);
        give(body(LEAST_BYTES - 1));
        give(body(MOST_BYTES + 1));
        assert_eq!(take(300_000).capacity(), 0);
        assert_eq!(share.len(), 300_000);
    }

    #[test]
    fn a_thread_has_so_many_pieces_and_the_newest() {
        for more in 0..=MOST_PIECES {
            give(body(200_000 + more * 1000));
        }
        let taken = (0..=MOST_PIECES).map(|_| take(201_000).capacity()).collect::<Vec<_>>();
        assert_eq!(taken.iter().filter(|&&capacity| capacity > 0).count(), MOST_PIECES, "{taken:?}");
    }
}
