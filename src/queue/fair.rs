//! Fair shares for short and long prompts: self-clocked fair queueing (Golestani, INFOCOM 1994) over size classes.
//!
//! Requests whose costs are within a factor of four are a flow, first come, first served. Each gets a tag when it comes:
//! its cost after the tag of the flow's last one, or after the tag of the request served last if the flow was idle. The
//! lowest tag goes first. So all flows that have anything waiting get equal shares of what is served: a burst of long
//! prompts delays a short one by little, a flood of short ones leaves a long one its share, and tags never change, so that
//! each request's turn comes: before it go at most as many units of every other flow as of its own, and one request of each.

use std::collections::BTreeMap;

use super::state::Id;

/// Size classes: to 1,024 units, to 4,096, to 16,384, to 65,536, and beyond.
const FLOWS: usize = 5;
/// The upper end of the first one.
const SMALLEST: u64 = 1_024;

/// Requests of one priority in the order in which they go.
#[derive(Debug, Default)]
pub(super) struct FairOrder {
    waiting: BTreeMap<Tag, u64>,
    flows: [Flow; FLOWS],
    /// The tag of the last one served.
    virtual_time: u64,
    /// What all that wait cost together.
    total_cost: u64,
}

/// A place in the order. Ids are given in the order of arrival, so equal tags go by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tag {
    finish: u64,
    pub(super) id: Id,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    waiting: u32,
    last_finish: u64,
}

// === impl FairOrder ===

impl FairOrder {
    /// Adds a request of this cost.
    pub(super) fn push(&mut self, id: Id, cost: u64) -> Tag {
        let flow = &mut self.flows[flow_of(cost)];
        // What an idle flow had before gives it no claim and no debt.
        let start = if flow.waiting == 0 { self.virtual_time } else { flow.last_finish };
        let tag = Tag { finish: start.max(self.virtual_time).saturating_add(cost), id };
        flow.last_finish = tag.finish;
        self.add(tag, cost);
        tag
    }

    /// Adds a request that goes before all of a higher `finish`, whatever flows are owed. One order has either these or those.
    pub(super) fn push_at(&mut self, finish: u64, id: Id, cost: u64) -> Tag {
        let tag = Tag { finish, id };
        self.add(tag, cost);
        tag
    }

    fn add(&mut self, tag: Tag, cost: u64) {
        self.flows[flow_of(cost)].waiting += 1;
        self.total_cost += cost;
        self.waiting.insert(tag, cost);
    }

    /// Takes a request out. One that was served moves the clock.
    pub(super) fn remove(&mut self, tag: Tag, is_served: bool) {
        let Some(cost) = self.waiting.remove(&tag) else { return };
        let flow = &mut self.flows[flow_of(cost)];
        flow.waiting -= 1;
        self.total_cost -= cost;
        if is_served {
            self.virtual_time = self.virtual_time.max(tag.finish);
        } else if flow.last_finish == tag.finish {
            // The last one of its flow left: the next one need not stand behind it.
            flow.last_finish = tag.finish.saturating_sub(cost);
        }
    }

    /// All, the next one first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Id> {
        self.waiting.keys().map(|tag| tag.id)
    }

    /// How many go before this one, and what they cost together.
    pub(super) fn ahead_of(&self, tag: Tag) -> (usize, u64) {
        self.waiting.range(..tag).fold((0, 0), |(count, sum), (_, cost)| (count + 1, sum + cost))
    }

    /// How many wait, and what they cost together.
    pub(super) fn all(&self) -> (usize, u64) {
        (self.waiting.len(), self.total_cost)
    }
}

fn flow_of(cost: u64) -> usize {
    (0..FLOWS - 1).find(|flow| cost <= SMALLEST << (2 * flow)).unwrap_or(FLOWS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: u64 = 500;
    const LONG: u64 = 50_000;

    /// Serves everything: the ids in order.
    fn serve(order: &mut FairOrder, tags: &[Tag]) -> Vec<Id> {
        let mut served = Vec::new();
        loop {
            let next = order.iter().next();
            let Some(next) = next else { return served };
            order.remove(*tags.iter().find(|tag| tag.id == next).unwrap(), true);
            served.push(next);
        }
    }

    #[test]
    fn a_short_request_does_not_stand_behind_a_burst_of_long_ones() {
        let mut order = FairOrder::default();
        let mut tags: Vec<Tag> = (0..100).map(|id| order.push(id, LONG)).collect();
        tags.push(order.push(100, SHORT));
        assert_eq!(serve(&mut order, &tags)[0], 100);
    }

    #[test]
    fn a_flood_of_short_requests_leaves_a_long_one_its_share() {
        let mut order = FairOrder::default();
        let mut tags: Vec<Tag> = (0..50).map(|id| order.push(id, SHORT)).collect();
        let long = order.push(50, LONG);
        tags.push(long);
        // Short ones keep coming, two for each that is served.
        let (mut next_id, mut served_units) = (51, 0);
        while order.iter().next() != Some(long.id) {
            let next = order.iter().next().unwrap();
            order.remove(*tags.iter().find(|tag| tag.id == next).unwrap(), true);
            served_units += SHORT;
            for _ in 0..2 {
                tags.push(order.push(next_id, SHORT));
                next_id += 1;
            }
            assert!(served_units <= LONG + SHORT, "{served_units} units of short requests went before {LONG}");
        }
    }

    #[test]
    fn within_a_flow_it_is_first_come_first_served() {
        let mut order = FairOrder::default();
        let tags: Vec<Tag> = (0..20).map(|id| order.push(id, 300 + id % 3)).collect();
        assert_eq!(serve(&mut order, &tags), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn those_who_leave_do_not_push_back_those_who_come() {
        let mut order = FairOrder::default();
        let first = order.push(0, LONG);
        for id in 1..100 {
            let left = order.push(id, LONG);
            order.remove(left, false);
        }
        let second = order.push(100, LONG);
        let short = order.push(101, 1_000);
        order.remove(first, true);
        order.remove(short, true);
        assert_eq!(second.finish, 2 * LONG, "right behind the first");
    }

    #[test]
    fn costs_are_classed_by_powers_of_four() {
        let classes = [0, 1_024, 1_025, 4_096, 4_097, 16_384, 65_536, 65_537, u64::MAX].map(flow_of);
        assert_eq!(classes, [0, 0, 1, 1, 2, 2, 3, 4, 4]);
    }
}
