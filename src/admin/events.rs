//! What KV events have brought, read at scrape time from the sources that are followed.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::gauges::{each_backend, encode_each, encode_one};
use crate::pool::{BackendSnapshot, EventView, Snapshot};
use crate::state::State;
use crate::time;

/// A collector over the sources of KV events.
pub struct Events(Arc<State>);

/// A counter of each source, added up over a backend's: name, help, value.
type SourceCounter = (&'static str, &'static str, fn(&EventView) -> u64);

const COUNTERS: [SourceCounter; 8] = [
    ("kv_event_messages", "Messages of KV events that came", |view| view.feed.messages()),
    ("kv_event_stored_blocks", "Blocks that KV events said were stored", |view| view.feed.stored_blocks()),
    ("kv_event_removed_blocks", "Blocks that KV events said were removed", |view| view.feed.removed_blocks()),
    ("kv_event_clears", "Times that all an engine had told was forgotten", |view| view.feed.clears()),
    ("kv_event_gaps", "Times that messages were missing", |view| view.watch.get().counts.gaps),
    ("kv_event_replays", "Replays asked of engines", |view| view.watch.get().counts.replays),
    ("kv_event_failed_replays", "Replays that engines did not give", |view| view.watch.get().counts.failed_replays),
    ("kv_event_undecodable_messages", "Messages that could not be read", |view| view.watch.get().counts.undecodable),
];

// === impl Events ===

impl Events {
    /// Reads from `state`.
    pub fn new(state: Arc<State>) -> Self {
        Self(state)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

impl Collector for Events {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.snapshot.load();
        for (name, help, value) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, _, backend) in each_backend(&snapshot).filter(has_feeds) {
                let sum = backend.feeds.iter().map(value).sum::<u64>();
                ConstCounter::new(sum).encode(metric.encode_family(&labels)?)?;
            }
        }
        encode_gauges(&mut encoder, &snapshot)?;
        encode_index(&mut encoder, &self.0)
    }
}

fn has_feeds<L, P>((_, _, backend): &(L, P, &BackendSnapshot)) -> bool {
    !backend.feeds.is_empty()
}

fn encode_gauges(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    encode_each(
        encoder,
        "kv_events_live",
        "1 while a backend's KV events are followed without a gap",
        each_backend(snapshot)
            .filter(has_feeds)
            .map(|(labels, _, backend)| (labels, f64::from(u8::from(backend.hears())))),
    )?;
    encode_each(
        encoder,
        "kv_event_age_seconds",
        "Time since the last message of KV events",
        each_backend(snapshot).filter_map(|(labels, _, backend)| {
            let last = backend.feeds.iter().filter_map(|view| view.watch.get().last_message).max()?;
            Some((labels, time::now().since(last).as_secs_f64()))
        }),
    )?;
    encode_each(
        encoder,
        "kv_event_blocks",
        "Blocks that the backend holds by its KV events",
        each_backend(snapshot).filter(has_feeds).map(|(labels, _, backend)| {
            let blocks = backend.event_tenants().map(|tenant| tenant.blocks()).sum::<u64>();
            (labels, blocks as f64)
        }),
    )
}

fn encode_index(encoder: &mut DescriptorEncoder<'_>, state: &State) -> fmt::Result {
    let index = state.events.stats();
    for (name, help, value) in [
        ("event_index_bytes", "Memory of the index of KV events, as counted against its budget", index.bytes),
        ("event_index_budget_bytes", "The budget of the index of KV events", index.budget_bytes),
        ("event_index_aside_blocks", "Blocks whose parent no event has named yet", index.aside_blocks),
    ] {
        encode_one(encoder, name, help, value as f64)?;
    }
    let name = "event_index_refused_blocks";
    let help = "Blocks not taken into the index of KV events for want of memory";
    let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(index.refused_blocks_total).encode(counter)
}
