//! The index against the naive model, under random changes to both.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::Index;

use super::model::{ModelEngine, World, last_stored};
use super::{ExactIndex, ExactMatches, ExactTenant, TierBlocks};
use crate::kv_events::{Batch, Event, Medium};
use crate::testing;

const PLENTY: usize = 64 << 20;

/// One event of an engine.
#[derive(Debug, Clone)]
enum Told {
    /// The last blocks of a path, so many at most.
    Store(Index, usize, Medium),
    /// The same, without token ids; only if all of the path is held.
    StoreByName(Index, Medium),
    /// In whatever order, held or not.
    Remove(Vec<Index>, Medium),
    /// Stores of another group, and of a group of layers that does not attend to all.
    OtherGroup(Index),
    Clear,
}

#[derive(Debug, Clone)]
enum Change {
    Batch(Index, Vec<Told>),
    /// The tenant's events were lost: the index forgets, and the engine starts anew.
    Restart(Index),
    Leave(Index),
    Join,
    Sweep(usize),
}

fn media() -> impl Strategy<Value = Medium> + Clone {
    prop_oneof![3 => Just(Medium::Gpu), 1 => Just(Medium::Cpu), 1 => Just(Medium::Disk)]
}

fn told() -> impl Strategy<Value = Told> {
    let at = any::<Index>;
    prop_oneof![
        10 => (at(), 1usize..12, media()).prop_map(|(end, depth, medium)| Told::Store(end, depth, medium)),
        2 => (at(), media()).prop_map(|(end, medium)| Told::StoreByName(end, medium)),
        8 => (prop::collection::vec(at(), 1..8), media()).prop_map(|(blocks, medium)| Told::Remove(blocks, medium)),
        1 => at().prop_map(Told::OtherGroup),
        1 => Just(Told::Clear),
    ]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        16 => (any::<Index>(), prop::collection::vec(told(), 1..5)).prop_map(|(tenant, told)| Change::Batch(tenant, told)),
        1 => any::<Index>().prop_map(Change::Restart),
        1 => any::<Index>().prop_map(Change::Leave),
        1 => Just(Change::Join),
        1 => (0usize..400).prop_map(Change::Sweep),
    ];
    prop::collection::vec(change, 1..50)
}

/// The index and the model side by side.
struct Pair {
    world: World,
    index: Arc<ExactIndex>,
    /// Shared with what looks at every single change.
    tenants: Arc<Mutex<Vec<Arc<ExactTenant>>>>,
    engines: Vec<ModelEngine>,
    joined: u64,
    matches: ExactMatches,
}

// === impl Pair ===

impl Pair {
    fn new(world: World, max_bytes: usize) -> Self {
        let index = Arc::new(ExactIndex::new(max_bytes, 42));
        let mut pair = Self {
            world,
            index,
            tenants: Arc::default(),
            engines: Vec::new(),
            joined: 0,
            matches: ExactMatches::new(),
        };
        (0..2).for_each(|_| pair.join());
        pair.observe();
        pair
    }

    /// Lets every single change be looked at: no block is published above the one before it.
    fn observe(&self) {
        let (world, tenants) = (self.world.clone(), Arc::clone(&self.tenants));
        *self.index.shards.observer.lock() = Some(Box::new(move |shards| {
            let tenants = tenants.lock();
            let best = |at: usize, slot| {
                let holders = shards.holders(world.0[at].key).into_iter();
                holders.filter(|(held, _)| *held == slot).map(|(_, level)| level).max()
            };
            for (at, block) in world.0.iter().enumerate() {
                let Some(parent) = block.parent else { continue };
                for slot in tenants.iter().map(|tenant| tenant.slot()) {
                    assert!(best(at, slot) <= best(parent, slot), "block {at} is seen farther than the one before it");
                }
            }
        }));
    }

    fn join(&mut self) {
        self.joined += 1;
        self.tenants.lock().push(Arc::new(self.index.join()));
        self.engines.push(ModelEngine::new(&self.world, self.joined));
    }

