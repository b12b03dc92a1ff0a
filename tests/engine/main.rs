//! The simulated engine over real sockets: what it serves, and that each fault does what it says.

#![expect(clippy::unwrap_used, reason = "a test harness fails by panicking")]

mod client;
mod faults;
mod kv_events;
mod lifecycle;
mod listener;
mod serving;
