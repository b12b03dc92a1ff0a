//! The byte budget of the exact index against the bytes that a counting allocator sees.

use std::alloc::System;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use cap::Cap;
use warmgate::kv_events::{Batch, EngineHash, Medium};
use warmgate::locality::{ExactIndex, ExactTenant};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const BUDGET_BYTES: usize = 4 << 20;

const TENANTS: usize = 8;

const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// What grows with the number of tenants that are retired or have named something, not with what they hold.
const FIXED_BYTES: usize = 16 << 10;

/// An engine: the names of its prompts' blocks, the oldest prompt first.
struct Engine {
    tenant: ExactTenant,
    prompts: VecDeque<Vec<EngineHash>>,
}

impl Engine {
    /// Stores a prompt of one of eight systems and drops the oldest ones, so many blocks being held.
    fn serve(&mut self, rng: &mut fastrand::Rng, blocks: u64, capacity_prompts: usize) {
        let mut batch = Batch::default();
        while self.prompts.len() >= capacity_prompts {
            let names = self.prompts.pop_front().unwrap_or_default();
            names.iter().rev().for_each(|name| batch.push_removed(&[*name], Medium::Gpu));
        }
        let system = rng.u32(..8);
        let own = rng.u32(..);
        let ids = |at: u64| (0..16).map(move |id| if at < 4 { system } else { own }.wrapping_add(id));
        let name = |at: u64| if at < 4 { u64::from(system) << 8 | at } else { u64::from(own) << 20 | at };
        let ids: Vec<u32> = (0..blocks).flat_map(ids).collect();
        let names: Vec<EngineHash> = (0..blocks).map(|at| EngineHash(name(at))).collect();
        batch.push_stored(&names, None, &ids, BLOCK_TOKENS, Medium::Gpu);
        // Some that wait for what never comes.
        let lost = EngineHash(rng.u64(..));
        batch.push_stored(&[EngineHash(rng.u64(..))], Some(lost), &ids[..16], BLOCK_TOKENS, Medium::Cpu);
        self.tenant.apply(&batch);
        self.prompts.push_back(names);
    }
}

/// One test in this file: the allocator counts what all threads of the process allocate.
#[test]
fn the_index_allocates_no_more_than_it_counts_and_counts_no_more_than_its_budget() {
    let mut rng = fastrand::Rng::with_seed(7);
    let index = Arc::new(ExactIndex::new(BUDGET_BYTES, 42));
    let mut engines: Vec<Engine> =
        (0..TENANTS).map(|_| Engine { tenant: index.join(), prompts: VecDeque::new() }).collect();
    let empty_bytes = ALLOCATOR.allocated();
    let check = |engines: &[Engine], when: &str| {
        let lists = |engine: &Engine| {
            let names: usize = engine.prompts.iter().map(|names| names.capacity() * 8).sum();
            names + engine.prompts.capacity() * size_of::<Vec<EngineHash>>()
        };
        let ours: usize = engines.iter().map(lists).sum();
        let real = ALLOCATOR.allocated() - empty_bytes - ours;
        let counted = index.stats().bytes as usize;
        assert!(counted <= BUDGET_BYTES, "{when}: {counted} bytes counted, over the budget");
        assert!(real <= counted + FIXED_BYTES, "{when}: {real} bytes allocated, {counted} counted");
        assert!(counted <= real + real / 2 + FIXED_BYTES, "{when}: {counted} bytes counted for {real}: half is wasted");
    };
    // A few prompts, then more than there is room for, and few again.
    for (capacity_prompts, when) in [(20, "few prompts"), (1000, "too many prompts"), (5, "few prompts again")] {
        for step in 0..4000 {
            let blocks = rng.u64(5..60);
            engines[rng.usize(..TENANTS)].serve(&mut rng, blocks, capacity_prompts);
            if step % 500 == 499 {
                check(&engines, when);
            }
        }
        assert_eq!(index.stats().refused_blocks_total > 1000, capacity_prompts != 20, "{when}: {:?}", index.stats());
        assert!(capacity_prompts != 1000 || index.stats().bytes as usize > BUDGET_BYTES / 10 * 9, "room is left");
    }
    assert!(index.stats().bytes as usize > BUDGET_BYTES / 4, "there is nothing to lose");
    engines.iter().for_each(|engine| engine.tenant.clear());
    check(&engines, "cleared");
    index.sweep(usize::MAX);
    check(&engines, "swept");
    assert_eq!(index.stats().bytes, 0, "engines that lost everything hold something");
}
