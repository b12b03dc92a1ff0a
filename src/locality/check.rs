//! Recomputes from scratch what the writer keeps up to date, for tests.

use std::collections::{HashMap, HashSet};

use super::LocalityIndex;
use super::Tenant;
use super::holder::Counts;
use super::lru::HoldId;
use super::run::Run;
use super::writer::Writer;
use crate::prefix::BlockHash;

impl LocalityIndex {
    /// Panics where any two parts of the index disagree.
    pub(super) fn check(&self) {
        let writer = self.writer.lock();
        let (mut run_bytes, mut runs, mut holders) = (0, 0, HashMap::new());
        let table_bytes = self.shards.for_each(|key, run| {
            check_run(key, run);
            run_bytes += run.bytes();
            runs += 1;
            for holder in run.holders() {
                let entry = (holder.counts(), holder.hold, run.blocks());
                holders.insert((holder.tenant, key), entry);
            }
        });
        assert_eq!(writer.bytes(), run_bytes + table_bytes + writer.holds.bytes(), "the bytes are not what they are");
        assert!(writer.bytes() <= writer.budget_bytes(), "{} bytes are over the budget", writer.bytes());
        assert_eq!(writer.totals.runs, runs);
        assert_eq!(writer.holds.len(), holders.len(), "a hold without a holder, or the reverse");
        check_lists(&writer, &holders);
        assert_eq!(self.stats().bytes as usize, writer.bytes(), "what is published is out of date");
    }
}

type Holders = HashMap<(Tenant, BlockHash), (Counts, HoldId, usize)>;

fn check_run(key: BlockHash, run: &Run) {
    assert_eq!(run.hashes()[0], key, "a run is under another key");
    assert!(!run.holders().is_empty(), "a run without holders was left");
    let reach = run.holders().iter().map(|h| h.counts().reach(run.blocks())).max();
    assert_eq!(reach, Some(run.blocks()), "blocks that nobody reaches were left");
    let order: Vec<_> = run.holders().iter().map(|h| (h.tenant.slot, h.tenant.generation)).collect();
    assert!(order.is_sorted_by(|a, b| a < b), "holders are out of order");
}

fn check_lists(writer: &Writer, holders: &Holders) {
    let (mut blocks, mut in_flight_blocks, mut listed) = (0u64, 0u64, 0);
    writer.for_each_tenant(|tenant, lists, live| {
        let (mut held, mut claimed) = (0, 0);
        let used: Vec<_> = lists.used.iter(&writer.holds).collect();
        let all: Vec<_> = used.iter().copied().chain(lists.claimed.iter(&writer.holds)).collect();
        let mut seen = HashSet::new();
        for (place, id) in all.iter().enumerate() {
            let run = writer.holds.run(*id);
            let (Counts { blocks, in_flight }, hold, run_blocks) = holders[&(tenant, run)];
            assert!(seen.insert(run), "a tenant holds a run twice");
            assert_eq!(hold, *id, "a holder points to another hold");
            assert_eq!(blocks, writer.holds.blocks(*id), "hold and holder disagree");
            assert_eq!(blocks > 0, place < used.len(), "a hold is in the wrong list");
            assert!(blocks > 0 || in_flight > 0, "an empty hold was left");
            held += blocks;
            claimed += if in_flight > 0 { run_blocks as u64 } else { 0 };
        }
        listed += all.len();
        if let Some(slot) = live {
            assert_eq!((slot.blocks, slot.in_flight_blocks), (held, claimed), "a tenant's sums are wrong");
            assert!(slot.blocks <= slot.capacity_blocks, "a tenant is over its capacity");
            blocks += u64::from(held);
            in_flight_blocks += claimed;
        }
    });
    assert_eq!(listed, holders.len(), "a hold is in no list");
    assert_eq!((writer.totals.blocks, writer.totals.in_flight_blocks), (blocks, in_flight_blocks));
}
