//! One backend as the policies see it: each has filled its cache and its queue in another way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use smallvec::SmallVec;

use super::queue::Queue;
use super::thin::{THINNING, Thinned};
use super::{Each, ShadowPolicy};
use crate::locality::LocalityIndex;
use crate::pool::{LoadView, Tenant};
use crate::routing::Candidate;
use crate::time::Moment;

/// What a shadow has to know of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowBackend {
    /// [`crate::pool::Backend::identity`].
    pub identity: u64,
    /// Stands for the engine's process: with another one all caches begin empty.
    pub tenant: Tenant,
    /// Blocks that the engine has room for.
    pub capacity_blocks: u32,
}

/// A request in flight in every shadow, for as long as this lives.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the request in all shadows"]
pub struct ShadowInFlight {
    /// A count for each policy. They are the backends' own, so a removed backend needs no care.
    counts: SmallVec<[Arc<AtomicU32>; ShadowPolicy::ALL.len()]>,
}

/// A backend under every policy.
#[derive(Debug)]
pub(super) struct Site {
    backend: ShadowBackend,
    places: Each<Place>,
}

/// A backend under one policy.
#[derive(Debug)]
pub(super) struct Place {
    index: Arc<LocalityIndex>,
    tenant: Tenant,
    queue: Queue,
    /// Raised under the pool's lock, lowered by whoever ends a request; read under the lock. `Relaxed`: a count that is
    /// a moment old is as good.
    in_flight: Arc<AtomicU32>,
}

// === impl ShadowInFlight ===

impl ShadowInFlight {
    /// Counts the request at `place`, too.
    pub(super) fn hold(&mut self, place: &Place) {
        place.in_flight.fetch_add(1, Relaxed);
        self.counts.push(Arc::clone(&place.in_flight));
    }
}

impl Drop for ShadowInFlight {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Relaxed);
        }
    }
}

// === impl Site ===

impl Site {
    pub(super) fn new(index: &Arc<LocalityIndex>, backend: ShadowBackend) -> Self {
        let place = |_| Place {
            index: Arc::clone(index),
            tenant: index.join(thinned_capacity(backend)),
            queue: Queue::default(),
            in_flight: Arc::default(),
        };
        Self { backend, places: std::array::from_fn(place) }
    }

    pub(super) fn backend(&self) -> ShadowBackend {
        self.backend
    }

    pub(super) fn update(&mut self, backend: ShadowBackend) {
        for place in &mut self.places {
            if backend.tenant != self.backend.tenant {
                place.tenant = place.index.restart(place.tenant);
                place.queue = Queue::default();
            }
            if backend.capacity_blocks != self.backend.capacity_blocks {
                place.index.set_capacity(place.tenant, thinned_capacity(backend));
            }
        }
        self.backend = backend;
    }

    /// Where its caches stand in the index, by policy.
    pub(super) fn tenants(&self) -> impl Iterator<Item = Tenant> {
        self.places.iter().map(|place| place.tenant)
    }

    /// It as the policy of this number sees it.
    pub(super) fn place(&mut self, number: usize) -> &mut Place {
        &mut self.places[number]
    }
}

// === impl Place ===

impl Place {
    pub(super) fn load(&mut self, candidate: &Candidate, now: Moment) -> LoadView {
        self.queue.load(candidate, self.in_flight.load(Relaxed), now)
    }

    /// Takes a request with this much work in: its TTFT in seconds, at a rate in work units a second.
    pub(super) fn dispatch(&mut self, work: f64, rate: f64, prompts: &Thinned, now: Moment) -> f64 {
        for chain in prompts.chains().filter(|chain| !chain.is_empty()) {
            self.index.insert(self.tenant, chain);
        }
        self.queue.push(work, rate, now)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.index.leave(self.tenant);
    }
}

fn thinned_capacity(backend: ShadowBackend) -> u32 {
    (backend.capacity_blocks / THINNING as u32).max(1)
}
