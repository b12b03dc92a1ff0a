//! What ends standing in a line: the turn, the time, or the client.

use std::future::pending;
use std::time::Duration;

use pingora_core::{Error, Result};
use pingora_proxy::Session;
use tokio::time::sleep;

use super::context::RequestContext;
use super::exchange::gone;
use super::{attend, keep_alive};
use crate::queue::{Place, Turn};
use crate::state::State;
use crate::time::{self, Moment};

/// When something is due, besides the turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alarms {
    /// Time alone makes room.
    pub(super) look_again: Option<Moment>,
    /// From then on it is too late for the only backend that would have done.
    pub(super) lapses: Option<Moment>,
    /// It may not wait any longer.
    pub(super) until: Moment,
    keep_alive: KeepAlive,
}

/// The signs of life that the client is given.
#[derive(Debug, Clone, Copy)]
struct KeepAlive {
    interval: Option<Duration>,
    next: Option<Moment>,
}

/// What a request that stands in a line has to see to.
pub(super) enum Due {
    /// It has the turn.
    Look,
    /// Another one has its place.
    Displaced,
    /// [`Alarms::lapses`]
    Lapsed,
    /// [`Alarms::until`]
    TimedOut,
}

enum Woken {
    Turn(Turn),
    Again,
    KeepAlive,
    Lapsed,
    TimedOut,
    Gone(Box<Error>),
}

// === impl Alarms ===

impl Alarms {
    /// For the request of `ctx`, from now on.
    pub(super) fn new(session: &Session, ctx: &RequestContext, until: Moment) -> Self {
        let interval = ctx.route.as_ref().and_then(|route| keep_alive::interval(session, route));
        Self { look_again: None, lapses: None, until, keep_alive: KeepAlive { interval, next: None }.renewed() }
    }

    /// Stands in the line until something is due that is the request's to decide.
    ///
    /// # Errors
    /// The client left, or the time of the whole request is up.
    pub(super) async fn due(
        &mut self,
        state: &State,
        session: &mut Session,
        ctx: &mut RequestContext,
        place: &Place,
    ) -> Result<Due> {
        loop {
            return match self.woken(session, place).await {
                Woken::Again => {
                    self.look_again = None;
                    place.stir();
                    continue;
                }
                Woken::KeepAlive => {
                    place.aside(keep_alive::send(state, session, ctx)).await?;
                    self.keep_alive = self.keep_alive.renewed();
                    continue;
                }
                Woken::Turn(Turn::Look) => Ok(Due::Look),
                Woken::Turn(Turn::Displaced) => Ok(Due::Displaced),
                Woken::Lapsed => Ok(Due::Lapsed),
                Woken::TimedOut if ctx.end().is_some_and(|end| end <= time::now()) => Err(attend::give_up(state, ctx)),
                Woken::TimedOut => Ok(Due::TimedOut),
                Woken::Gone(error) => Err(error),
            };
        }
    }

    async fn woken(&self, session: &mut Session, place: &Place) -> Woken {
        let now = time::now();
        let at = async |moment: Option<Moment>| match moment {
            Some(moment) => sleep(moment.since(now)).await,
            None => pending().await,
        };
        tokio::select! {
            biased;
            error = gone(session) => Woken::Gone(error),
            turn = place.turn() => Woken::Turn(turn),
            () = sleep(self.until.since(now)) => Woken::TimedOut,
            () = at(self.lapses) => Woken::Lapsed,
            () = at(self.look_again) => Woken::Again,
            () = at(self.keep_alive.next) => Woken::KeepAlive,
        }
    }
}

// === impl KeepAlive ===

impl KeepAlive {
    fn renewed(self) -> Self {
        Self { next: self.interval.map(|interval| time::now() + interval), ..self }
    }
}
