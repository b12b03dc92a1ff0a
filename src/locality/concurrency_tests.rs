//! Readers beside a writer, on real threads: no lookup sees what was at no moment true.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::Tenant;
use super::tests::chain;
use super::{LocalityIndex, Matches};
use crate::prefix::BlockHash;

const WRITES: usize = 1500;

/// Counts a thread out even when it panics, so that the others end too.
struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `write` that many times on each of two threads, and `look` on two others until they are done.
fn beside(write: impl Fn(&mut fastrand::Rng) + Sync, look: impl Fn(&mut Matches, &mut fastrand::Rng) + Sync) {
    let (start, writing, looks) = (Barrier::new(4), AtomicUsize::new(2), AtomicUsize::new(0));
    let (write, look, start, writing, looks) = (&write, &look, &start, &writing, &looks);
    thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || {
                let (mut rng, _writing) = (fastrand::Rng::with_seed(seed), Writing(writing));
                start.wait();
                (0..WRITES).for_each(|_| write(&mut rng));
            });
            scope.spawn(move || {
                let (mut rng, mut matches) = (fastrand::Rng::with_seed(100 + seed), Matches::new());
                start.wait();
                while writing.load(Ordering::Relaxed) > 0 {
                    look(&mut matches, &mut rng);
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(looks.load(Ordering::Relaxed) > 10, "nobody looked while there was something to see");
}

/// The first `shared` blocks of prompt `of`, then blocks of one's own.
fn branch(of: u64, shared: u64, own: u64) -> Vec<BlockHash> {
    chain((0..shared).map(|at| of << 8 | at).chain(own..own + 8))
}

#[test]
fn a_prompt_that_is_always_held_always_matches_whole_while_others_cut_its_runs() {
    const BLOCKS: u64 = 48;
    // Cut more often than it has places, then the next one: short walks, so that many come upon a cut in the making.
    const WRITES_PER_PROMPT: usize = 30;
    let index = LocalityIndex::new(8 << 20, 42);
    let steady = index.join(u32::MAX);
    let others: Vec<Tenant> = (0..4).map(|_| index.join(700)).collect();
    let prompts: Vec<_> = (0..=2 * WRITES / WRITES_PER_PROMPT).map(|of| branch(of as u64, BLOCKS, 1 << 40)).collect();
    prompts.iter().for_each(|prompt| index.insert(steady, prompt));
    let writes = AtomicUsize::new(0);
    beside(
        |rng| {
            let of = writes.fetch_add(1, Ordering::Relaxed) / WRITES_PER_PROMPT;
            if rng.u8(..) < 32 {
                index.insert(steady, &prompts[of]);
            } else {
                let own = branch(of as u64, rng.u64(1..BLOCKS), rng.u64(1 << 20..1 << 40));
                index.insert(others[rng.usize(..4)], &own);
            }
        },
        |matches, _| {
            let asked = &prompts[writes.load(Ordering::Relaxed) / WRITES_PER_PROMPT];
            index.lookup(asked, matches);
            assert_eq!(matches.blocks(steady) as usize, asked.len(), "a gap was seen");
        },
    );
    assert!(index.stats().runs > 1000, "the prompts were not cut");
    assert!(index.stats().evicted_blocks_total > 5000, "nothing was evicted meanwhile");
    index.check();
}

#[test]
fn no_tenant_matches_what_it_never_held() {
    let index = LocalityIndex::new(256 << 10, 42);
    let left: Vec<Tenant> = (0..3).map(|_| index.join(100)).collect();
    let right: Vec<Tenant> = (0..3).map(|_| index.join(100)).collect();
    let family = |of: u64, rng: &mut fastrand::Rng| {
        let length = rng.u64(1..90);
        chain([of].into_iter().chain((0..length).map(|at| if at % 16 == 15 { rng.u64(..2) } else { 0 })))
    };
    beside(
        |rng| {
            let (tenants, of) = if rng.bool() { (&left, 1000) } else { (&right, 2000) };
            index.insert(tenants[rng.usize(..3)], &family(of, rng));
        },
        |matches, rng| {
            let asked = family(1000, rng);
            index.lookup(&asked, matches);
            assert!(right.iter().all(|tenant| matches.blocks(*tenant) == 0), "a tenant matches a strange prompt");
            let longest = left.iter().map(|tenant| matches.blocks(*tenant) as usize).max();
            assert!(longest <= Some(asked.len()), "more matches than was asked for");
        },
    );
    assert!(index.stats().evicted_blocks_total > 10_000, "nothing was evicted meanwhile");
    index.check();
}

#[test]
fn the_beginning_that_prompts_share_is_seen_at_all_times_while_their_ends_come_and_go() {
    let index = LocalityIndex::new(8 << 20, 42);
    let tenant = index.join(100);
    index.insert(tenant, &chain((0..60).chain(500..540)));
    let prompt = |rng: &mut fastrand::Rng| {
        let end = rng.u64(..20) * 1000;
        chain((0..60).chain(end..end + 40))
    };
    beside(
        |rng| index.insert(tenant, &prompt(rng)),
        |matches, rng| {
            index.lookup(&prompt(rng), matches);
            let blocks = matches.blocks(tenant);
            assert!((60..=100).contains(&blocks), "{blocks} blocks match, which was never true");
        },
    );
    index.check();
}

#[test]
fn restarts_claims_and_lookups_together_leave_nothing_behind() {
    let index = std::sync::Arc::new(LocalityIndex::new(64 << 10, 42));
    let tenants = parking_lot::Mutex::new(vec![index.join(200), index.join(200)]);
    beside(
        |rng| {
            let at = rng.usize(..2);
            let tenant = tenants.lock()[at];
            let guard = index.begin(tenant, branch(0, rng.u64(1..40), rng.u64(..64)).into());
            if rng.u8(..) < 8 {
                let mut tenants = tenants.lock();
                let restarted = index.restart(tenants[at]);
                tenants[at] = restarted;
            }
            if rng.bool() {
                guard.commit();
            }
        },
        |matches, rng| {
            index.lookup(&branch(0, rng.u64(1..40), rng.u64(..64)), matches);
            assert!(matches.iter().all(|(_, blocks)| blocks <= 48));
        },
    );
    index.check();
    tenants.into_inner().into_iter().for_each(|tenant| index.leave(tenant));
    index.sweep(usize::MAX);
    let stats = index.stats();
    assert_eq!((stats.bytes, stats.runs, stats.holds, stats.overlay_blocks), (0, 0, 0, 0));
}

#[test]
fn what_a_claim_hands_over_is_held_at_every_moment() {
    let index = std::sync::Arc::new(LocalityIndex::new(8 << 20, 42));
    let tenant = index.join(100);
    let prompt: std::sync::Arc<[BlockHash]> = chain(0..48).into();
    index.insert(tenant, &prompt);
    let turn = parking_lot::Mutex::new(());
    beside(
        |_| {
            let _turn = turn.lock();
            let guard = index.begin(tenant, std::sync::Arc::clone(&prompt));
            index.set_capacity(tenant, 0);
            index.set_capacity(tenant, 100);
            guard.commit();
        },
        |matches, _| {
            index.lookup(&prompt, matches);
            assert_eq!(matches.blocks(tenant), 48, "neither assumed nor claimed");
        },
    );
    index.check();
}
