//! Time limits of an attempt that Pingora has no place for: it knows one limit for every read of a connection.
//!
//! [`deadlines`] says, purely, when an attempt has to have got further. [`rounds`] come by each attempt beside
//! Pingora, and when that moment is over its [`watch`] cuts its connection by its [`line`](mod@line), or the [`relay`] that it
//! has in its place: Pingora sees an end, and `proxy::retry` is told by the watch which limit it was.

mod deadlines;
mod line;
mod relay;
mod rounds;
mod watch;

pub(super) use deadlines::{Asked, Deadlines};
pub(super) use line::{Cork, Grip, Line, Lines};
pub(super) use relay::Relay;
pub(super) use rounds::Rounds;
pub(super) use watch::Watch;
