//! Time limits of an attempt that Pingora has no place for: it knows one limit for every read of a connection.
//!
//! [`deadlines`] says, purely, when an attempt has to have got further. [`watch`] waits for that moment beside Pingora,
//! and cuts the attempt's connection by its [`line`](mod@line): Pingora sees an end, and `proxy::retry` is told by the
//! watch which limit it was.

mod deadlines;
mod line;
mod watch;

pub(super) use deadlines::{Asked, Deadlines};
pub(super) use line::{Line, Lines};
pub(super) use watch::Watch;
