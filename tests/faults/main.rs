//! Faults under load: whatever happens to backends, networks, disks and descriptors, every request gets one answer, and
//! afterwards nothing is left over.
//!
//! The proxy is the real program, a process of its own; engines are simulated, behind taps that stand for the network.
//! `make soak` runs [`soak`] for an hour.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod answer;
mod black_hole;
mod chaos;
mod clock;
#[path = "../common_control/mod.rs"]
mod common_control;
mod descriptors;
mod disk;
mod fleet;
mod hosts;
mod killed;
mod ledger;
mod load;
mod network;
#[path = "../upgrade/service.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod service;
mod soak;
mod tap;
