//! What is known of one request while it is served. Dropping it gives back all that the request took, and sees to it that
//! a request which the end of the process cut off is counted and logged like any other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use pingora_core::{Error, ErrorType};
use pingora_proxy::Session;
use smallvec::SmallVec;

use super::body::Buffered;
use super::finish;
use super::hedge::Hedge;
use super::hold::Held;
use super::keep_alive::Unstreamed;
use super::limits::Watch;
use super::plan::Plan;
use super::reject::Reject;
use crate::auth::{Caller, Charge};
use crate::lifecycle::RequestGuard;
use crate::locality::InFlightBlocks;
use crate::metrics::BackendLabels;
use crate::pool::{Backend, InFlight, Pool, PoolSnapshot, Prediction, ProbePermit, Snapshot, TimeLimit};
use crate::queue::Room;
use crate::request::{Endpoint, ResponseReader};
use crate::shadow::ShadowInFlight;
use crate::state::State;
use crate::time::{self, Moment};

/// Pingora's per-request context.
pub struct RequestContext {
    _in_service: RequestGuard,
    state: Arc<State>,
    /// Whether it was counted and logged.
    pub(super) is_recorded: bool,
    pub(super) seen: Seen,
    /// When the header was read.
    pub(super) started: Moment,
    /// Whose key it came with, where one is required.
    pub(super) caller: Option<Arc<Caller>>,
    /// What it has taken of the caller's limits.
    pub(super) charge: Option<Charge>,
    /// The client's `x-request-id`, or ours.
    pub(super) request_id: String,
    /// The body, until the first response byte.
    pub(super) body: Option<Buffered>,
    pub(super) request_bytes: u64,
    /// Where the request goes; none until it was read.
    pub(super) route: Option<Route>,
    pub(super) attempt: Option<Attempt>,
    /// What its relay is known by, if a second attempt may follow beside this one.
    pub(super) hedge: Option<Hedge>,
    /// What it has taken in the shadow of its pool.
    pub(super) shadow: Option<ShadowInFlight>,
    /// Attempts made.
    pub(super) attempts: u32,
    /// Backends, by index in the route's pool, that are not to be tried again.
    pub(super) tried: SmallVec<[usize; 4]>,
    /// A pooled connection turned out to be stale: once a request, that is nobody's fault.
    pub(super) was_stale: bool,
    /// How long it has waited for room, if it had to.
    pub(super) queued: Option<Duration>,
    /// Whether it has had a place in a line, or was to have one: from then on it is not deferred.
    pub(super) has_waited: bool,
    /// Until when it may, if it had to.
    pub(super) wait_until: Option<Moment>,
    /// Whether the header of an event stream was sent while it waited ([`super::keep_alive`]).
    pub(super) is_opened: bool,
    pub(super) answer: Answer,
    /// Why we reply ourselves.
    pub(super) reject: Option<Reject>,
}

/// What the log says of the request's header, for when the session is gone.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) client: Option<SocketAddr>,
    /// What its certificate says that it is, if it has shown one.
    pub(super) client_certificate: Option<String>,
    pub(super) method: Method,
    /// Cut, as the log shows it.
    pub(super) path: String,
}

/// The view that the request is served from, to its end.
pub(super) struct Route {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) pool: usize,
    pub(super) plan: Arc<Plan>,
    /// When the request was whole: TTFT counts from here.
    pub(super) received: Moment,
    pub(super) decision_micros: u64,
}

/// One attempt at a backend, and what it has taken.
pub(super) struct Attempt {
    pub(super) backend: Arc<Backend>,
    pub(super) index: usize,
    pub(super) matched_tokens: u64,
    /// What is to be held against the cached tokens that its engine reports.
    pub(super) prediction: Prediction,
    /// Times that its engine had lost all it had when the request went there.
    pub(super) clears: u64,
    pub(super) in_flight: InFlight,
    /// Behind `in_flight`, so that it is dropped after it.
    pub(super) room: TakenRoom,
    pub(super) blocks: SmallVec<[InFlightBlocks; 1]>,
    pub(super) probe: Option<ProbePermit>,
    /// Sees to its time limits, as soon as it has a connection.
    pub(super) watch: Option<Watch>,
}

/// What a request has taken of its backend's room. Those that wait look for room when it is dropped.
pub(super) struct TakenRoom {
    pool: Arc<Pool>,
    backend: u64,
}

