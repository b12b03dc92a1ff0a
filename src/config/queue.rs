//! The schema's part about overload.

use super::file::{GIB, HOUR, MIB, MINUTE, millis, secs};
use super::reader::Section;
use super::values as kind;
use super::{Hedging, MaxInFlight, Queue};
use crate::queue::MAX_DEFER;
use std::time::Duration;

/// Most requests that may wait: each takes some kilobytes besides its body.
const MAX_WAITING: u32 = 100_000;

/// `max_in_flight` and `max_pending_prefill` of a pool.
pub(super) fn limits(pool: &mut Section<'_, '_>) -> (MaxInFlight, Option<Duration>) {
    let max_in_flight = pool.value("max_in_flight", kind::in_flight_limit(), MaxInFlight::Auto);
    let pending = kind::duration_or_none(millis(10), HOUR);
    (max_in_flight, pool.value("max_pending_prefill", pending, Some(secs(5))))
}

pub(super) fn hedging(section: &mut Section<'_, '_>) -> Hedging {
    Hedging {
        after: section.value("after", kind::duration_or_none(millis(10), 10 * MINUTE), None),
        budget: section.value("budget", kind::number(0.0, 1.0), 0.05),
    }
}

pub(super) fn queue(section: &mut Section<'_, '_>) -> Queue {
    Queue {
        max_requests: section.value("max_requests", kind::whole(0, MAX_WAITING), 1_024),
        max_bytes: section.value("max_bytes", kind::size(MIB, 1024 * GIB), 256 * MIB),
        max_wait: section.value("max_wait", kind::duration(millis(100), HOUR), secs(30)),
        max_defer: section.value("max_defer", kind::duration_or_none(millis(100), HOUR), Some(MAX_DEFER)),
        keep_alive: section.value("keep_alive", kind::duration_or_none(secs(1), 5 * MINUTE), None),
        priority_header: section.value("priority_header", kind::header_or_none(), None),
        priority_field: section.value("priority_field", kind::flag(), false),
    }
}
