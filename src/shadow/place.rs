//! One backend as the policies see it: each has filled its cache and its queue in another way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use smallvec::SmallVec;

use super::queue::Queue;
use super::thin::{THINNING, Thinned};
use super::{Each, ShadowPolicy};
use crate::locality::LocalityIndex;
use crate::locality::Tenant;
use crate::pool::{LoadView, Recent};
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
    /// One for each policy. They are the backends' own, so a removed backend needs no care.
    counts: SmallVec<[Arc<Counts>; ShadowPolicy::ALL.len()]>,
    prompt_tokens: u32,
}

/// What is in flight. Raised under the pool's lock, lowered by whoever ends a request; read under the lock. `Relaxed`: a
/// count that is a moment old is as good.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: AtomicU32,
    prompt_tokens: AtomicU64,
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
    recent: Recent,
    in_flight: Arc<Counts>,
}

// === impl ShadowInFlight ===

impl ShadowInFlight {
    /// A request with a prompt of this length, at no place yet.
    pub(super) fn new(prompt_tokens: u32) -> Self {
        Self { counts: SmallVec::new(), prompt_tokens }
    }

    /// Counts the request at `place`, too.
    pub(super) fn hold(&mut self, place: &Place) {
        place.in_flight.requests.fetch_add(1, Relaxed);
        place.in_flight.prompt_tokens.fetch_add(self.prompt_tokens.into(), Relaxed);
        self.counts.push(Arc::clone(&place.in_flight));
    }
}

impl Drop for ShadowInFlight {
    fn drop(&mut self) {
        for counts in &self.counts {
            counts.requests.fetch_sub(1, Relaxed);
            counts.prompt_tokens.fetch_sub(self.prompt_tokens.into(), Relaxed);
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
            recent: Recent::default(),
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
        let in_flight = self.in_flight.requests.load(Relaxed);
        let waiting = self.queue.waiting(now).min(in_flight);
        let pending_work = self.queue.pending_work(candidate.rate, now);
        LoadView {
            pending_work,
            head_work: pending_work,
            head_for: Duration::ZERO,
            decoding: in_flight - waiting,
            in_flight,
            prompt_tokens: self.in_flight.prompt_tokens.load(Relaxed),
            recent: self.recent.count_at(now),
            rate: candidate.load.rate,
        }
    }

    /// Takes a request with this much work in: its TTFT in seconds, at a rate in work units a second.
    pub(super) fn dispatch(&mut self, work: f64, rate: f64, prompts: &Thinned, now: Moment) -> f64 {
        for chain in prompts.chains().filter(|chain| !chain.is_empty()) {
            self.index.insert(self.tenant, chain);
        }
        self.recent.add(now);
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