/// What was seen of the response.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) reader: Option<ResponseReader>,
    /// The status that was passed on.
    pub(super) status: Option<u16>,
    pub(super) is_success: bool,
    pub(super) is_stream: bool,
    /// It is no event stream, and has to be an event of one that was opened.
    pub(super) unstreamed: Option<Unstreamed>,
    pub(super) first_token: Option<Moment>,
    /// Informational responses before it.
    pub(super) informational: u32,
    /// The response is being dropped in favour of another attempt.
    pub(super) is_dropped: bool,
    /// It is held until it is known what it begins with.
    pub(super) held: Option<Held>,
    /// The limit of time that ended the attempt.
    pub(super) limit: Option<TimeLimit>,
    /// Answered by this process.
    pub(super) is_local: bool,
}

// === impl RequestContext ===

impl RequestContext {
    pub(super) fn new(state: &Arc<State>) -> Self {
        Self {
            _in_service: state.lifecycle.begin_request(),
            state: Arc::clone(state),
            is_recorded: false,
            seen: Seen::default(),
            started: time::now(),
            caller: None,
            charge: None,
            request_id: String::new(),
            body: None,
            request_bytes: 0,
            route: None,
            attempt: None,
            hedge: None,
            shadow: None,
            attempts: 0,
            tried: SmallVec::new(),
            was_stale: false,
            queued: None,
            has_waited: false,
            wait_until: None,
            is_opened: false,
            answer: Answer::default(),
            reject: None,
        }
    }

    /// What it is served from.
    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    /// Notes why we reply ourselves, and makes the error that ends the exchange.
    pub(super) fn refuse(&mut self, reject: Reject) -> Box<Error> {
        let error = Error::explain(ErrorType::HTTPStatus(reject.status().as_u16()), "refused");
        self.reject = Some(reject);
        error
    }

    /// Whether anything of a backend's answer was sent downstream. A header that we sent by ourselves is nothing of it.
    pub(super) fn has_begun(&self, session: &Session) -> bool {
        match self.is_opened {
            true => self.is_settled(),
            false => session.response_written().is_some_and(|header| !header.status.is_informational()),
        }
    }

    /// Whether the answer goes downstream, whatever comes of it: no attempt follows, and the body for one is given up.
    pub(super) fn is_settled(&self) -> bool {
        self.answer.status.is_some() && self.answer.held.is_none()
    }

    /// The data-parallel rank that was chosen, where engines have several.
    pub(super) fn rank(&self) -> Option<u32> {
        let (route, attempt) = self.route.as_ref().zip(self.attempt.as_ref())?;
        route.pool().backends.get(attempt.index)?.rank
    }

    /// The endpoint that its client called, if it carries a prompt.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.route.as_ref()?.plan.endpoint
    }

    /// When its time is up, all attempts together.
    pub(super) fn end(&self) -> Option<Moment> {
        let route = self.route.as_ref()?;
        route.pool().timeouts.total.map(|total| route.received + total)
    }

    /// Pool and backend of the last attempt, as far as there are any.
    pub(super) fn labels(&self) -> BackendLabels {
        BackendLabels {
            pool: self.route.as_ref().map(|route| Arc::clone(route.pool().pool.name())).unwrap_or_default(),
            backend: self.attempt.as_ref().map(|attempt| Arc::clone(attempt.backend.name())).unwrap_or_default(),
        }
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        if !self.is_recorded {
            let state = Arc::clone(&self.state);
            finish::record_cut(&state, self);
        }
    }
}

// === impl TakenRoom ===

impl TakenRoom {
    pub(super) fn at(pool: &PoolSnapshot, backend: &Backend) -> Self {
        Self { pool: Arc::clone(&pool.pool), backend: backend.identity() }
    }

    /// There may be more room there: what it has in flight has become less work.
    pub(super) fn stir(&self) {
        self.pool.stir(Room::At(self.backend));
    }
}

impl Drop for TakenRoom {
    fn drop(&mut self) {
        self.stir();
    }
}

// === impl Route ===

impl Route {
    pub(super) fn pool(&self) -> &PoolSnapshot {
        &self.snapshot.pools()[self.pool]
    }

    /// The same for somebody else.
    pub(super) fn share(&self) -> Self {
        Self { snapshot: Arc::clone(&self.snapshot), plan: Arc::clone(&self.plan), ..*self }
    }

    /// Takes the view that is published now, and names the backends of `tried` by their places in it. False if the pool is
    /// no longer there; nothing has changed then.
    pub(super) fn renew(&mut self, published: &Arc<Snapshot>, tried: &mut SmallVec<[usize; 4]>) -> bool {
        if self.snapshot.generation() == published.generation() {
            return true;
        }
        let Some(pool) = published.pool_named(self.pool().pool.name()) else { return false };
        let place = |old: &usize| {
            let backend = &self.pool().backends.get(*old)?.backend;
            published.pools()[pool].backends.iter().position(|new| Arc::ptr_eq(&new.backend, backend))
        };
        *tried = tried.iter().filter_map(place).collect();
        (self.snapshot, self.pool) = (Arc::clone(published), pool);
        true
    }
}
