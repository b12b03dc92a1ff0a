//! The behaviour of the index in single statements.

use std::sync::Arc;

use super::Tenant;
use super::shards::MAX_RUNS;
use super::{LocalityIndex, Matches};
use crate::prefix::BlockHash;

const PLENTY: usize = 1 << 20;

/// The chain of a prompt whose blocks have these labels: equal labels up to a block, equal hash.
pub(super) fn chain(labels: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
    let next = |parent: &mut u64, label: u64| {
        *parent = (*parent ^ (label + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) ^ label;
        Some(BlockHash(*parent))
    };
    labels.into_iter().scan(1, next).collect()
}

pub(super) fn matched(index: &LocalityIndex, tenant: Tenant, chain: &[BlockHash]) -> usize {
    let mut matches = Matches::new();
    index.lookup(chain, &mut matches);
    matches.blocks(tenant) as usize
}

fn index() -> Arc<LocalityIndex> {
    Arc::new(LocalityIndex::new(PLENTY, 42))
}

#[test]
fn nothing_matches_in_an_empty_index_and_no_prompt_matches_anything() {
    let index = index();
    let tenant = index.join(100);
    assert_eq!(matched(&index, tenant, &chain(0..9)), 0);
    index.insert(tenant, &chain(0..9));
    assert_eq!(matched(&index, tenant, &[]), 0);
}

#[test]
fn a_prompt_that_leaves_another_one_matches_up_to_there() {
    let index = index();
    let (a, b) = (index.join(1000), index.join(1000));
    index.insert(a, &chain(0..100));
    index.insert(b, &chain((0..60).chain(500..540)));
    assert_eq!(index.stats().runs, 3, "the common part and two ends");
    let asked = chain((0..60).chain(500..600));
    assert_eq!((matched(&index, a, &asked), matched(&index, b, &asked)), (60, 100));
}

#[test]
fn a_conversation_of_many_turns_stays_one_run() {
    let index = index();
    let (a, b) = (index.join(10_000), index.join(10_000));
    for turn in 1..=50 {
        index.begin(a, chain(0..turn * 10).into()).commit();
        index.check();
    }
    assert_eq!(index.stats().runs, 1, "every turn made a run of its own");
    index.insert(b, &chain(0..520));
    assert_eq!(index.stats().runs, 1, "a turn at another backend made a run of its own");
    let asked = chain(0..600);
    assert_eq!((matched(&index, a, &asked), matched(&index, b, &asked)), (500, 520));
    index.insert(a, &chain((0..500).chain(7000..7010)));
    assert_eq!(index.stats().runs, 3, "an end that another prompt leaves is a cut again");
    assert_eq!((matched(&index, a, &asked), matched(&index, b, &asked)), (500, 520));
    index.check();
}

#[test]
fn a_run_does_not_grow_past_the_end_of_a_claim() {
    let index = index();
    let tenant = index.join(10_000);
    let first = index.begin(tenant, chain(0..10).into());
    let second = index.begin(tenant, chain(0..20).into());
    drop(first);
    index.check();
    assert_eq!(matched(&index, tenant, &chain(0..30)), 20);
    drop(second);
    assert_eq!((matched(&index, tenant, &chain(0..30)), index.stats().runs), (0, 0));
}

#[test]
fn a_prompt_cut_into_single_blocks_takes_a_bounded_number_of_steps() {
    let index = index();
    let tenant = index.join(10_000);
    for end in (1..=2000).rev() {
        index.insert(tenant, &chain(0..end));
    }
    let runs = index.stats().runs;
    assert!((MAX_RUNS..=2000).contains(&(runs as usize)), "{runs} runs");
    assert!(matched(&index, tenant, &chain(0..2000)) >= MAX_RUNS, "the first runs are looked at");
    let guard = index.begin(tenant, chain(0..2000).into());
    index.check();
    drop(guard);
    index.check();
}

#[test]
fn the_end_of_the_oldest_prompt_is_evicted_first() {
    let index = index();
    let tenant = index.join(30);
    let (old, new) = (chain(0..20), chain(100..120));
    index.insert(tenant, &old);
    index.insert(tenant, &new);
    assert_eq!((matched(&index, tenant, &old), matched(&index, tenant, &new)), (10, 20));
    assert_eq!((index.tenant_blocks(tenant), index.stats().evicted_blocks_total), (30, 10));
}

#[test]
fn a_prompt_larger_than_the_capacity_is_held_up_to_it() {
    let index = index();
    let tenant = index.join(30);
    index.insert(tenant, &chain(0..500));
    assert_eq!(matched(&index, tenant, &chain(0..500)), 30);
    let guard = index.begin(tenant, chain(0..500).into());
    assert_eq!(guard.claimed_blocks(), 30, "an engine cannot have more in flight than it has room for");
}

#[test]
fn a_restart_ends_what_was_held_at_once_and_leaves_the_sweeping_for_later() {
    let index = index();
    let (old, other) = (index.join(100_000), index.join(100_000));
    for prompt in 0..200 {
        index.insert(old, &chain(prompt * 100..prompt * 100 + 50));
    }
    index.insert(other, &chain(0..50));
    let guard = index.begin(old, chain(0..50).into());
    let new = index.restart(old);
    assert_ne!(old, new);
    assert_eq!(matched(&index, new, &chain(0..50)), 0, "a block outlived its engine");
    assert_eq!(matched(&index, other, &chain(0..50)), 50, "a restart took another engine's blocks");
    assert_eq!((index.stats().blocks, index.stats().overlay_blocks), (50, 0));
    assert!(index.stats().holds > 190, "a restart takes constant time, so it cannot have removed the holds");
    drop(guard);
    assert_eq!(index.sweep(usize::MAX), 200);
    assert_eq!((index.stats().holds, index.stats().runs), (1, 1));
}

#[test]
fn changes_sweep_what_restarts_leave() {
    let index = index();
    let tenant = index.join(100_000);
    for prompt in 0..64 {
        index.insert(tenant, &chain([prompt]));
    }
    let tenant = index.restart(tenant);
    for _ in 0..8 {
        index.insert(tenant, &chain([7]));
    }
    assert_eq!(index.stats().holds, 1);
}

#[test]
fn what_a_restart_leaves_goes_from_the_ends_of_prompts() {
    // Were a beginning swept before its end, the blocks between would get a second place while the end keeps its own.
    let index = index();
    let (old, other) = (index.join(1000), index.join(1000));
    for end in (10..=300).rev().step_by(10) {
        index.insert(old, &chain(0..end));
    }
    let guards: Vec<_> = (310..=600).step_by(10).map(|end| index.begin(old, chain(0..end).into())).collect();
    index.restart(old);
    index.insert(other, &chain(0..600));
    let left = chain((0..550).chain([9999]));
    index.insert(other, &left);
    assert!(index.stats().holds > 40, "all was swept already, so nothing was shown");
    assert_eq!(matched(&index, other, &left), 551, "an end that was left behind is in the way");
    drop(guards);
    index.check();
}

#[test]
fn a_guard_of_the_old_engine_does_not_touch_the_claims_of_the_new_one() {
    let index = index();
    let old = index.join(100);
    let prompt: Arc<[BlockHash]> = chain(0..10).into();
    let before = index.begin(old, Arc::clone(&prompt));
    let new = index.restart(old);
    let after = index.begin(new, Arc::clone(&prompt));
    drop(before);
    assert_eq!(matched(&index, new, &prompt), 10, "the claim was released by another engine's guard");
    drop(after);
    assert_eq!(matched(&index, new, &prompt), 0);
}

#[test]
fn a_slot_is_used_again_under_another_generation() {
    let index = index();
    let first = index.join(100);
    index.insert(first, &chain(0..10));
    index.leave(first);
    let second = index.join(100);
    assert_eq!(first.slot, second.slot, "slots must stay dense");
    assert_eq!(matched(&index, second, &chain(0..10)), 0);
    index.insert(first, &chain(0..10));
    index.leave(first);
    assert_eq!(matched(&index, second, &chain(0..10)), 0, "a tenant that left still acts");
    index.insert(second, &chain(0..10));
    assert_eq!(matched(&index, second, &chain(0..10)), 10);
}

#[test]
fn blocks_in_flight_count_from_dispatch_and_survive_eviction_until_they_end() {
    let index = index();
    let tenant = index.join(20);
    let prompt: Arc<[BlockHash]> = chain(0..15).into();
    let (first, second) = (index.begin(tenant, Arc::clone(&prompt)), index.begin(tenant, Arc::clone(&prompt)));
    first.commit();
    index.insert(tenant, &chain(100..120));
    assert_eq!(matched(&index, tenant, &prompt), 15, "a request in flight lost its blocks");
    assert_eq!(index.tenant_blocks(tenant), 20);
    drop(second);
    assert_eq!(matched(&index, tenant, &prompt), 0);
}

#[test]
fn what_does_not_fit_is_not_claimed() {
    let tiny = Arc::new(LocalityIndex::new(64, 42));
    let tenant = tiny.join(100);
    let guard = tiny.begin(tenant, chain(0..10).into());
    assert_eq!((guard.claimed_blocks(), tiny.stats().bytes), (0, 0));
    guard.commit();
    assert_eq!(tiny.tenant_blocks(tenant), 0);
}

#[test]
fn one_oversized_prompt_does_not_flush_everything() {
    let index = LocalityIndex::new(64 << 10, 42);
    let (tenant, other) = (index.join(u32::MAX), index.join(u32::MAX));
    for prompt in 0..20 {
        index.insert(other, &chain(prompt * 1000..prompt * 1000 + 100));
    }
    index.insert(tenant, &chain(50_000..1_050_000));
    let kept = (0..20).filter(|prompt| matched(&index, other, &chain(prompt * 1000..prompt * 1000 + 100)) == 100);
    assert_eq!(kept.count(), 20, "a prompt of a million blocks took the place of others");
    assert!(index.tenant_blocks(tenant) > 1000, "as much as its share allows is held");
}

#[test]
fn room_is_taken_from_the_tenant_with_the_most_blocks() {
    let index = LocalityIndex::new(256 << 10, 42);
    let (small, large) = (index.join(u32::MAX), index.join(u32::MAX));
    index.insert(small, &chain(0..100));
    for prompt in 1..1000 {
        index.insert(large, &chain(prompt * 1000..prompt * 1000 + 100));
    }
    assert!(index.stats().evicted_blocks_total > 10_000, "the budget was never reached");
    assert_eq!(matched(&index, small, &chain(0..100)), 100, "the small one was made to pay for the large one");
}
