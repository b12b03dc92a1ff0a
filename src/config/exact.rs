//! The schema's part about exact locality.

use super::file::{GIB, KIB, MIB, at_least_one, millis, secs};
use super::reader::Section;
use super::values as kind;
use super::{Backend, EventEndpoint, KvEvents, Tokenizer};

/// Most data-parallel ranks of one engine.
const MAX_RANKS: u32 = 256;

pub(super) fn tokenizer(section: &mut Section<'_, '_>) -> Option<Tokenizer> {
    let path = section.required("path", kind::readable_path());
    let config = section.optional("config", kind::readable_file());
    let chat_template = section.optional("chat_template", kind::readable_file());
    let max_bytes = section.value("max_bytes", kind::size(KIB, 64 * MIB), 4 * MIB);
    let timeout = section.value("timeout", kind::duration(millis(1), secs(10)), millis(200));
    let cache_bytes = section.value("cache_bytes", kind::size(MIB, 64 * GIB), 64 * MIB);
    Some(Tokenizer { path: path?, config, chat_template, max_bytes, timeout, cache_bytes })
}

pub(super) fn kv_events(section: &mut Section<'_, '_>) -> KvEvents {
    KvEvents {
        enabled: section.value("enabled", kind::flag(), false),
        silent_after: section.value("silent_after", kind::count(1_000_000), at_least_one(64)),
        cpu_credit: section.value("cpu_credit", kind::number(0.0, 1.0), 0.8),
        disk_credit: section.value("disk_credit", kind::number(0.0, 1.0), 0.4),
    }
}

pub(super) fn event_endpoint(section: &mut Section<'_, '_>, ranks: u32) -> Option<EventEndpoint> {
    let endpoint = section.required("endpoint", kind::tcp_endpoint());
    let replay = section.optional("replay", kind::tcp_endpoint());
    let topic = section.value("topic", kind::topic(), String::new());
    let events = EventEndpoint { endpoint: endpoint?, replay, topic };
    for (key, text) in [("endpoint", Some(&events.endpoint)), ("replay", events.replay.as_ref())] {
        if text.is_some_and(|text| port(text) + ranks - 1 > u32::from(u16::MAX)) {
            section.reject(key, format!("expected a port that leaves room for {ranks} ranks, up to 65535"));
        }
    }
    if let Some(replay) = events.replay.as_ref().filter(|replay| host(replay) == host(&events.endpoint))
        && port(replay).abs_diff(port(&events.endpoint)) < ranks
    {
        let right =
            format!("expected a port {ranks} or more away from endpoint's: each rank takes the next one of both");
        section.reject("replay", right);
    }
    Some(events)
}

pub(super) fn ranks(section: &mut Section<'_, '_>) -> u32 {
    section.value("data_parallel_ranks", kind::count(MAX_RANKS), at_least_one(1)).get()
}

/// The backends that one engine's ranks are: each has a cache of its own, and sockets one port after the other.
pub(super) fn by_rank(backend: Backend, ranks: u32) -> Vec<Backend> {
    if ranks == 1 {
        return vec![backend];
    }
    let of_rank = |rank: u32| {
        let kv_events = backend.kv_events.as_ref().map(|events| EventEndpoint {
            endpoint: shifted(&events.endpoint, rank),
            replay: events.replay.as_deref().map(|replay| shifted(replay, rank)),
            topic: events.topic.clone(),
        });
        Backend { name: format!("{}-r{rank}", backend.name), rank: Some(rank), kv_events, ..backend.clone() }
    };
    (0..ranks).map(of_rank).collect()
}

/// The endpoint with `by` added to its port.
fn shifted(endpoint: &str, by: u32) -> String {
    format!("{}:{}", host(endpoint), port(endpoint) + by)
}

/// What is before the port of an endpoint that was read.
fn host(endpoint: &str) -> &str {
    endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host)
}

fn port(endpoint: &str) -> u32 {
    endpoint.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default()
}