    fn tenant(&self, which: &Index) -> (usize, Arc<ExactTenant>) {
        let tenants = self.tenants.lock();
        let at = which.index(tenants.len());
        (at, Arc::clone(&tenants[at]))
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Batch(tenant, told) => {
                let (at, tenant) = self.tenant(tenant);
                let mut batch = Batch::default();
                told.iter().for_each(|told| self.tell(at, told, &mut batch));
                tenant.apply(&batch);
            }
            Change::Restart(tenant) => {
                let (at, tenant) = self.tenant(tenant);
                tenant.clear();
                self.engines[at].clear();
            }
            Change::Leave(tenant) if self.engines.len() > 1 => {
                let (at, _tenant) = self.tenant(tenant);
                let _left = self.tenants.lock().swap_remove(at);
                self.engines.swap_remove(at);
            }
            Change::Leave(_) => {}
            Change::Join => self.join(),
            Change::Sweep(max) => {
                self.index.sweep(*max);
            }
        }
    }

    /// Puts an event into the batch, and lets the model know.
    fn tell(&mut self, at: usize, told: &Told, batch: &mut Batch) {
        let (world, engine) = (&self.world, &mut self.engines[at]);
        let blocks = world.0.len();
        match told {
            Told::Store(end, depth, medium) => {
                world.stored(batch, engine, end.index(blocks), *depth, *medium);
                engine.store(world, end.index(blocks), *depth, *medium);
            }
            Told::StoreByName(end, medium) => {
                let end = end.index(blocks);
                if engine.matched(world, end).total() as usize == world.path(end).len() {
                    batch.push_stored(&[engine.name(end)], None, &[], super::model::BLOCK_TOKENS, *medium);
                    engine.store(world, end, 1, *medium);
                }
            }
            Told::Remove(removed, medium) => {
                let removed: Vec<usize> = removed.iter().map(|at| at.index(blocks)).collect();
                let names: Vec<_> = removed.iter().map(|at| engine.name(*at)).collect();
                batch.push_removed(&names, *medium);
                removed.iter().for_each(|at| engine.remove(*at, *medium));
            }
            Told::OtherGroup(end) => {
                // Only a tenant that has a group already knows that this is another.
                if engine.blocks() > 0 {
                    world.stored(batch, engine, end.index(blocks), 3, Medium::Gpu);
                    last_stored(batch).unwrap().group = 1;
                }
                world.stored(batch, engine, end.index(blocks), 3, Medium::Gpu);
                last_stored(batch).unwrap().is_full_attention = false;
            }
            Told::Clear => {
                batch.events.push(Event::Cleared);
                engine.clear();
            }
        }
    }

    fn levels(&mut self, end: usize, at: usize) -> TierBlocks {
        self.index.lookup(&self.world.chain(end), &mut self.matches);
        self.matches.levels(self.tenants.lock()[at].slot())
    }

    fn check(&self, is_short: bool) {
        let tenants = self.tenants.lock();
        self.index.check(tenants.iter().map(|tenant| &**tenant), is_short);
    }

    /// Ends everything; nothing may be left.
    fn end(self) {
        *self.index.shards.observer.lock() = None;
        self.tenants.lock().clear();
        self.index.sweep(usize::MAX);
        let stats = self.index.stats();
        assert_eq!((stats.bytes, stats.blocks, stats.aside_blocks, stats.tenants), (0, 0, 0, 0));
        assert!(!self.index.knows_adapter("a"), "an adapter outlived those who named it");
    }
}

/// Whether nothing is claimed that is not so.
fn is_within(claimed: TierBlocks, held: TierBlocks) -> bool {
    claimed.gpu <= held.gpu && claimed.gpu + claimed.cpu <= held.gpu + held.cpu && claimed.total() <= held.total()
}

proptest! {
    #![proptest_config(testing::config(400))]

    #[test]
    fn it_matches_what_the_engines_hold(world in World::any(), changes in changes()) {
        let mut pair = Pair::new(world, PLENTY);
        for change in &changes {
            pair.apply(change);
            for at in 0..pair.engines.len() {
                for end in 0..pair.world.0.len() {
                    let held = pair.engines[at].matched(&pair.world, end);
                    prop_assert_eq!(pair.levels(end, at), held, "tenant {}, the prompt that ends with {}", at, end);
                }
            }
            pair.check(false);
        }
        prop_assert_eq!(pair.index.stats().refused_blocks_total, 0);
        pair.end();
    }

    #[test]
    fn it_claims_nothing_more_where_bytes_are_short(
        world in World::any(),
        changes in changes(),
        max_bytes in 0usize..40_000,
    ) {
        let mut pair = Pair::new(world, max_bytes);
        for change in &changes {
            pair.apply(change);
            for at in 0..pair.engines.len() {
                for end in 0..pair.world.0.len() {
                    let (held, claimed) = (pair.engines[at].matched(&pair.world, end), pair.levels(end, at));
                    prop_assert!(is_within(claimed, held), "{claimed:?} are claimed of {held:?}");
                }
            }
            pair.check(true);
        }
        pair.end();
    }
}
