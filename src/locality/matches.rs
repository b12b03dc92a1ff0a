//! The answer of a lookup: matched blocks of every tenant that has any, in a buffer to be used again.

use super::Tenant;

/// Matched blocks per tenant, filled by [`LocalityIndex::lookup`](super::LocalityIndex::lookup).
///
/// Dense by slot, so that asking costs an index; emptied by the list of slots that were filled, so that a fleet of a
/// thousand costs nothing where one backend matches. Keep one per thread and use it for every request.
#[derive(Debug, Default)]
pub struct Matches {
    by_slot: Vec<Match>,
    /// Slots with an entry that is not empty.
    filled: Vec<u32>,
}

/// Leading blocks of a prompt that a tenant holds, by what is known of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Assumed to be in its cache, or to be there soon.
    pub blocks: u32,
    /// Assumed to be in its cache: an earlier request had them computed.
    pub assumed: u32,
    /// Claimed by requests in flight.
    pub in_flight: u32,
}

/// `generation` is 0, which no tenant has, where nothing matched.
#[derive(Debug, Clone, Copy, Default)]
struct Match {
    generation: u32,
    held: Held,
}

// === impl Matches ===

impl Matches {
    /// An empty buffer; it grows to the highest slot seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leading blocks of the prompt that the tenant holds; 0 if it holds none or a later generation was found in its
    /// slot. Ask with a generation that is live: what a retired one held can still be found until it is swept.
    pub fn blocks(&self, tenant: Tenant) -> u32 {
        self.held(tenant).blocks
    }

    /// The same, by what is known of them.
    pub fn held(&self, tenant: Tenant) -> Held {
        match self.by_slot.get(tenant.slot as usize) {
            Some(found) if found.generation == tenant.generation => found.held,
            _ => Held::default(),
        }
    }

    /// Every tenant with matched blocks and how many, in no order; retired generations can be among them.
    pub fn iter(&self) -> impl Iterator<Item = (Tenant, u32)> {
        self.filled.iter().filter_map(|&slot| {
            let found = self.by_slot.get(slot as usize)?;
            Some((Tenant { slot, generation: found.generation }, found.held.blocks))
        })
    }

    pub(super) fn clear(&mut self) {
        for slot in self.filled.drain(..) {
            self.by_slot[slot as usize] = Match::default();
        }
    }

    /// Notes what a tenant holds of a run that begins `base` blocks into the prompt; of a slot's generations the latest
    /// is kept. Assumed blocks count only as far as all before them are assumed as well, and so do claimed ones.
    pub(super) fn note(&mut self, tenant: Tenant, base: u32, of_run: Held) {
        let at = tenant.slot as usize;
        if at >= self.by_slot.len() {
            self.by_slot.resize(at + 1, Match::default());
        }
        let found = &mut self.by_slot[at];
        if found.generation < tenant.generation && of_run.blocks > 0 {
            if found.generation == 0 {
                self.filled.push(tenant.slot);
            }
            *found = Match { generation: tenant.generation, held: Held::default() };
        }
        if found.generation == tenant.generation {
            found.held.follow(base, of_run);
        }
    }
}

// === impl Held ===

impl Held {
    fn follow(&mut self, base: u32, of_run: Self) {
        let longer = |before: u32, more: u32| if before == base { base + more } else { before };
        self.blocks = self.blocks.max(base + of_run.blocks);
        self.assumed = longer(self.assumed, of_run.assumed);
        self.in_flight = longer(self.in_flight, of_run.in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Tenant = Tenant { slot: 3, generation: 5 };
    const NEW: Tenant = Tenant { slot: 3, generation: 6 };

    fn all(blocks: u32) -> Held {
        Held { blocks, assumed: blocks, in_flight: blocks }
    }

    #[test]
    fn assumed_and_claimed_blocks_count_up_to_the_first_that_is_not() {
        let mut matches = Matches::new();
        matches.note(OLD, 0, Held { blocks: 4, assumed: 4, in_flight: 4 });
        matches.note(OLD, 4, Held { blocks: 3, assumed: 2, in_flight: 3 });
        matches.note(OLD, 7, Held { blocks: 5, assumed: 5, in_flight: 0 });
        assert_eq!(matches.held(OLD), Held { blocks: 12, assumed: 6, in_flight: 7 });
    }

    #[test]
    fn a_later_generation_hides_an_earlier_one_in_either_order() {
        for order in [[(OLD, 9), (NEW, 2)], [(NEW, 2), (OLD, 9)]] {
            let mut matches = Matches::new();
            for (tenant, blocks) in order {
                matches.note(tenant, 0, all(blocks));
            }
            assert_eq!((matches.blocks(NEW), matches.blocks(OLD)), (2, 0));
        }
    }

    #[test]
    fn clearing_leaves_nothing_behind() {
        let mut matches = Matches::new();
        matches.note(OLD, 0, all(9));
        matches.note(Tenant { slot: 700, generation: 1 }, 0, all(1));
        assert_eq!(matches.iter().count(), 2);
        matches.clear();
        assert_eq!(matches.iter().count(), 0);
        assert_eq!(matches.blocks(OLD), 0, "a match of the last lookup was left");
    }

    #[test]
    fn a_tenant_never_seen_matches_nothing() {
        assert_eq!(Matches::new().blocks(NEW), 0);
    }
}
