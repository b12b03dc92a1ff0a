//! Assumed entries: an LRU of blocks per tenant, fed by our own decisions.
//!
//! The result is exactly that of a list of single blocks in which a prompt's blocks are touched from the last to the
//! first: the end of a prompt goes before its beginning, as engines free their blocks. Each step here is per run.

use super::Tenant;
use super::bytes::hashes_within;
use super::holder::{Counts, Holder};
use super::lru::HoldId;
use super::run::{Overlap, Run};
use super::shards::MAX_RUNS;
use super::writer::{Keep, Room, Step, Writer};
use crate::prefix::BlockHash;

/// One prompt may fill this part of the budget at most, or the first oversized one would flush everything.
const BUDGET_SHARE: usize = 4;

/// A run that lies whole along a chain, and the tenant's holder in it.
pub(super) struct Admitted {
    pub(super) key: BlockHash,
    pub(super) hold: HoldId,
    pub(super) run_blocks: usize,
    /// The holder was made just now: it has nothing yet, and its hold is in no list.
    pub(super) is_new: bool,
}

/// How far the tenant holds a chain already.
struct Touched {
    /// Blocks before the last run that it holds any of: where to go on.
    base: usize,
    /// Blocks that it holds.
    blocks: u32,
    /// The last of its holds along the chain.
    last: Option<HoldId>,
}

/// How a chain ends among the runs.
enum End {
    /// With a run, or in blocks that are not known yet.
    Outside,
    /// Before the end of the run `key`, of which it shares `at` blocks; `base` blocks of the chain come before.
    Inside { key: BlockHash, base: usize, at: usize },
    /// After more runs than can be; the first ones have this many blocks.
    TooFar(usize),
}

/// What a tenant lacks to hold a run.
enum Missing {
    Run,
    Holder,
}

enum Cut {
    Done,
    /// Something was evicted for it: look again.
    Again,
    /// There is no room, or two chains collide.
    Refused,
}

impl Writer {
    /// Notes that the tenant holds the blocks of `chain`, the first ones as the most recently used; `claimed` of them are
    /// claimed at present.
    pub(super) fn insert(&mut self, tenant: Tenant, chain: &[BlockHash], claimed: usize) {
        self.sweep_some();
        let chain = self.clip(tenant, chain);
        let Some(capacity_blocks) = self.live(tenant).map(|slot| slot.capacity_blocks) else { return };
        // Where a claim ends a run ends, as long as it is claimed.
        let usable = if chain.len() == claimed { claimed } else { self.cut_at_end(chain) };
        let chain = &chain[..usable];
        let touched = self.touch(tenant, chain);
        // Room first, so that bytes that the capacity frees need not come from others. What was touched stays.
        let more = (chain.len() as u32).saturating_sub(touched.blocks);
        self.evict_to(tenant, capacity_blocks - more);
        self.extend(tenant, chain, &touched);
        // Only where hashes collide within a chain can there be an excess.
        self.evict_to(tenant, capacity_blocks);
    }

