//! The time limits of an attempt.
//!
//! [`deadlines`] says, purely, when an attempt has to have got further. [`rounds`] come by each attempt, and when that moment
//! is over its [`watch`] tells the exchange, which ends it.

mod deadlines;
mod rounds;
mod watch;

pub(super) use deadlines::{Asked, Deadlines};
pub(super) use rounds::Rounds;
pub(super) use watch::{Watch, Watching};
