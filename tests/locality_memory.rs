//! The byte budget of the locality index against the bytes that a counting allocator sees.

use std::alloc::System;
use std::sync::Arc;

use cap::Cap;
use warmgate::locality::LocalityIndex;
use warmgate::locality::Tenant;
use warmgate::prefix::BlockHash;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const BUDGET_BYTES: usize = 4 << 20;
const TENANTS: usize = 16;

/// What grows with the number of tenants, not with what they hold.
const FIXED_BYTES: usize = 4 << 10;

/// A prompt of `shared` blocks of one of eight systems, and `own` blocks of one of many conversations.
fn prompt(rng: &mut fastrand::Rng, own: u64) -> Vec<BlockHash> {
    let (system, conversation) = (rng.u64(1..9), rng.u64(..3000));
    let shared = (0..40).map(|at| system << 40 | at);
    let own = (0..own).map(|at| system << 40 | conversation << 20 | at | 1 << 50);
    let next = |parent: &mut u64, label: u64| {
        *parent = (*parent ^ label).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ label;
        Some(BlockHash(*parent))
    };
    shared.chain(own).scan(1, next).collect()
}

struct Measured {
    index: Arc<LocalityIndex>,
    /// Allocated bytes when the index was empty.
    empty_bytes: usize,
}

impl Measured {
    fn check(&self, when: &str) {
        let real = ALLOCATOR.allocated() - self.empty_bytes;
        let counted = self.index.stats().bytes as usize;
        assert!(counted <= BUDGET_BYTES, "{when}: {counted} bytes counted, over the budget");
        assert!(real <= counted + counted / 10 + FIXED_BYTES, "{when}: {real} bytes allocated, {counted} counted");
        assert!(counted <= real + real / 2 + FIXED_BYTES, "{when}: {counted} bytes counted for {real}: half is wasted");
    }
}

/// One test in this file: the allocator counts what all threads of the process allocate.
#[test]
fn the_index_allocates_no_more_than_it_counts_and_counts_no_more_than_its_budget() {
    let mut rng = fastrand::Rng::with_seed(7);
    let index = Arc::new(LocalityIndex::new(BUDGET_BYTES, 42));
    let mut tenants: Vec<Tenant> = (0..TENANTS).map(|_| index.join(20_000)).collect();
    let measured = Measured { index: Arc::clone(&index), empty_bytes: ALLOCATOR.allocated() };

    // Long and short ends, so that the bytes are in hashes first, in runs, holders and the table then.
    for (own, when) in [(300, "long prompts"), (4, "short prompts"), (60, "prompts in between")] {
        for step in 0..6000 {
            let own = rng.u64(1..=own);
            let chain = prompt(&mut rng, own);
            index.insert(tenants[rng.usize(..TENANTS)], &chain);
            if step % 500 == 499 {
                measured.check(when);
            }
        }
    }
    assert!(index.stats().evicted_blocks_total > 100_000, "the budget was never reached");
    assert!(index.stats().bytes as usize > BUDGET_BYTES / 2, "the budget is not made use of");

    check_in_flight(&measured, &tenants, &mut rng);
    tenants.iter_mut().for_each(|tenant| *tenant = index.restart(*tenant));
    measured.check("restarted");
    index.sweep(usize::MAX);
    measured.check("swept");
    assert_eq!(index.stats().bytes, 0, "restarted engines hold something");
}

fn check_in_flight(measured: &Measured, tenants: &[Tenant], rng: &mut fastrand::Rng) {
    // The chains of the requests are the caller's memory.
    let before = ALLOCATOR.allocated();
    let chains: Vec<Arc<[BlockHash]>> = (0..500).map(|_| prompt(rng, 50).into()).collect();
    let mut guards = Vec::with_capacity(chains.len());
    let callers = ALLOCATOR.allocated() - before;
    let measured = Measured { index: Arc::clone(&measured.index), empty_bytes: measured.empty_bytes + callers };
    for chain in &chains {
        guards.push(measured.index.begin(tenants[rng.usize(..TENANTS)], Arc::clone(chain)));
    }
    measured.check("in flight");
    assert!(measured.index.stats().overlay_blocks > 10_000, "nothing was claimed");
    for (nth, guard) in guards.drain(..).enumerate() {
        if nth % 2 == 0 { guard.commit() } else { drop(guard) }
    }
    measured.check("committed or dropped");
    assert_eq!(measured.index.stats().overlay_blocks, 0);
}
