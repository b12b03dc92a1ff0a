//! One backend as the policies see it: each has filled its cache and its queue in another way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use smallvec::SmallVec;

use super::cache::Cache;
use super::marks::Marks;
use super::memory::{Grant, ShadowMemory};
use super::queue::{Prefilling, Queue};
use super::table::Table;
use super::{Each, ShadowPolicy};
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

/// A request in flight in the shadows that go by what is in flight, for as long as this lives.
#[derive(Debug, Default)]
#[must_use = "dropping it ends the request in all shadows"]
pub struct ShadowInFlight {
    /// They are the backends' own, so a removed backend needs no care.
    counts: SmallVec<[Arc<Counts>; 2]>,
    prompt_tokens: u32,
}

/// What is in flight. Raised under the pool's lock, lowered by whoever ends a request; read under the lock. `Relaxed`: a
/// count that is a moment old is as good.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: AtomicU32,
    prompt_tokens: AtomicU64,
}

/// A backend under every policy. Small, for all of a pool's are looked at for every request.
#[derive(Debug)]
pub(super) struct Site {
    backend: ShadowBackend,
    /// What `least_request` goes by.
    least_request: Arc<Counts>,
    places: Box<Each<Place>>,
    /// What `cost` goes by besides its place, where it is simulated.
    cost: Box<Traffic>,
}

/// A backend under one policy, as far as it is counted.
#[derive(Debug)]
struct Place {
    cache: Cache,
    queue: Queue,
}

/// What has been sent to a backend.
#[derive(Debug, Default)]
struct Traffic {
    prefilling: Prefilling,
    recent: Recent,
    in_flight: Arc<Counts>,
}

// === impl ShadowInFlight ===

impl ShadowInFlight {
    /// A request with a prompt of this length, at no place yet.
    pub(super) fn new(prompt_tokens: u32) -> Self {
        Self { counts: SmallVec::new(), prompt_tokens }
    }

    fn hold(&mut self, counts: &Arc<Counts>) {
        counts.requests.fetch_add(1, Relaxed);
        counts.prompt_tokens.fetch_add(self.prompt_tokens.into(), Relaxed);
        self.counts.push(Arc::clone(counts));
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
    pub(super) fn new(backend: ShadowBackend) -> Self {
        Self { backend, least_request: Arc::default(), places: Place::of_all(backend), cost: Box::default() }
    }

    pub(super) fn backend(&self) -> ShadowBackend {
        self.backend
    }

    pub(super) fn update(&mut self, backend: ShadowBackend) {
        if backend.tenant != self.backend.tenant {
            self.places = Place::of_all(backend);
            self.cost.prefilling = Prefilling::default();
        } else if backend.capacity_blocks != self.backend.capacity_blocks {
            self.places.iter_mut().for_each(|place| place.cache.set_capacity(backend.capacity_blocks));
        }
        self.backend = backend;
    }

    /// Begins to simulate `cost` with what really is at the backend, which is what `cost` got until now.
    pub(super) fn begin_cost(&mut self, memory: &Arc<ShadowMemory>) {
        let [actual, cost, ..] = &mut *self.places;
        match actual.cache.copy(memory) {
            Some(cache) => *cost = Place { cache, queue: actual.queue },
            // Rather all without than some: they are compared.
            None => self.places.iter_mut().for_each(|place| place.cache = Cache::new(self.backend.capacity_blocks)),
        }
    }

    /// Ends that. What is in flight ends with the real requests.
    pub(super) fn end_cost(&mut self) {
        self.places[ShadowPolicy::Cost as usize] = Place::new(self.backend);
        *self.cost = Traffic::default();
    }

    /// Requests in flight there under `least_request`.
    pub(super) fn in_flight(&self) -> u32 {
        self.least_request.requests.load(Relaxed)
    }

    /// Tokens of a request's prompts that a policy has cached there.
    pub(super) fn matched_tokens(&self, policy: ShadowPolicy, marks: &Marks) -> u64 {
        let cache = &self.places[policy as usize].cache;
        marks.chains().map(|chain| chain.tokens(cache.matched_blocks(&chain))).sum()
    }

    /// Adds a request's prompts to what a policy, one of `policies`, has cached there; returns their tokens that were.
    pub(super) fn touch(
        &mut self,
        policy: ShadowPolicy,
        marks: &Marks,
        policies: &[ShadowPolicy],
        memory: &Arc<ShadowMemory>,
    ) -> u64 {
        if let Some(buckets) = self.places[policy as usize].cache.wanted_buckets(marks.len()) {
            self.make_room(buckets, policies, memory);
        }
        let cache = &mut self.places[policy as usize].cache;
        marks.chains().map(|chain| chain.tokens(cache.touch(&chain))).sum()
    }

    /// Takes in a request with this much work under a policy, at a rate in work units a second: its TTFT in seconds.
    pub(super) fn dispatch(
        &mut self,
        policy: ShadowPolicy,
        work: f64,
        rate: f64,
        now: Moment,
        request: &mut ShadowInFlight,
    ) -> f64 {
        let queue = &mut self.places[policy as usize].queue;
        let ttft = queue.push(work, rate, now);
        match policy {
            ShadowPolicy::Actual | ShadowPolicy::RoundRobin => {}
            ShadowPolicy::LeastRequest => request.hold(&self.least_request),
            ShadowPolicy::Cost => {
                self.cost.prefilling.push(queue.end(), now);
                self.cost.recent.add(now);
                request.hold(&self.cost.in_flight);
            }
        }
        ttft
    }

    /// Its load under `cost`, where that is simulated.
    pub(super) fn load(&mut self, candidate: &Candidate, now: Moment) -> LoadView {
        let Traffic { prefilling, recent, in_flight: counts } = &mut *self.cost;
        let in_flight = counts.requests.load(Relaxed);
        let waiting = prefilling.waiting(now).min(in_flight);
        let pending_work = self.places[ShadowPolicy::Cost as usize].queue.pending_work(candidate.rate, now);
        LoadView {
            pending_work,
            head_work: pending_work,
            head_for: Duration::ZERO,
            decoding: in_flight - waiting,
            in_flight,
            prompt_tokens: counts.prompt_tokens.load(Relaxed),
            recent: recent.count_at(now),
            rate: candidate.load.rate,
        }
    }

    /// Gives the caches of these policies the larger tables that one of them wants: all of them or, where memory is short,
    /// none, so that policies can still be compared.
    fn make_room(&mut self, buckets: usize, policies: &[ShadowPolicy], memory: &Arc<ShadowMemory>) {
        let grants = policies.iter().map(|_| memory.take(Table::bytes(buckets)));
        let grants: Option<SmallVec<[Grant; ShadowPolicy::ALL.len()]>> = grants.collect();
        for (&policy, grant) in policies.iter().zip(grants.into_iter().flatten()) {
            self.places[policy as usize].cache.grow(buckets, grant);
        }
    }
}

// === impl Place ===

impl Place {
    fn new(backend: ShadowBackend) -> Self {
        Self { cache: Cache::new(backend.capacity_blocks), queue: Queue::default() }
    }

    fn of_all(backend: ShadowBackend) -> Box<Each<Self>> {
        Box::new(std::array::from_fn(|_| Self::new(backend)))
    }
}
