//! Readers beside writers, on real threads: no lookup sees what was at no moment true.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use super::tests::{Prompt, matched};
use super::{ExactIndex, ExactMatches, ExactTenant, TierBlocks};
use crate::kv_events::Medium;

const WRITES: usize = 3000;

/// Counts a thread out even when it panics, so that the others end too.
struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `write` that many times on each of two threads, each for a tenant of its own, and `look` on two others until they
/// are done.
fn beside(
    tenants: [&ExactTenant; 2],
    write: impl Fn(&ExactTenant, &mut fastrand::Rng) + Sync,
    look: impl Fn(&mut ExactMatches, &mut fastrand::Rng) + Sync,
) {
    let (start, writing, looks) = (Barrier::new(4), AtomicUsize::new(2), AtomicUsize::new(0));
    let (write, look, start, writing, looks) = (&write, &look, &start, &writing, &looks);
    thread::scope(|scope| {
        for (seed, tenant) in tenants.into_iter().enumerate() {
            scope.spawn(move || {
                let (mut rng, _writing) = (fastrand::Rng::with_seed(seed as u64), Writing(writing));
                start.wait();
                (0..WRITES).for_each(|_| write(tenant, &mut rng));
            });
            scope.spawn(move || {
                let (mut rng, mut matches) = (fastrand::Rng::with_seed(100 + seed as u64), ExactMatches::new());
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

fn medium(rng: &mut fastrand::Rng) -> Medium {
    [Medium::Gpu, Medium::Cpu, Medium::Disk][rng.usize(..3)]
}

/// Stores or removes some of a prompt's blocks.
fn change(tenant: &ExactTenant, prompt: &Prompt, first: usize, rng: &mut fastrand::Rng) {
    let (a, b) = (rng.usize(first..prompt.len()), rng.usize(first..prompt.len()));
    let blocks = a.min(b)..a.max(b) + 1;
    match rng.bool() {
        true => tenant.apply(&prompt.stored(blocks, medium(rng))),
        false => tenant.apply(&prompt.removed(blocks, medium(rng))),
    };
}

#[test]
fn what_a_tenant_always_holds_always_matches_while_others_hold_parts_of_it() {
    let (index, prompt) = (Arc::new(ExactIndex::new(64 << 20, 42)), Prompt::new(1, 60));
    let (steady, a, b, third) = (index.join(), index.join(), index.join(), index.join());
    // With a third there are holders enough that lists of them come and go.
    steady.apply(&prompt.stored(0..60, Medium::Gpu));
    third.apply(&prompt.stored(0..30, Medium::Cpu));
    let chain = prompt.chain();
    beside(
        [&a, &b],
        |tenant, rng| change(tenant, &prompt, 0, rng),
        |matches, _| {
            index.lookup(&chain, matches);
            assert_eq!(matches.levels(steady.slot()).gpu, 60, "a gap was seen");
            assert_eq!(matches.levels(third.slot()), TierBlocks { gpu: 0, cpu: 30, disk: 0 });
        },
    );
    index.check([&steady, &third, &a, &b].into_iter(), false);
}

#[test]
fn the_beginning_that_is_always_held_is_seen_at_all_times_while_ends_come_and_go() {
    let (index, prompt) = (Arc::new(ExactIndex::new(64 << 20, 42)), Prompt::new(1, 50));
    let (a, b) = (index.join(), index.join());
    for tenant in [&a, &b] {
        tenant.apply(&prompt.stored(0..20, Medium::Gpu));
    }
    let chain = prompt.chain();
    beside(
        [&a, &b],
        |tenant, rng| change(tenant, &prompt, 20, rng),
        |matches, _| {
            index.lookup(&chain, matches);
            for tenant in [&a, &b] {
                let levels = matches.levels(tenant.slot());
                assert!(levels.gpu >= 20 && levels.total() <= 50, "{levels:?} match, which was never true");
            }
        },
    );
    index.check([&a, &b].into_iter(), false);
}

#[test]
fn no_tenant_matches_what_it_never_held() {
    let index = Arc::new(ExactIndex::new(64 << 20, 42));
    let (left, right) = (Prompt::new(1, 40), Prompt::new(2, 40));
    let (a, b) = (index.join(), index.join());
    let chains = [left.chain(), right.chain()];
    beside(
        [&a, &b],
        |tenant, rng| {
            let prompt = if tenant.slot() == a.slot() { &left } else { &right };
            change(tenant, prompt, 0, rng);
        },
        |matches, rng| {
            let asked = rng.usize(..2);
            index.lookup(&chains[asked], matches);
            let other = [&b, &a][asked];
            assert_eq!(matches.levels(other.slot()).total(), 0, "a tenant matches a strange prompt");
        },
    );
    index.check([&a, &b].into_iter(), false);
}

/// What a writer says that a tenant holds. Odd while it changes.
struct Told(AtomicUsize);

impl Told {
    fn change(&self, change: impl FnOnce()) {
        self.0.fetch_add(1, Ordering::SeqCst);
        change();
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of the change since which nothing has changed, if nothing does while `look` looks.
    fn steady<R>(&self, look: impl FnOnce() -> R) -> Option<(usize, R)> {
        let before = self.0.load(Ordering::SeqCst);
        let seen = look();
        (before.is_multiple_of(2) && self.0.load(Ordering::SeqCst) == before).then_some((before / 2, seen))
    }
}

#[test]
fn between_changes_exactly_what_is_held_matches() {
    let (index, prompt) = (Arc::new(ExactIndex::new(64 << 20, 42)), Prompt::new(1, 40));
    let tenants = [index.join(), index.join()];
    let told = [(); 2].map(|()| Told(AtomicUsize::new(0)));
    let chain = prompt.chain();
    // Of each four changes: all stored, the first removed, all lost, nothing new.
    let expected = [0, 40, 0, 0];
    let seen = AtomicUsize::new(0);
    beside(
        [&tenants[0], &tenants[1]],
        |tenant, _| {
            let told = &told[usize::from(std::ptr::eq(tenant, &tenants[1]))];
            told.change(|| match told.0.load(Ordering::SeqCst) / 2 % 4 {
                0 => {
                    tenant.apply(&prompt.stored(0..40, Medium::Gpu));
                }
                1 => {
                    tenant.apply(&prompt.removed(0..1, Medium::Gpu));
                }
                2 => tenant.clear(),
                _ => {
                    index.sweep(64);
                }
            });
        },
        |matches, rng| {
            let which = rng.usize(..2);
            let look = || {
                index.lookup(&chain, matches);
                matches.levels(tenants[which].slot()).gpu
            };
            if let Some((changes, blocks)) = told[which].steady(look) {
                assert_eq!(blocks, expected[changes % 4], "after {changes} changes");
                seen.fetch_add(1, Ordering::Relaxed);
            }
        },
    );
    assert!(seen.load(Ordering::Relaxed) > 10, "changes never left time to look");
    index.check(tenants.iter(), false);
}

#[test]
fn tenants_that_come_and_go_leave_nothing_behind() {
    let (index, prompt) = (Arc::new(ExactIndex::new(100_000, 42)), Prompt::new(1, 60));
    let (a, b) = (index.join(), index.join());
    let chain = prompt.chain();
    beside(
        [&a, &b],
        |tenant, rng| match rng.u8(..) {
            0..16 => tenant.clear(),
            16..32 => {
                let short_lived = index.join();
                change(&short_lived, &prompt, 0, rng);
                assert!(matched(&index, &short_lived, &prompt).total() <= 60);
            }
            _ => change(tenant, &prompt, 0, rng),
        },
        |matches, _| {
            index.lookup(&chain, matches);
            assert!(matches.levels(a.slot()).total() <= 60);
        },
    );
    index.check([&a, &b].into_iter(), true);
    drop((a, b));
    index.sweep(usize::MAX);
    let stats = index.stats();
    assert_eq!((stats.bytes, stats.blocks, stats.aside_blocks, stats.tenants), (0, 0, 0, 0));
}
