//! The behaviour of the exact index in single statements.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::model::last_stored;
use super::{Applied, ExactIndex, ExactMatches, ExactTenant, Slot, TierBlocks};
use crate::kv_events::{Batch, EngineHash, Event, Medium};
use crate::prefix::{BlockHash, token_chain, token_root};

const PLENTY: usize = 64 << 20;

const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(4).unwrap();

/// A prompt's blocks: its ids, and the names that an engine gives them.
pub(super) struct Prompt {
    ids: Vec<u32>,
    names: Vec<EngineHash>,
}

impl Prompt {
    pub(super) fn new(of: u64, blocks: u64) -> Self {
        let ids = (0..blocks * 4).map(|at| (of * 1000 + at) as u32).collect();
        Self { ids, names: (0..blocks).map(|at| EngineHash(of << 32 | at)).collect() }
    }

    /// The same blocks under other names.
    fn renamed(&self, by: u64) -> Self {
        Self { ids: self.ids.clone(), names: self.names.iter().map(|name| EngineHash(name.0 ^ by)).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn chain(&self) -> Vec<BlockHash> {
        token_chain(token_root(None, None), &self.ids, BLOCK_TOKENS)
    }

    /// Some of its blocks stored.
    pub(super) fn stored(&self, blocks: std::ops::Range<usize>, medium: Medium) -> Batch {
        let mut batch = Batch::default();
        let parent = blocks.start.checked_sub(1).map(|before| self.names[before]);
        let ids = &self.ids[blocks.start * 4..blocks.end * 4];
        batch.push_stored(&self.names[blocks], parent, ids, BLOCK_TOKENS, medium);
        batch
    }

    /// Some of its blocks removed.
    pub(super) fn removed(&self, blocks: std::ops::Range<usize>, medium: Medium) -> Batch {
        let mut batch = Batch::default();
        batch.push_removed(&self.names[blocks], medium);
        batch
    }
}

pub(super) fn matched(index: &ExactIndex, tenant: &ExactTenant, prompt: &Prompt) -> TierBlocks {
    let mut matches = ExactMatches::new();
    index.lookup(&prompt.chain(), &mut matches);
    matches.levels(tenant.slot())
}

fn on_gpu(blocks: u32) -> TierBlocks {
    TierBlocks { gpu: blocks, ..TierBlocks::default() }
}

fn index() -> Arc<ExactIndex> {
    Arc::new(ExactIndex::new(PLENTY, 42))
}

#[test]
fn a_prompt_matches_up_to_the_first_block_that_is_not_held() {
    let (index, prompt) = (index(), Prompt::new(1, 9));
    let tenant = index.join();
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
    tenant.apply(&prompt.stored(0..9, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(9));
    tenant.apply(&prompt.removed(4..5, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(4));
    tenant.apply(&prompt.removed(0..1, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
    tenant.apply(&prompt.stored(0..1, Medium::Gpu));
    tenant.apply(&prompt.stored(4..5, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(9), "blocks that stayed were not found again");
    assert_eq!(tenant.blocks(), 9);
}

#[test]
fn a_block_in_a_slower_medium_counts_there_with_all_behind_it() {
    let (index, prompt) = (index(), Prompt::new(1, 6));
    let tenant = index.join();
    tenant.apply(&prompt.stored(0..6, Medium::Gpu));
    tenant.apply(&prompt.stored(2..3, Medium::Cpu));
    tenant.apply(&prompt.stored(4..5, Medium::Disk));
    tenant.apply(&prompt.removed(2..3, Medium::Gpu));
    tenant.apply(&prompt.removed(4..5, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), TierBlocks { gpu: 2, cpu: 2, disk: 2 });
    assert_eq!(tenant.blocks(), 6, "a block in another medium is the same block");
}

#[test]
fn a_block_stored_twice_is_gone_when_it_is_removed_twice() {
    let (index, prompt) = (index(), Prompt::new(1, 1));
    let tenant = index.join();
    for _ in 0..2 {
        tenant.apply(&prompt.stored(0..1, Medium::Gpu));
    }
    tenant.apply(&prompt.removed(0..1, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(1));
    tenant.apply(&prompt.removed(0..1, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
    let applied = tenant.apply(&prompt.removed(0..1, Medium::Gpu));
    assert_eq!(applied, Applied { unknown_removals: 1, ..Applied::default() });
}

#[test]
fn a_block_stored_more_often_than_can_be_counted_is_given_up_early() {
    let (index, prompt) = (index(), Prompt::new(1, 1));
    let tenant = index.join();
    let times = |batch: &Batch, times: u32| {
        (0..times).map(|_| tenant.apply(batch)).fold((0, 0), |sum, applied| {
            (sum.0 + applied.stored + applied.removed, sum.1 + applied.refused + applied.unknown_removals)
        })
    };
    assert_eq!(times(&prompt.stored(0..1, Medium::Gpu), 65_540), (65_535, 5));
    assert_eq!(times(&prompt.removed(0..1, Medium::Gpu), 65_534), (65_534, 0));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(1));
    assert_eq!(times(&prompt.removed(0..1, Medium::Gpu), 6), (1, 5));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
}

#[test]
fn a_block_whose_parent_is_unknown_waits_for_it() {
    let (index, prompt) = (index(), Prompt::new(1, 6));
    let tenant = index.join();
    let applied = tenant.apply(&prompt.stored(4..6, Medium::Gpu));
    assert_eq!(applied, Applied { set_aside: 2, ..Applied::default() });
    tenant.apply(&prompt.stored(1..4, Medium::Gpu));
    assert_eq!((index.stats().aside_blocks, index.stats().blocks), (5, 0));
    assert_eq!(tenant.apply(&prompt.removed(5..6, Medium::Gpu)).removed, 1, "it waits, so it can be removed");
    assert_eq!(tenant.apply(&prompt.stored(0..1, Medium::Gpu)).stored, 5);
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(5));
    assert_eq!(index.stats().aside_blocks, 0);
}

#[test]
fn one_block_under_two_names_is_held_until_both_are_removed() {
    let (index, prompt) = (index(), Prompt::new(1, 3));
    let (tenant, other) = (index.join(), prompt.renamed(1 << 60));
    tenant.apply(&prompt.stored(0..3, Medium::Gpu));
    tenant.apply(&other.stored(0..2, Medium::Cpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(3));
    tenant.apply(&prompt.removed(0..3, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), TierBlocks { gpu: 0, cpu: 2, disk: 0 });
    tenant.apply(&other.removed(0..1, Medium::Cpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
    index.check([&tenant].into_iter(), false);
}

#[test]
fn of_two_blocks_under_one_name_neither_is_claimed() {
    let (index, one, mut other) = (index(), Prompt::new(1, 4), Prompt::new(2, 3));
    let tenant = index.join();
    tenant.apply(&one.stored(0..4, Medium::Gpu));
    other.names[1] = one.names[2];
    assert_eq!(tenant.apply(&other.stored(0..3, Medium::Gpu)).ambiguous, 1);
    assert_eq!(matched(&index, &tenant, &one), on_gpu(2), "who knows which of the two it holds");
    assert_eq!(matched(&index, &tenant, &other), on_gpu(1));
    tenant.apply(&one.removed(0..4, Medium::Gpu));
    tenant.apply(&other.removed(0..3, Medium::Gpu));
    assert_eq!((tenant.blocks(), index.sweep(usize::MAX)), (0, 0));
    tenant.apply(&one.stored(0..4, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &one), on_gpu(4), "a name that was removed is clear again");
}

#[test]
fn only_the_first_group_of_full_attention_is_indexed() {
    let (index, prompt) = (index(), Prompt::new(1, 3));
    let tenant = index.join();
    let in_group = |group: u32, is_full_attention: bool| {
        let mut batch = prompt.stored(0..3, Medium::Gpu);
        let stored = last_stored(&mut batch).unwrap();
        (stored.group, stored.is_full_attention) = (group, is_full_attention);
        batch
    };
    assert_eq!(tenant.apply(&in_group(0, false)), Applied::default());
    assert_eq!(tenant.apply(&in_group(2, true)).stored, 3);
    assert_eq!(tenant.apply(&in_group(3, true)), Applied::default());
    assert_eq!(tenant.apply(&prompt.removed(0..3, Medium::Gpu)), Applied::default(), "it is of group 0");
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(3));
    tenant.clear();
    assert_eq!(tenant.apply(&in_group(3, true)).stored, 3, "after a restart the group is learned again");
}

#[test]
fn what_a_clear_ends_is_gone_at_once_and_swept_later() {
    let (index, prompt) = (index(), Prompt::new(1, 2000));
    let (tenant, other) = (index.join(), index.join());
    for tenant in [&tenant, &other] {
        tenant.apply(&prompt.stored(0..2000, Medium::Gpu));
    }
    let slot = tenant.slot();
    tenant.clear();
    assert_ne!(tenant.slot(), slot);
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
    assert_eq!(matched(&index, &other, &prompt), on_gpu(2000), "another engine's blocks went");
    assert_eq!((tenant.blocks(), index.stats().blocks, tenant.block_tokens()), (0, 2000, None));
    let before = index.stats().bytes;
    tenant.apply(&prompt.stored(0..10, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(10));
    assert!(index.sweep(usize::MAX) > 1900, "a clear takes constant time, so it cannot have removed the blocks");
    assert!(index.stats().bytes < before);
    index.check([&tenant, &other].into_iter(), false);
    drop(tenant);
    assert_eq!(index.stats().tenants, 1);
}

#[test]
fn changes_sweep_what_clears_leave() {
    let (index, prompt) = (index(), Prompt::new(1, 300));
    let tenant = index.join();
    tenant.apply(&prompt.stored(0..300, Medium::Gpu));
    tenant.clear();
    for _ in 0..60 {
        tenant.apply(&prompt.stored(0..1, Medium::Gpu));
    }
    assert_eq!(index.sweep(usize::MAX), 0);
}

#[test]
fn the_engines_own_clear_ends_what_it_held_before_in_the_same_message() {
    let (index, prompt, other) = (index(), Prompt::new(1, 3), Prompt::new(2, 3));
    let tenant = index.join();
    tenant.apply(&prompt.stored(0..3, Medium::Gpu));
    let mut batch = other.stored(0..3, Medium::Gpu);
    batch.events.insert(0, Event::Cleared);
    tenant.apply(&batch);
    assert_eq!((matched(&index, &tenant, &prompt), matched(&index, &tenant, &other)), (on_gpu(0), on_gpu(3)));
    assert_eq!(tenant.block_tokens(), Some(BLOCK_TOKENS), "the engine is the same");
    let slot = index.join().slot();
    assert_ne!(slot, tenant.slot());
}

#[test]
fn the_block_size_is_the_longest_seen() {
    let index = index();
    let tenant = index.join();
    let mut batch = Batch::default();
    for (name, tokens) in [(1, 3u32), (2, 16), (3, 5)] {
        let ids: Vec<u32> = (0..tokens).collect();
        batch.push_stored(&[EngineHash(name)], None, &ids, NonZeroU32::new(tokens).unwrap(), Medium::Gpu);
    }
    tenant.apply(&batch);
    assert_eq!(tenant.block_tokens(), NonZeroU32::new(16));
}

#[test]
fn adapters_are_known_while_a_tenant_is_there_that_named_them() {
    let (index, prompt) = (index(), Prompt::new(1, 1));
    let (one, other) = (index.join(), index.join());
    let of = |adapter: &str| {
        let mut batch = prompt.stored(0..1, Medium::Gpu);
        last_stored(&mut batch).unwrap().adapter = Some(adapter.into());
        batch
    };
    for tenant in [&one, &other] {
        tenant.apply(&of("shared"));
    }
    one.apply(&of("own"));
    assert!(index.knows_adapter("shared") && index.knows_adapter("own") && !index.knows_adapter("none"));
    drop(one);
    assert!(index.knows_adapter("shared") && !index.knows_adapter("own"));
    for nth in 0..400 {
        other.apply(&of(&format!("adapter {nth}")));
    }
    let known = (0..400).filter(|nth| index.knows_adapter(&format!("adapter {nth}"))).count();
    assert_eq!(known, 255, "with the shared one there are 256 names of a tenant");
    other.apply(&of(&"long".repeat(100)));
    assert!(!index.knows_adapter(&"long".repeat(100)));
}

#[test]
fn events_whose_parts_do_not_fit_together_change_nothing() {
    let (index, prompt) = (index(), Prompt::new(1, 3));
    let tenant = index.join();
    let spoilt = |spoil: fn(&mut crate::kv_events::Stored)| {
        let mut batch = prompt.stored(0..3, Medium::Gpu);
        spoil(last_stored(&mut batch).unwrap());
        batch
    };
    let unusable = Applied { unusable_events: 1, ..Applied::default() };
    assert_eq!(tenant.apply(&spoilt(|stored| stored.hashes = 1..4)), unusable);
    assert_eq!(tenant.apply(&spoilt(|stored| stored.tokens = 0..13)), unusable);
    assert_eq!(tenant.apply(&spoilt(|stored| stored.tokens = 0..8)), unusable, "a block without ids");
    assert_eq!(tenant.apply(&spoilt(|stored| stored.extras = 0..1)), unusable);
    assert_eq!((index.stats().blocks, index.stats().bytes), (0, 0));
    tenant.apply(&prompt.stored(0..3, Medium::Gpu));
    let mut removal = prompt.removed(0..3, Medium::Gpu);
    removal.hashes.pop();
    assert_eq!(tenant.apply(&removal), unusable);
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(3));
}

#[test]
fn a_prompt_of_a_hundred_thousand_blocks_is_lost_and_found_by_its_head() {
    let (index, prompt) = (index(), Prompt::new(1, 100_000));
    let tenant = index.join();
    tenant.apply(&prompt.stored(0..prompt.len(), Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(100_000));
    tenant.apply(&prompt.removed(0..1, Medium::Gpu));
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(0));
    tenant.apply(&prompt.stored(0..1, Medium::Disk));
    assert_eq!(matched(&index, &tenant, &prompt), TierBlocks { gpu: 0, cpu: 0, disk: 100_000 });
    tenant.apply(&prompt.removed(1..100_000, Medium::Gpu));
    assert_eq!((matched(&index, &tenant, &prompt).total(), tenant.blocks()), (1, 1));
    index.check([&tenant].into_iter(), false);
}

#[test]
fn a_fleet_that_knows_a_prompt_to_all_lengths_is_told_apart() {
    let (index, prompt) = (index(), Prompt::new(1, 300));
    let fleet: Vec<ExactTenant> = (0..120).map(|_| index.join()).collect();
    let length = |nth: usize| nth * 37 % 301;
    for (nth, tenant) in fleet.iter().enumerate() {
        tenant.apply(&prompt.stored(0..length(nth), Medium::Gpu));
    }
    for (nth, tenant) in fleet.iter().enumerate() {
        assert_eq!(matched(&index, tenant, &prompt), on_gpu(length(nth) as u32), "tenant {nth}");
    }
    index.check(fleet.iter(), false);
}

#[test]
fn what_comes_behind_a_refused_block_is_refused_and_does_not_wait() {
    let index = Arc::new(ExactIndex::new(40_000, 42));
    let (tenant, prompt) = (index.join(), Prompt::new(1, 1000));
    // The end waits for its beginning, which then does not fit.
    tenant.apply(&prompt.stored(990..991, Medium::Gpu));
    let applied = tenant.apply(&prompt.stored(0..990, Medium::Gpu));
    assert!((50..500).contains(&applied.stored), "{} blocks are stored in 40 kB", applied.stored);
    assert_eq!(applied.stored + applied.refused, 991);
    let behind = tenant.apply(&prompt.stored(991..1000, Medium::Gpu));
    assert_eq!(behind, Applied { refused: 9, ..Applied::default() });
    assert_eq!(index.stats().aside_blocks, 0);
    assert_eq!(matched(&index, &tenant, &prompt), on_gpu(applied.stored as u32));
    assert_eq!(index.stats().refused_blocks_total, 1000 - applied.stored);
    index.check([&tenant].into_iter(), false);
}

#[test]
fn where_bytes_are_short_what_was_left_makes_room_for_what_comes() {
    let index = Arc::new(ExactIndex::new(70_000, 42));
    let (tenant, prompt) = (index.join(), Prompt::new(1, 250));
    for round in 0..20 {
        for at in 0..250 {
            tenant.apply(&prompt.stored(at..at + 1, Medium::Gpu));
        }
        assert_eq!((index.stats().refused_blocks_total, tenant.blocks()), (0, 250), "round {round}");
        assert!(index.stats().bytes > 35_000, "there is room for both");
        tenant.clear();
    }
}

#[test]
fn tenants_for_which_there_is_no_slot_are_refused() {
    let (index, prompt) = (index(), Prompt::new(1, 3));
    let there = index.join();
    while index.slots.take() != Slot::NOWHERE {}
    let tenants = [index.join(), index.join()];
    assert_eq!(tenants[0].apply(&prompt.stored(0..3, Medium::Gpu)).refused, 3);
    assert_eq!(matched(&index, &tenants[1], &prompt), on_gpu(0), "it shares a slot with another");
    there.apply(&prompt.stored(0..3, Medium::Gpu));
    assert_eq!(matched(&index, &there, &prompt), on_gpu(3));
    there.clear();
    assert_eq!(there.slot(), Slot::NOWHERE);
    assert_eq!(matched(&index, &there, &prompt), on_gpu(0));
    index.sweep(usize::MAX);
    assert_ne!(index.join().slot(), Slot::NOWHERE, "a swept slot is there again");
}

#[test]
fn tenants_that_come_and_go_without_a_block_use_one_slot() {
    let index = index();
    let places: std::collections::HashSet<usize> = (0..10).map(|_| index.join().slot().place()).collect();
    assert_eq!((places.len(), index.sweep(usize::MAX)), (1, 0));
}

#[test]
fn a_refused_block_that_is_stored_later_is_as_any_other() {
    let index = Arc::new(ExactIndex::new(40_000, 42));
    let (filler, tenant) = (index.join(), index.join());
    let (filling, prompt) = (Prompt::new(1, 1000), Prompt::new(2, 2));
    filler.apply(&filling.stored(0..1000, Medium::Gpu));
    assert_eq!(tenant.apply(&prompt.stored(0..1, Medium::Gpu)).refused, 1);
    filler.clear();
    index.sweep(usize::MAX);
    assert_eq!(tenant.apply(&prompt.stored(0..1, Medium::Gpu)).stored, 1);
    assert_eq!(tenant.apply(&prompt.removed(0..1, Medium::Gpu)).removed, 1);
    let behind = tenant.apply(&prompt.stored(1..2, Medium::Gpu));
    assert_eq!(behind, Applied { set_aside: 1, ..Applied::default() }, "it is still taken for refused");
}
