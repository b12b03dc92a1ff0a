//! What a process hands to the one that takes its place in a binary upgrade, and what systemd hands to the first.
//!
//! The running process starts the new one, through a [`launcher`], with one end of a pair of sockets as its standard input,
//! and says so by [`VARIABLE`]. No path is bound, so nobody else can connect, nothing is left behind, and the end of either process
//! shows as the end of the stream. Over it go, in this order:
//!
//! | from | what | |
//! | --- | --- | --- |
//! | old | [`Offer`] | what is handed over, with the listeners' descriptors |
//! | new | [`Reply::Ready`] | its configuration is good and its listeners are bound; which form of state it reads |
//! | old | state | what was learned ([`state`]), if both know its form |
//! | new | [`Reply::Serving`] | it accepts; or at any time [`Reply::Failed`] with the reason |
//!
//! Afterwards both keep their ends open, and the new process says [`HURRY`] when it stops itself and waits for the old one.
//! Invariants: nothing that is read is longer than its bound, the old process
//! changes nothing before [`Reply::Serving`], and no descriptor is known by its number alone.

pub(crate) mod collect;
pub(crate) mod descriptors;
pub(crate) mod frame;
pub(crate) mod launcher;
mod listeners;
mod message;
mod predecessor;
pub(crate) mod state;

pub(crate) use listeners::{Duplicate, Role, Sockets};
pub(crate) use message::{Listening, Offer, PROTOCOL, Reply};
pub use predecessor::HandoverError;
pub(crate) use predecessor::Predecessor;

/// The environment variable that says that standard input is a handover.
pub(crate) const VARIABLE: &str = "WARMGATE_HANDOVER";

/// The byte by which a process that has taken over lets the one before it know that it is waited for.
pub(crate) const HURRY: u8 = b'H';

/// What goes before the state: its length in bytes as a little-endian `u64`; 0 where there is none.
pub(crate) const STATE_LENGTH_BYTES: usize = 8;

/// Most listeners that are handed over: 32 of clients and the operators'.
pub(crate) const MAX_LISTENERS: usize = 33;