    /// The leading part of a chain that the tenant could hold at most.
    pub(super) fn clip<'a>(&mut self, tenant: Tenant, chain: &'a [BlockHash]) -> &'a [BlockHash] {
        let capacity = self.live(tenant).map_or(0, |slot| slot.capacity_blocks as usize);
        let affordable = hashes_within(self.budget_bytes() / BUDGET_SHARE);
        &chain[..chain.len().min(capacity).min(affordable)]
    }

    /// Cuts the run in which the chain ends or leaves what is known, so that the chain covers whole runs. Returns how
    /// much of the chain can be used: where the cut is refused, only what comes before.
    pub(super) fn cut_at_end(&mut self, chain: &[BlockHash]) -> usize {
        let mut usable = chain.len();
        loop {
            match self.find_end(&chain[..usable]) {
                End::Outside => return usable,
                End::TooFar(base) => usable = base,
                End::Inside { key, base, at } => match self.try_cut(key, at) {
                    Cut::Done => return usable,
                    Cut::Again => {}
                    Cut::Refused => usable = base,
                },
            }
        }
    }

    fn find_end(&self, chain: &[BlockHash]) -> End {
        let mut base = 0;
        for _ in 0..MAX_RUNS {
            let Some(&key) = chain.get(base) else { return End::Outside };
            match self.shards.read(key, |run| run.compare(&chain[base..])) {
                None => return End::Outside,
                Some(overlap) if overlap.is_whole() => base += overlap.run,
                Some(overlap) => return End::Inside { key, base, at: overlap.shared },
            }
        }
        if base < chain.len() { End::TooFar(base) } else { End::Outside }
    }

    fn try_cut(&mut self, key: BlockHash, at: usize) -> Cut {
        let read = self.shards.read(key, |run| (run.hashes()[at], run.cut_growth_bytes(at), run.reaching_beyond(at)));
        let Some((tail, run_growth, moved)) = read else { return Cut::Again };
        if self.shards.contains(tail) {
            // The same hash in two places: not a chain any more. Rather hold less than replace what is there.
            return Cut::Refused;
        }
        let growth = run_growth + self.shards.growth_bytes(tail) + self.holds.growth_bytes(moved);
        match self.make_room(growth, None) {
            Room::Free => self.cut(key, at),
            Room::Made => return Cut::Again,
            Room::None => return Cut::Refused,
        }
        Cut::Done
    }

    /// Makes what the tenant holds along the chain its newest, the first blocks newest of all.
    fn touch(&mut self, tenant: Tenant, chain: &[BlockHash]) -> Touched {
        let mut touched = Touched { base: 0, blocks: 0, last: None };
        let mut base = 0;
        self.path.clear();
        while base < chain.len() {
            let look =
                |run: &Run| (run.blocks(), run.holder(tenant).map(|holder| (holder.hold, holder.counts().blocks)));
            let Some((run_blocks, Some((hold, blocks)))) = self.shards.read(chain[base], look) else { break };
            if blocks == 0 {
                break;
            }
            self.path.push(Step { hold, run_blocks: run_blocks as u32 });
            touched.base = base;
            touched.blocks += blocks;
            if (blocks as usize) < run_blocks {
                break;
            }
            base += run_blocks;
        }
        touched.last = self.path.last().map(|step| step.hold);
        let path = std::mem::take(&mut self.path);
        if let Some((slot, holds)) = self.live_lists(tenant) {
            path.iter().rev().for_each(|step| slot.lists.used.make_newest(holds, step.hold));
        }
        self.path = path;
        touched
    }

    /// Adds the blocks of the chain that the tenant does not hold yet, behind those that it does.
    fn extend(&mut self, tenant: Tenant, chain: &[BlockHash], touched: &Touched) {
        let (mut base, mut last, mut kept, mut previous) = (touched.base, touched.last, touched.blocks, None);
        while base < chain.len() && (kept as usize) < chain.len() {
            let keep = Keep { tenant, newest_blocks: kept };
            let Some(admitted) = self.admit(tenant, &chain[base..], previous, Some(keep)) else { return };
            kept += self.fill(tenant, &admitted, last);
            last = Some(admitted.hold);
            previous = Some(admitted.key);
            base += admitted.run_blocks;
        }
    }

    /// Lets the tenant hold the whole of a run, its hold placed behind `newer` (or itself the newest of the chain);
    /// returns how many more of the tenant's newest blocks are the chain's.
    fn fill(&mut self, tenant: Tenant, admitted: &Admitted, newer: Option<HoldId>) -> u32 {
        let Admitted { key, hold, is_new, .. } = *admitted;
        let run_blocks = admitted.run_blocks as u32;
        let before = self.holds.blocks(hold);
        let grown = run_blocks.saturating_sub(before);
        if grown > 0 {
            self.recount(key, tenant, |counts| Counts { blocks: run_blocks, ..counts });
            self.holds.set_blocks(hold, run_blocks);
            self.totals.blocks += u64::from(grown);
        }
        let Some((slot, holds)) = self.live_lists(tenant) else { return 0 };
        slot.blocks += grown;
        if newer == Some(hold) {
            return grown;
        }
        if before > 0 {
            // Held, though not what comes before it: only where hashes collide.
            slot.lists.used.unlink(holds, hold);
        } else if !is_new {
            slot.lists.claimed.unlink(holds, hold);
        }
        slot.lists.used.insert_behind(holds, newer, hold);
        run_blocks
    }

    /// The run that begins `rest`, which comes after the run `previous`, with a holder of the tenant; what is missing
    /// is made. Nothing if there is no room even after evicting all that need not be kept.
    pub(super) fn admit(
        &mut self,
        tenant: Tenant,
        rest: &[BlockHash],
        previous: Option<BlockHash>,
        keep: Option<Keep>,
    ) -> Option<Admitted> {
        let key = rest[0];
        let mut is_new = false;
        loop {
            let look = |run: &Run| {
                let overlap = run.compare(rest);
                let hold = run.holder(tenant).map(|it| it.hold).ok_or_else(|| run.holder_growth_bytes());
                (overlap, hold, run.extension_bytes(rest.len().saturating_sub(overlap.run)))
            };
            let (missing, bytes) = match self.shards.read(key, look) {
                Some((overlap, ..)) if !overlap.is_whole() => return None,
                Some((Overlap { run, .. }, Ok(hold), extension)) => {
                    let Some(run_blocks) = self.extend_run(key, run, rest, extension, keep) else { continue };
                    return Some(Admitted { key, hold, run_blocks, is_new });
                }
                Some((_, Err(growth), _)) => (Missing::Holder, growth),
                None => (Missing::Run, self.shards.growth_bytes(key) + Run::bytes_for(rest.len())),
            };
            match (self.make_room(bytes + self.holds.growth_bytes(1), keep), missing) {
                (Room::Made, _) => {}
                (Room::Free, Missing::Run) => return Some(self.add_run(tenant, rest, previous)),
                (Room::None, Missing::Run) => return self.add_run_that_fits(tenant, rest, previous),
                (Room::Free, Missing::Holder) => {
                    self.add_holder(tenant, key);
                    is_new = true;
                }
                (Room::None, Missing::Holder) => return None,
            }
        }
    }

    /// Makes the run `key` longer by the blocks of `rest` after its `run_blocks`, if they are not known and the run can
    /// be longer, by so many `bytes`; returns how long it is then, or nothing if something was evicted for it, perhaps
    /// from this very run.
    fn extend_run(
        &mut self,
        key: BlockHash,
        run_blocks: usize,
        rest: &[BlockHash],
        bytes: Option<usize>,
        keep: Option<Keep>,
    ) -> Option<usize> {
        let more = &rest[run_blocks..];
        let Some(bytes) = bytes.filter(|_| !self.shards.contains(more[0])) else { return Some(run_blocks) };
        match self.make_room(bytes, keep) {
            Room::Free => self.lengthen(key, more),
            Room::Made => return None,
            Room::None => {}
        }
        // Read again, for what was evicted in vain can have been at this run's end.
        self.shards.read(key, Run::blocks)
    }

    fn lengthen(&mut self, key: BlockHash, more: &[BlockHash]) {
        let Some(longer) = self.shards.read(key, |run| run.extended(more)) else { return };
        let bytes = self.shards.write(key, |run| {
            let before = run.bytes();
            let former = run.lengthen(longer);
            (before, run.bytes(), former)
        });
        if let Some((before, after, _former)) = bytes {
            self.charge_run_bytes(before, after);
        }
    }

    fn add_run_that_fits(
        &mut self,
        tenant: Tenant,
        rest: &[BlockHash],
        previous: Option<BlockHash>,
    ) -> Option<Admitted> {
        let fixed = self.shards.growth_bytes(rest[0]) + self.holds.growth_bytes(1) + Run::bytes_for(0);
        let blocks = hashes_within(self.left_bytes().saturating_sub(fixed)).min(rest.len());
        (blocks > 0).then(|| self.add_run(tenant, &rest[..blocks], previous))
    }

    fn add_run(&mut self, tenant: Tenant, hashes: &[BlockHash], previous: Option<BlockHash>) -> Admitted {
        if let Some(previous) = previous {
            self.shards.read(previous, Run::mark_followed);
        }
        let (key, mut run) = (hashes[0], Run::new(hashes));
        let hold = self.holds.add(key, 0);
        run.add_holder(Holder::new(tenant, hold, Counts::NONE));
        let bytes = run.bytes();
        let table_growth = self.shards.insert(key, Box::new(run));
        self.charge_run_bytes(0, bytes + table_growth);
        self.totals.runs += 1;
        Admitted { key, hold, run_blocks: hashes.len(), is_new: true }
    }

    fn add_holder(&mut self, tenant: Tenant, key: BlockHash) {
        let holder = Holder::new(tenant, self.holds.add(key, 0), Counts::NONE);
        let growth = self.shards.write(key, |run| run.add_holder(holder)).unwrap_or(0);
        self.charge_run_bytes(0, growth);
    }
}
