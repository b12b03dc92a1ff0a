//! Collects what this process has learned, within a number of bytes.
//!
//! What all backends have comes first, then what each holds: in turns, a run each, the most recently used first, so that
//! a bound leaves every backend about as much. It only reads, under the locks of single steps, and takes milliseconds
//! where much is held: not for a thread that serves requests.

use std::collections::HashMap;
use std::time::Duration;

use super::state::{Learned, LearnedBackend, LearnedHold, LearnedPool, LearnedResponse, LearnedRun};
use crate::locality::LocalityIndex;
use crate::pool::{BackendSnapshot, DrainCause, Snapshot};
use crate::prefix::BlockHash;
use crate::responses::ResponseOwners;
use crate::time::Moment;

/// Most bytes of one thing in MessagePack: its value and the byte before it.
const BLOCK_BYTES: u64 = 9;
const RUN_BYTES: u64 = 8;
const HOLD_BYTES: u64 = 12;
const RESPONSE_BYTES: u64 = 21;

/// A backend without its models and what it holds: its name and host of at most 256 bytes each, and numbers.
const BACKEND_BYTES: u64 = 1024;

/// What one response's maker may take of the whole: a quarter for all of them.
const RESPONSES_PART: u64 = 4;

/// Bytes that are left.
struct Room(u64);

/// The runs that are taken along.
#[derive(Default)]
struct Runs {
    taken: Vec<LearnedRun>,
    places: HashMap<BlockHash, u32>,
}

/// What `snapshot` and the others say, in at most about `max_bytes`.
pub(crate) fn collect(
    snapshot: &Snapshot,
    index: &LocalityIndex,
    responses: &ResponseOwners,
    max_bytes: u64,
    now: Moment,
) -> Learned {
    let mut room = Room(max_bytes);
    let mut pools: Vec<LearnedPool> = Vec::new();
    for pool in snapshot.pools() {
        let backends = pool.backends.iter().map_while(|backend| known(backend, &mut room, now)).collect();
        pools.push(LearnedPool { name: pool.pool.name().to_string(), scale: pool.pool.scale().record(), backends });
    }
    let responses = made(responses, &pools, &mut room);
    let runs = hold(snapshot, index, &mut pools, &mut room);
    Learned { pools, runs, responses }
}

// === impl Room ===

impl Room {
    /// Takes so much, if there is so much.
    fn take(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }
}

// === impl Runs ===

impl Runs {
    /// Takes along the first `blocks` blocks of a run that a backend holds; nothing if the run is gone. The outer `None`
    /// is that there is no room.
    fn take(
        &mut self,
        index: &LocalityIndex,
        first: BlockHash,
        blocks: u32,
        room: &mut Room,
    ) -> Option<Option<LearnedHold>> {
        if let Some(&run) = self.places.get(&first) {
            room.take(HOLD_BYTES)?;
            let whole = u32::try_from(self.taken[run as usize].blocks.len()).unwrap_or(u32::MAX);
            return Some(Some(LearnedHold { run, blocks: blocks.min(whole) }));
        }
        let Some(copy) = index.run(first) else { return Some(None) };
        room.take(HOLD_BYTES + RUN_BYTES + BLOCK_BYTES * copy.blocks.len() as u64)?;
        let run = u32::try_from(self.taken.len()).ok()?;
        let whole = u32::try_from(copy.blocks.len()).unwrap_or(u32::MAX);
        let hashes = copy.blocks.iter().map(|block| block.0).collect();
        self.taken.push(LearnedRun { blocks: hashes, is_followed: copy.is_followed });
        self.places.insert(first, run);
        Some(Some(LearnedHold { run, blocks: blocks.min(whole) }))
    }
}

fn known(backend: &BackendSnapshot, room: &mut Room, now: Moment) -> Option<LearnedBackend> {
    room.take(BACKEND_BYTES)?;
    let (held, load) = (&backend.backend, backend.backend.load().view(now));
    let models = backend.models.iter().map(|model| model.json.get().to_owned());
    let models = models.map_while(|json| room.take(json.len() as u64 + 5).map(|()| json)).collect();
    Some(LearnedBackend {
        name: held.name().to_string(),
        authority: held.origin().authority(),
        address: backend.address,
        health: backend.health,
        drains_for: drains_for(backend, now),
        rate: load.rate,
        recent: load.recent,
        ejection: held.ejection().record(now),
        trust: held.trust().record(),
        block_tokens: backend.engine.block_tokens,
        capacity_tokens: backend.engine.capacity_tokens,
        max_running: backend.engine.max_running,
        models,
        holds: Vec::new(),
    })
}

/// How long a drain goes on that the operator has asked for. One that a reload began is of a backend that the next process
/// does not know.
fn drains_for(backend: &BackendSnapshot, now: Moment) -> Option<Duration> {
    let drain = backend.drain.as_ref().filter(|drain| drain.cause() == DrainCause::Operator)?;
    Some(drain.deadline().since(now))
}

