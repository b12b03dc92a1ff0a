//! First-token hedging: a streamed request that has no token after a while is sent to a second backend; the first token
//! wins, and the other one's connection is closed at once.
//!
//! An attempt has one connection. What that is here is a [`socket`] of this process, and behind it a [`relay`] that talks to
//! one backend or two and passes on what the winner says, byte by byte. So everything else (framing, time limits, retries
//! before an answer, a client that leaves) stays as it is. The price is that nothing of an answer is
//! passed on before its first token, that the connection is a new one each time, and that only what is safe is hedged: see
//! [`is_hedged`]. A second attempt is chosen like any other, must find room, takes nothing from those that wait, and is paid
//! from a budget ([`crate::pool::Hedging`]).

mod relay;
mod socket;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pingora_core::upstreams::peer::HttpPeer;
use smallvec::SmallVec;
use tokio::net::TcpStream;

use super::body::Buffered;
use super::context::{Attempt, RequestContext, Route};
use super::{keep_alive, peer};
use crate::budget::Reservation;
use crate::metrics::HedgeOutcome;
use crate::pool::BackendSnapshot;
use crate::routing::Pass;
use crate::state::State;
use crate::time;
use socket::Hedged;

/// The longest body that is hedged: a second copy of it is held, for as long as the first token takes.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// What a request keeps of the relay that its attempt has for a connection.
#[derive(Default)]
pub(super) struct Hedge {
    winner: Winner,
}

/// The second attempt, if it has won.
type Winner = Arc<Mutex<Option<Attempt>>>;

/// What a second attempt needs to be made.
struct Second {
    state: Arc<State>,
    route: Route,
    /// Where the request has been, the first attempt's backend included.
    tried: SmallVec<[usize; 4]>,
    /// Of the body, which is held once more.
    body_bytes: usize,
    winner: Winner,
}

/// A second attempt on its way.
struct Sent {
    attempt: Attempt,
    stream: TcpStream,
}

/// Has the attempt that `peer` is for hedged, if it can be.
pub(super) fn arm(ctx: &mut RequestContext, peer: &mut HttpPeer) {
    ctx.hedge = None;
    let (Some(route), Some(attempt)) = (&ctx.route, &ctx.attempt) else { return };
    let Some(hedging) = route.pool().hedging.filter(|_| is_hedged(ctx, route, attempt)) else { return };
    route.pool().pool.hedge_budget().note_request(&hedging.budget, time::now());
    let mut tried = ctx.tried.clone();
    tried.push(attempt.index);
    let hedge = Hedge::default();
    let body_bytes = ctx.body.as_ref().map_or(0, Buffered::len);
    let winner = Arc::clone(&hedge.winner);
    let second = Second { state: ctx.state(), route: route.share(), tried, body_bytes, winner };
    let connect = peer.options.connection_timeout.unwrap_or(route.pool().timeouts.connect);
    peer.options.custom_l4 = Some(Arc::new(Hedged::new(hedging.after, connect, second)));
    // The connection is this request's alone.
    peer.group_key = fastrand::u64(1..);
    peer.options.idle_timeout = Some(Duration::ZERO);
    ctx.hedge = Some(hedge);
}

/// Makes the attempt that has won the request's own; the other one's accounting ends. What watches their relay stays.
pub(super) fn settle(ctx: &mut RequestContext) {
    let Some(winner) = ctx.hedge.take().and_then(|hedge| hedge.winner.lock().take()) else { return };
    let watch = ctx.attempt.take().and_then(|attempt| attempt.watch);
    ctx.attempt = Some(Attempt { watch, ..winner });
}

/// Whether a second attempt would be the same: streamed, so that its first token shows; without what only one backend has;
/// and over a connection that the relay can speak, without TLS.
fn is_hedged(ctx: &RequestContext, route: &Route, attempt: &Attempt) -> bool {
    let is_small = ctx.body.as_ref().is_some_and(|body| body.len() <= MAX_BODY_BYTES);
    let is_plain = |backend: &BackendSnapshot| !backend.backend.origin().is_tls && backend.rank.is_none();
    let is_bound = route.plan.owner.is_some();
    is_small
        && !is_bound
        && keep_alive::is_streamed(route)
        && route.pool().backends.get(attempt.index).is_some_and(is_plain)
}

// === impl Second ===

impl Second {
    /// Room for the second copy of the body, if there is some.
    async fn reserve(&self) -> Option<Reservation> {
        let mut held = Reservation::default();
        self.state.bodies.reserve(&mut held, self.body_bytes, Duration::ZERO).await.ok().map(|()| held)
    }

    /// Sends the request to another backend, if one has room and the budget allows it.
    async fn send(&self) -> Option<Sent> {
        let pool = self.route.pool();
        let attempt = match self.choose() {
            Ok(attempt) => attempt,
            Err(outcome) => {
                self.count(outcome);
                return None;
            }
        };
        let address = pool.backends.get(attempt.index)?.address?;
        match relay::connect(address, pool.timeouts.connect).await {
            Ok(stream) => Some(Sent { attempt, stream }),
            Err(_) => {
                self.count(HedgeOutcome::Failed);
                None
            }
        }
    }

    fn choose(&self) -> Result<Attempt, HedgeOutcome> {
        let pool = self.route.pool();
        // Those that wait have not had a first attempt yet.
        if pool.pool.line().is_taken() {
            return Err(HedgeOutcome::NoRoom);
        }
        let matched = self.route.plan.matched(&self.state.index, &self.state.events, pool);
        let dispatched =
            peer::dispatch(&self.route, &matched.tokens, &self.tried, false).map_err(|_| HedgeOutcome::NoRoom)?;
        let index = dispatched.decision.index;
        let backend = &pool.backends[index];
        let is_plain = !backend.backend.origin().is_tls && backend.rank.is_none();
        // One that drains takes nothing that could as well go elsewhere.
        if dispatched.pass != Pass::Normal || backend.drain.is_some() || !is_plain {
            return Err(HedgeOutcome::NoRoom);
        }
        let is_paid =
            pool.hedging.is_some_and(|hedging| pool.pool.hedge_budget().try_spend(&hedging.budget, time::now()));
        if !is_paid {
            return Err(HedgeOutcome::Denied);
        }
        Ok(peer::attempt(&self.state, &self.route, dispatched, matched.predictions[index]))
    }

    /// The second attempt has won.
    fn won(&self, attempt: Attempt) {
        self.count(HedgeOutcome::SecondWon);
        *self.winner.lock() = Some(attempt);
    }

    fn count(&self, outcome: HedgeOutcome) {
        self.state.metrics.hedges.ended(self.route.pool().pool.name(), outcome);
    }
}
