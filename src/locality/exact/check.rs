//! Recomputes from scratch what the writers keep up to date, for tests.

use std::collections::HashMap;

use super::held::Held;
use super::level::Level;
use super::{ExactIndex, ExactTenant};

impl ExactIndex {
    /// Panics where two parts of the index disagree. `tenants` are all there are; `is_short` says that bytes may have
    /// been, so that readers are told less than there is.
    pub(super) fn check<'a>(&self, tenants: impl Iterator<Item = &'a ExactTenant>, is_short: bool) {
        let mut published: HashMap<_, usize> = HashMap::new();
        let (mut blocks, mut aside) = (0, 0);
        for tenant in tenants {
            tenant.look(|held| {
                check_tree(held, is_short);
                for node in held.tree.slab.iter().filter(|node| node.published > Level::None) {
                    *published.entry((node.key, held.slot, node.published as u8)).or_default() += 1;
                }
                assert_eq!(held.blocks, tenant.blocks(), "a tenant's sum is not its own");
                blocks += held.blocks;
                aside += held.aside.len() as u64;
            });
        }
        for retired in self.retired.lock().iter() {
            for node in retired.nodes().filter(|node| node.published > Level::None) {
                *published.entry((node.key, retired.slot, node.published as u8)).or_default() += 1;
            }
        }
        let mut seen: HashMap<_, usize> = HashMap::new();
        self.shards.for_each(|key, slot, level| *seen.entry((key, slot, level as u8)).or_default() += 1);
        assert_eq!(seen, published, "readers see what is not published, or not what is");
        let stats = self.stats();
        assert_eq!((stats.blocks, stats.aside_blocks), (blocks, aside), "the sums are not those of the tenants");
        assert!(stats.bytes <= stats.budget_bytes, "{} bytes are over the budget", stats.bytes);
    }
}

fn check_tree(held: &Held, is_short: bool) {
    let slab = &held.tree.slab;
    let mut blocks = 0;
    assert_eq!(held.tree.ids().count(), slab.len(), "a block without a name, or a name without a block");
    for id in held.tree.ids() {
        let node = &slab[id];
        assert_eq!(held.tree.find(node.name), Some(id), "a name leads elsewhere");
        let before = node.parent.some().map_or(Level::Gpu, |parent| slab[parent].published);
        let level = node.own_level().min(before);
        assert!(node.published == level || is_short && node.published < level, "{node:?} behind {before:?}");
        assert!(node.is_held() || node.first_child.some().is_some(), "a ghost without children stayed: {node:?}");
        blocks += u64::from(node.is_held());
        let mut child = node.first_child.some();
        while let Some(at) = child {
            assert_eq!(slab[at].parent, id, "a child of another block");
            child = slab[at].next.some();
        }
    }
    assert_eq!(blocks, held.blocks, "blocks were miscounted");
    assert!(held.ready.is_empty(), "a name was not looked after");
}
