//! The simulated engine over real sockets: what it serves, and that each fault does what it says.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test harness fails by panicking, and a test that is skipped says so"
)]

mod client;
mod faults;
mod kv_events;
mod lifecycle;
mod listener;
mod serving;
mod tokenizer;
