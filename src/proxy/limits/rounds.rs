//! Looks at all attempts in turn and ends those whose time is up. A timer for each would cost a request more than the rest of
//! what is done about its limits; limits are of seconds, and being late by [`ROUND`] is nothing to them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::time::{MissedTickBehavior, interval};

use super::watch::Watched;
use crate::time;

/// Between two looks.
const ROUND: Duration = Duration::from_millis(20);

/// Rounds without an attempt after which nobody looks until one begins: an idle process sleeps.
const IDLE_ROUNDS: u32 = 100;

/// The attempts that have a time limit.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Rounds(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    watched: Slab<Arc<Watched>>,
    is_looked_at: bool,
}

// === impl Rounds ===

impl Rounds {
    /// Adds an attempt; the number by which it is removed.
    pub(super) fn add(self: &Arc<Self>, watched: Arc<Watched>) -> usize {
        let (key, is_looked_at) = {
            let mut list = self.0.lock();
            (list.watched.insert(watched), mem::replace(&mut list.is_looked_at, true))
        };
        if !is_looked_at {
            tokio::spawn(go(Arc::clone(self)));
        }
        key
    }

    pub(super) fn remove(&self, key: usize) {
        self.0.lock().watched.try_remove(key);
    }

    /// Those whose time is up, and how many there are.
    fn due(&self) -> (Vec<Arc<Watched>>, usize) {
        let now = time::now();
        let list = self.0.lock();
        let due =
            list.watched.iter().filter(|(_, watched)| watched.due() <= now).map(|(_, watched)| Arc::clone(watched));
        (due.collect(), list.watched.len())
    }

    /// Nobody looks any more, if there is nothing to look at.
    fn rest(&self) -> bool {
        let mut list = self.0.lock();
        list.is_looked_at = !list.watched.is_empty();
        !list.is_looked_at
    }
}

async fn go(rounds: Arc<Rounds>) {
    let (mut round, mut idle) = (interval(ROUND), 0);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        let (due, count) = rounds.due();
        due.iter().for_each(|watched| watched.end_if_over(time::now()));
        idle = if count == 0 { idle + 1 } else { 0 };
        if idle > IDLE_ROUNDS && rounds.rest() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;
    use crate::pool::{TimeLimit, Timeouts};
    use crate::proxy::limits::{Asked, Deadlines, Watch};

    fn watch(rounds: &Arc<Rounds>, read: Duration) -> Watch {
        let timeouts = Timeouts { read, ..Timeouts::default() };
        Watch::begin(rounds, Deadlines::new(timeouts, Asked::Whole, time::now(), None))
    }

    #[tokio::test]
    async fn an_attempt_is_ended_at_its_time_and_leaves_nothing_behind() {
        let rounds = Arc::new(Rounds::default());
        let (short, long) = (watch(&rounds, Duration::from_millis(30)), watch(&rounds, Duration::from_secs(3600)));
        assert_eq!(short.watching().awaiting(pending::<()>()).await, None);
        assert_eq!((short.met(), long.met()), (Some(TimeLimit::Read), None));
        drop((short, long));
        assert_eq!(rounds.due().1, 0);
    }

    #[tokio::test]
    async fn what_has_come_counts_and_so_does_who_is_waited_for() {
        tokio::time::pause();
        let rounds = Arc::new(Rounds::default());
        let late = watch(&rounds, Duration::ZERO);
        let watched = late.watching();
        assert_eq!(watched.awaiting(async { 7 }).await, Some(7), "it is looked at first");
        sleep(ROUND * 5).await;
        assert_eq!(late.met(), None, "the client is slow, not the backend");
        late.end();
        let answer = async {
            sleep(ROUND * 5).await;
            7
        };
        assert_eq!(watched.awaiting(answer).await, Some(7), "nothing is waited for any more");
    }

    #[tokio::test]
    async fn rounds_end_without_attempts_and_begin_again_with_one() {
        tokio::time::pause();
        let rounds = Arc::new(Rounds::default());
        drop(watch(&rounds, Duration::from_secs(1)));
        sleep(ROUND * (IDLE_ROUNDS + 3)).await;
        assert!(!rounds.0.lock().is_looked_at, "nobody looks at nothing");
        let watch = watch(&rounds, Duration::ZERO);
        watch.watching().awaiting(pending::<()>()).await;
        assert_eq!(watch.met(), Some(TimeLimit::Read));
    }
}
