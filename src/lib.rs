//! warmgate: an edge load balancer for LLM inference fleets.
//!
//! It sends each request to the backend that already holds the prompt's prefix in its KV cache, unless waiting
//! there costs more than recomputing: locality first, then load.
//!
//! Two loops meet in three places only: the published [`pool::Snapshot`], the per-backend
//! [`pool::Load`] counters and the [`locality::LocalityIndex`]. The data path (`proxy`) reads a request, hashes its
//! prompt ([`request`], [`prefix`]), chooses a backend ([`routing`]) and streams the answer; the control loop
//! (`control`) keeps the snapshot true by probes and scrapes.
//!
//! `request`, `prefix`, `locality`, `routing` and `pool` are pure: no sockets, no clock reads.

pub mod access_log;
pub mod admin;
mod budget;
pub mod cli;
mod client;
pub mod config;
pub mod control;
mod demo;
mod lifecycle;
pub mod locality;
mod logging;
pub mod metrics;
pub mod pool;
pub mod prefix;
pub mod proxy;
pub mod request;
mod responses;
pub mod routing;
pub mod server;
pub mod sim;
mod state;
mod systemd;
pub mod time;
