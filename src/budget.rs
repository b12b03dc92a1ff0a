//! Bounds the bytes that many requests hold together: those that do not fit wait, for a while.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The unit in which bytes are counted, so that the semaphore's 32-bit requests reach 4 TiB.
const UNIT_BYTES: usize = 1024;

/// Room for a number of bytes.
#[derive(Debug)]
pub struct ByteBudget {
    room: Arc<Semaphore>,
    /// Units in all, and how many of them are still to be taken away because they were held when it shrank.
    size: Mutex<Size>,
}

#[derive(Debug, Clone, Copy)]
struct Size {
    units: usize,
    owed: usize,
}

/// A share of the budget. Dropping it gives it back.
#[derive(Debug, Default)]
pub struct Reservation {
    permit: Option<OwnedSemaphorePermit>,
}

/// There was no room in time, or there never can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for more bytes")]
pub struct NoRoom;

// === impl ByteBudget ===

impl ByteBudget {
    /// A budget of `bytes`, rounded up to whole KiB.
    pub fn new(bytes: usize) -> Self {
        let units = units(bytes).min(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(units)), size: Mutex::new(Size { units, owed: 0 }) }
    }

    /// Bytes reserved at present.
    pub fn used_bytes(&self) -> usize {
        let size = *self.size.lock();
        (size.units + size.owed).saturating_sub(self.room.available_permits()) * UNIT_BYTES
    }

    /// Makes the budget `bytes`. What is held beyond a smaller one is taken away as it is given back, by later calls.
    pub fn resize(&self, bytes: usize) {
        let mut size = self.size.lock();
        let wanted = units(bytes).min(Semaphore::MAX_PERMITS);
        let current = size.units + size.owed;
        size.owed = 0;
        if wanted > current {
            self.room.add_permits(wanted - current);
        } else {
            size.owed = current - wanted - self.room.forget_permits(current - wanted);
        }
        size.units = wanted;
    }

    /// Adds `bytes` to `held`, waiting up to `wait` for room.
    ///
    /// # Errors
    /// [`NoRoom`] after the wait, or at once if `bytes` is more than the whole budget.
    pub async fn reserve(&self, held: &mut Reservation, bytes: usize, wait: Duration) -> Result<(), NoRoom> {
        // Those that wait have what is given back before anyone gets it like this.
        if self.reserve_now(held, bytes).is_ok() {
            return Ok(());
        }
        let permits = u32::try_from(units(bytes)).map_err(|_| NoRoom)?;
        if permits as usize > self.settle() {
            return Err(NoRoom);
        }
        let more = match timeout(wait, Arc::clone(&self.room).acquire_many_owned(permits)).await {
            Ok(Ok(more)) => more,
            _ => return Err(NoRoom),
        };
        held.take(more);
        Ok(())
    }

    /// The same without a wait.
    ///
    /// # Errors
    /// [`NoRoom`] if there is none at once.
    pub fn reserve_now(&self, held: &mut Reservation, bytes: usize) -> Result<(), NoRoom> {
        self.settle();
        let permits = u32::try_from(units(bytes)).map_err(|_| NoRoom)?;
        let more = Arc::clone(&self.room).try_acquire_many_owned(permits).map_err(|_| NoRoom)?;
        held.take(more);
        Ok(())
    }

    /// Takes away what is owed, as far as it was given back; the units in all.
    fn settle(&self) -> usize {
        let mut size = self.size.lock();
        if size.owed > 0 {
            size.owed -= self.room.forget_permits(size.owed);
        }
        size.units
    }
}

// === impl Reservation ===

impl Reservation {
    fn take(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            empty => *empty = Some(more),
        }
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reservation_waits_for_room_and_is_given_back_on_drop() {
        let budget = ByteBudget::new(10 * UNIT_BYTES);
        let mut first = Reservation::default();
        budget.reserve(&mut first, 8 * UNIT_BYTES, Duration::ZERO).await.unwrap();
        assert_eq!(budget.used_bytes(), 8 * UNIT_BYTES);

        let mut second = Reservation::default();
        let refused = budget.reserve(&mut second, 4 * UNIT_BYTES, Duration::from_secs(5)).await;
        assert_eq!(refused, Err(NoRoom), "8 of 10 KiB are taken, so 4 more do not fit");

        drop(first);
        budget.reserve(&mut second, 4 * UNIT_BYTES, Duration::from_secs(5)).await.unwrap();
        assert_eq!(budget.reserve_now(&mut second, 7 * UNIT_BYTES), Err(NoRoom));
        budget.reserve_now(&mut second, 6 * UNIT_BYTES).unwrap();
        drop(second);
        assert_eq!(budget.used_bytes(), 0, "every reservation was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_not_overtaken_by_those_who_need_less() {
        let budget = ByteBudget::new(10 * UNIT_BYTES);
        let (mut first, mut large, mut small) = Default::default();
        budget.reserve(&mut first, 8 * UNIT_BYTES, Duration::ZERO).await.unwrap();
        let waiting = budget.reserve(&mut large, 4 * UNIT_BYTES, Duration::from_secs(60));
        let others = async {
            let refused = budget.reserve(&mut small, UNIT_BYTES, Duration::from_secs(1)).await;
            assert_eq!(refused, Err(NoRoom), "the two that are left are for the one that waits");
            drop(first);
        };
        let (waited, ()) = tokio::join!(waiting, others);
        assert_eq!(waited, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_the_whole_budget_is_refused_at_once() {
        let budget = ByteBudget::new(UNIT_BYTES);
        let started = tokio::time::Instant::now();
        let refused = budget.reserve(&mut Reservation::default(), 2 * UNIT_BYTES, Duration::from_secs(60)).await;
        assert_eq!(refused, Err(NoRoom));
        assert_eq!(started.elapsed(), Duration::ZERO, "waiting cannot make it fit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_that_shrinks_below_what_is_held_takes_the_rest_when_it_is_given_back() {
        let budget = ByteBudget::new(10 * UNIT_BYTES);
        let mut held = Reservation::default();
        budget.reserve(&mut held, 8 * UNIT_BYTES, Duration::ZERO).await.unwrap();
        budget.resize(4 * UNIT_BYTES);
        assert_eq!(budget.used_bytes(), 8 * UNIT_BYTES, "what is held stays held");
        let mut more = Reservation::default();
        assert_eq!(budget.reserve(&mut more, UNIT_BYTES, Duration::ZERO).await, Err(NoRoom));

        drop(held);
        budget.reserve(&mut more, 4 * UNIT_BYTES, Duration::ZERO).await.unwrap();
        assert_eq!(budget.reserve(&mut more, UNIT_BYTES, Duration::ZERO).await, Err(NoRoom), "4 KiB are all there is");
        drop(more);
        budget.resize(6 * UNIT_BYTES);
        budget.reserve(&mut Reservation::default(), 6 * UNIT_BYTES, Duration::ZERO).await.unwrap();
        assert_eq!(budget.used_bytes(), 0);
    }
}