/// Who made stored responses: the most recently used of them, as far as there is room.
fn made(responses: &ResponseOwners, pools: &[LearnedPool], room: &mut Room) -> Vec<LearnedResponse> {
    let mut places = HashMap::new();
    for (at, pool) in (0..).zip(pools) {
        for (place, backend) in (0..).zip(&pool.backends) {
            places.insert((&*pool.name, &*backend.name), (at, place));
        }
    }
    let all = responses.all();
    let most = usize::try_from(room.0 / RESPONSES_PART / RESPONSE_BYTES).unwrap_or(usize::MAX);
    let newest = &all[all.len().saturating_sub(most)..];
    let made = newest.iter().filter_map(|(id, owner)| {
        let &(pool, backend) = places.get(&(&*owner.pool, &*owner.backend))?;
        room.take(RESPONSE_BYTES)?;
        Some(LearnedResponse { id: *id, pool, backend })
    });
    made.collect()
}

/// Fills in what backends hold, and gives the runs that are meant.
fn hold(snapshot: &Snapshot, index: &LocalityIndex, pools: &mut [LearnedPool], room: &mut Room) -> Vec<LearnedRun> {
    let most = usize::try_from(room.0 / HOLD_BYTES).unwrap_or(usize::MAX);
    let mut orders = Vec::new();
    for (pool, learned) in snapshot.pools().iter().zip(pools) {
        for (backend, learned) in pool.backends.iter().zip(&mut learned.backends) {
            orders.push((index.held_runs(backend.tenant, most).into_iter(), &mut learned.holds));
        }
    }
    let mut runs = Runs::default();
    while !orders.is_empty() {
        let mut is_full = false;
        orders.retain_mut(|(order, holds)| {
            let Some((first, blocks)) = order.next().filter(|_| !is_full) else { return false };
            match runs.take(index, first, blocks, room) {
                Some(hold) => holds.extend(hold),
                None => is_full = true,
            }
            !is_full
        });
        if is_full {
            break;
        }
    }
    runs.taken
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use super::*;
    use crate::locality::Tenant;
    use crate::pool::{Backend, EngineState, Health, Origin, OtherRouters, Pool, PoolSnapshot};
    use crate::prefix::Scale;
    use crate::responses::Owner;

    fn backend(name: &str, tenant: Tenant) -> BackendSnapshot {
        let origin = Origin { is_tls: false, host: "10.0.0.1".into(), port: 8000 };
        BackendSnapshot {
            backend: Arc::new(Backend::new(name, origin)),
            address: None,
            rank: None,
            health: Health::Healthy,
            drain: None,
            tls: None,
            tenant,
            engine: EngineState::default(),
            others: OtherRouters::default(),
            models: Arc::default(),
            feeds: Arc::default(),
            feeds_problem: None,
        }
    }

    /// Three backends that each hold 100 prompts of 10 blocks, the first of them common to all.
    fn fleet() -> (Snapshot, LocalityIndex, ResponseOwners) {
        let index = LocalityIndex::new(1 << 24, 7);
        let tenants: Vec<_> = (0..3).map(|_| index.join(10_000)).collect();
        for prompt in 0..100_u64 {
            for (number, tenant) in (1_u64..).zip(&tenants) {
                let of =
                    |block: u64| BlockHash(1 + block + 10 * prompt + if prompt == 0 { 0 } else { 100_000 * number });
                index.insert(*tenant, &(0..10).map(of).collect::<Vec<_>>());
            }
        }
        let responses = ResponseOwners::default();
        for number in 0..1_000 {
            let owner = Owner { pool: "p".into(), backend: format!("b{}", number % 4).into() };
            responses.remember(&number.to_string(), owner);
        }
        let mut pool = PoolSnapshot::new(Arc::new(Pool::new("p", Scale::new(NonZeroU32::MIN))));
        pool.backends = (0..).zip(&tenants).map(|(number, tenant)| backend(&format!("b{number}"), *tenant)).collect();
        (Snapshot::new(1, vec![pool]), index, responses)
    }

    fn collected(max_bytes: u64) -> Learned {
        let (snapshot, index, responses) = fleet();
        collect(&snapshot, &index, &responses, max_bytes, Moment::ORIGIN)
    }

    #[test]
    fn with_room_all_is_taken_and_common_runs_once() {
        let learned = collected(1 << 24);
        assert_eq!(learned.held_blocks(), 3 * 100 * 10);
        assert_eq!(learned.runs.len(), 1 + 3 * 99);
        assert_eq!(learned.responses.len(), 750, "a response of a backend that is gone is of no use");
        for backend in &learned.pools[0].backends {
            let oldest = learned.runs[backend.holds.last().unwrap().run as usize].blocks[0];
            assert_eq!(oldest, 1, "the newest come first");
        }
    }

    #[test]
    fn whatever_the_bound_it_is_kept_and_every_backend_has_its_share() {
        for max_bytes in [0, 500, 2_000, 5_000, 20_000, 60_000] {
            let learned = collected(max_bytes);
            let size = learned.encode().unwrap().len() as u64;
            assert!(size <= max_bytes.max(200), "{size} bytes where {max_bytes} are allowed");
            let holds: Vec<_> = learned.pools[0].backends.iter().map(|backend| backend.holds.len()).collect();
            let apart = holds.iter().max().zip(holds.iter().min()).map_or(0, |(most, least)| most - least);
            assert!(apart <= 1, "{holds:?} with {max_bytes} bytes");
        }
    }
}
