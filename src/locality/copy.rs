//! What tenants hold, taken out for another process, and put into its index.
//!
//! A copy is made run by run: the tenant's order of use is read under the writer's lock, for about a microsecond per ten
//! runs, and each run under its shard's. So the index goes on changing meanwhile, and a run that is cut or gone by then
//! is copied as far as it is there.

use super::run::Run;
use super::shards::MAX_RUNS;
use super::{LocalityIndex, Tenant};
use crate::prefix::BlockHash;

/// A run as it is at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCopy {
    /// Its blocks.
    pub blocks: Vec<BlockHash>,
    /// Another run has followed it, so that it must not be made longer.
    pub is_followed: bool,
}

impl LocalityIndex {
    /// The runs that a tenant holds, by their first block, each with how many of its leading blocks: the most recently
    /// used first, at most `max`. Runs of requests in flight are whole and come before all others; their engine is
    /// about to have them. Nothing for a stale tenant.
    pub fn held_runs(&self, tenant: Tenant, max: usize) -> Vec<(BlockHash, u32)> {
        let mut writer = self.writer.lock();
        let Some((slot, holds)) = writer.live_lists(tenant) else { return Vec::new() };
        let lists = slot.lists;
        let claimed = lists.claimed.iter(holds).map(|id| (holds.run(id), u32::MAX));
        let used = lists.used.iter(holds).map(|id| (holds.run(id), holds.blocks(id)));
        claimed.chain(used).take(max).collect()
    }

    /// The run that begins with this block.
    pub fn run(&self, first: BlockHash) -> Option<RunCopy> {
        self.shards.read(first, |run| RunCopy { blocks: run.hashes().to_vec(), is_followed: run.is_followed() })
    }

    /// Lets a tenant hold a run, or the first blocks of one, as its most recently used: to be called with the oldest
    /// first. The runs before it may come later. `is_followed` as in [`RunCopy`]; not for a part of a run.
    pub fn restore(&self, tenant: Tenant, blocks: &[BlockHash], is_followed: bool) {
        self.change(|writer| {
            writer.insert(tenant, blocks, 0);
            if is_followed {
                self.mark_end(blocks);
            }
        });
    }

    /// Marks the run with which `blocks` ends: the insert may have cut it.
    fn mark_end(&self, blocks: &[BlockHash]) {
        let mut base = 0;
        for _ in 0..MAX_RUNS {
            let Some(run_blocks) = blocks.get(base).and_then(|first| self.shards.read(*first, Run::blocks)) else {
                return;
            };
            if base + run_blocks >= blocks.len() {
                self.shards.read(blocks[base], Run::mark_followed);
                return;
            }
            base += run_blocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::Matches;
    use super::super::tests::chain;
    use super::*;
    use crate::testing::config;

    /// Copies what these tenants hold to a new index.
    fn copied(old: &LocalityIndex, tenants: &[Tenant], capacities: &[u32]) -> (LocalityIndex, Vec<Tenant>) {
        let new = LocalityIndex::new(1 << 20, 7);
        let joined: Vec<_> = capacities.iter().map(|blocks| new.join(*blocks)).collect();
        for (from, to) in tenants.iter().zip(&joined) {
            for (first, held) in old.held_runs(*from, usize::MAX).into_iter().rev() {
                let RunCopy { blocks, is_followed } = old.run(first).unwrap();
                let part = blocks.len().min(held as usize);
                new.restore(*to, &blocks[..part], is_followed && part == blocks.len());
            }
        }
        (new, joined)
    }

    fn assert_alike(old: (&LocalityIndex, &[Tenant]), new: (&LocalityIndex, &[Tenant]), prompts: &[Vec<BlockHash>]) {
        let (mut ours, mut theirs) = (Matches::new(), Matches::new());
        for prompt in prompts {
            old.0.lookup(prompt, &mut ours);
            new.0.lookup(prompt, &mut theirs);
            for (left, right) in old.1.iter().zip(new.1) {
                assert_eq!(theirs.blocks(*right), ours.blocks(*left), "of a prompt of {} blocks", prompt.len());
            }
        }
        new.0.check();
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn a_copy_matches_as_its_original_and_goes_on_like_it(
            inserts in prop::collection::vec((0..3_usize, prop::collection::vec(prop_oneof![8 => Just(0_u64), 1 => 1..4_u64], 1..30)), 0..30),
            later in prop::collection::vec((0..3_usize, prop::collection::vec(prop_oneof![8 => Just(0_u64), 1 => 1..4_u64], 1..30)), 0..10),
            smaller in 0..20_u32,
        ) {
            let capacities = [5, 24, 60];
            let old = LocalityIndex::new(1 << 20, 42);
            let tenants: Vec<_> = capacities.iter().map(|blocks| old.join(*blocks)).collect();
            let chains = |list: Vec<(usize, Vec<u64>)>| list.into_iter().map(|(tenant, labels)| (tenant, chain(labels))).collect::<Vec<_>>();
            let (inserts, later) = (chains(inserts), chains(later));
            let prompts: Vec<_> = inserts.iter().chain(&later).map(|(_, prompt)| prompt.clone()).collect();
            inserts.iter().for_each(|(tenant, prompt)| old.insert(tenants[*tenant], prompt));

            let (new, joined) = copied(&old, &tenants, &capacities);
            assert_alike((&old, &tenants), (&new, &joined), &prompts);
            for (tenant, prompt) in &later {
                old.insert(tenants[*tenant], prompt);
                new.insert(joined[*tenant], prompt);
                assert_alike((&old, &tenants), (&new, &joined), &prompts);
            }
            for at in 0..tenants.len() {
                old.set_capacity(tenants[at], smaller);
                new.set_capacity(joined[at], smaller);
            }
            assert_alike((&old, &tenants), (&new, &joined), &prompts);
        }
    }

    #[test]
    fn what_is_in_flight_is_copied_too() {
        let old = Arc::new(LocalityIndex::new(1 << 20, 42));
        let tenant = old.join(100);
        old.insert(tenant, &chain([0; 10]));
        let prompt = chain([0, 0, 0, 0, 0, 1, 1, 1]);
        let _guard = old.begin(tenant, prompt.as_slice().into());
        let (new, joined) = copied(&old, &[tenant], &[100]);
        assert_alike((&old, &[tenant]), (&new, &joined), &[prompt, chain([0; 10])]);
    }

    #[test]
    fn only_the_newest_are_given_where_not_all_are_wanted_and_none_of_a_stale_tenant() {
        let index = LocalityIndex::new(1 << 20, 42);
        let tenant = index.join(100);
        index.insert(tenant, &chain([1; 10]));
        index.insert(tenant, &chain([2; 10]));
        assert_eq!(index.held_runs(tenant, 1), [(chain([2])[0], 10)]);
        index.restart(tenant);
        assert_eq!(index.held_runs(tenant, 1), []);
    }
}
