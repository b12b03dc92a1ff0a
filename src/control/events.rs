//! Follows the KV events of one backend: where they are published, and what comes of them in the index.

use std::sync::Arc;

use crate::config;
use crate::kv_events::{Batch, Endpoint, Following, Sink, Source};
use crate::locality::ExactIndex;
use crate::pool::{EventFeed, EventView};

/// What is followed of one backend, a source for each cache of its engine. Dropping it ends that.
#[derive(Debug, Default)]
pub(super) struct Followed {
    sources: Vec<Source>,
    /// Held for as long as they are wanted.
    _following: Vec<Following>,
    views: Arc<[EventView]>,
}

/// Takes events into the index.
struct FeedSink(Arc<EventFeed>);

// === impl Followed ===

impl Followed {
    /// Follows `sources` from now on; `name` is the backend's, for the log.
    pub(super) fn start(sources: Vec<Source>, name: &str, index: &Arc<ExactIndex>) -> Self {
        let (mut following, mut views) = (Vec::new(), Vec::new());
        for source in &sources {
            let feed = Arc::new(EventFeed::new(index.join()));
            let followed = source.clone().follow(format!("backend {name}").into(), FeedSink(Arc::clone(&feed)));
            views.push(EventView { feed, endpoint: source.endpoint.to_string().into(), watch: followed.watch() });
            following.push(followed);
        }
        Self { sources, _following: following, views: views.into() }
    }

    /// Whether just these are followed.
    pub(super) fn is_of(&self, sources: &[Source]) -> bool {
        self.sources == sources
    }

    /// What decisions and operators see.
    pub(super) fn views(&self) -> Arc<[EventView]> {
        Arc::clone(&self.views)
    }
}

/// The source that the configuration gives a backend, if it does.
pub(super) fn configured(backend: &config::Backend, host: &str) -> Option<Source> {
    let events = backend.kv_events.as_ref()?;
    let read = |text: &String| Endpoint::configured(text, host).ok();
    let replay_endpoint = events.replay.as_ref().and_then(read);
    Some(Source { endpoint: read(&events.endpoint)?, replay_endpoint, topic: events.topic.as_str().into() })
}

// === impl FeedSink ===

impl Sink for FeedSink {
    fn apply(&mut self, batch: &Batch) {
        self.0.apply(batch);
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn set_live(&mut self, is_live: bool) {
        self.0.set_live(is_live);
    }
}
