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
//! [`request`], [`prefix`], [`locality`], [`routing`], [`shadow`], [`pool`] and [`queue`] are pure: no sockets, no clock reads.
//!
//! # Glossary
//!
//! Code, configuration, metrics and logs use these words, and no others for the same things.
//!
//! - *backend*: one inference server that can be chosen; *engine*: the software that runs there; *pool*: the backends
//!   that serve the same models. *Downstream* is the client's side, *upstream* the backend's.
//! - *caller*: whom an API key stands for, by its *label*; it is *charged* for its requests, within its *limits*.
//! - *prompt*: what the engine sees after the chat template; *block*: the engine's unit of KV cache, some tokens of it;
//!   *block hash*: identifies a block with everything before it; *run*: consecutive blocks that are indexed together.
//! - *locality index*: which blocks each backend is believed to hold. *Assumed* entries come from our own decisions.
//!   *Overlay*: the blocks of requests in flight. *Tenant*: a backend's place in the index; its *generation* is that of
//!   the engine's process. *Matched blocks*: how many leading blocks of a prompt a backend holds.
//! - *prefill*: computing the prompt's *uncached tokens*, up to the first output token; *decode*: the tokens after it.
//!   *Work*: prefill tokens, weighted for long contexts. *Pending prefill*: the work of requests *in flight* whose first
//!   token has not come. *TTFT*: time to first token.
//! - *snapshot*: the immutable view that a decision reads; to *publish* one is to replace it. *Candidate*: a backend that
//!   the *filter* left; *cost*: what a policy gives it, in seconds; *decision*: the choice and what led to it. *Spill*:
//!   choosing fewer matched blocks for less load.
//!   *Shadow*: what other policies would have got on the same requests. *Detour*: predicted TTFT that a decision gives up
//!   for matched blocks.
//! - *healthy* and *unhealthy* follow from active probes; *ejected*: excluded because real requests failed, until a
//!   *probing* request *readmits* it; *draining*: takes nothing new. *Fail open*: using excluded backends when all are.
//! - *full*: a backend that has as much as it is to have; the *line*, or queue: the requests of a pool that wait while all
//!   are; the *turn*: one of them at a time looks for room. *Priority*: how urgent one is.
//! - *retry*: another attempt before any response byte; *reject*: a reply made here; *shed*: a reject for want of room.
//! - *age*: time since a value was observed; *stale*: too old to be used. *Reload*: applying a changed configuration.

pub mod access_log;
pub mod admin;
pub mod auth;
mod budget;
pub mod cli;
mod client;
pub mod config;
mod connections;
pub mod control;
mod demo;
mod downstream;
mod handover;
mod io;
pub mod kv_events;
mod lifecycle;
pub mod locality;
mod logging;
pub mod metrics;
pub mod pool;
pub mod prefix;
pub mod proxy;
pub mod queue;
pub mod request;
mod responses;
pub mod routing;
pub mod server;
pub mod shadow;
pub mod sim;
pub mod simulate;
mod state;
mod systemd;
#[cfg(test)]
mod testing;
pub mod time;
pub mod tls;
pub mod tokens;
pub mod trace;

/// Runs `work`, which takes milliseconds or more; where there are other threads, what waits for this one leaves it first.
fn without_stalling<R>(work: impl FnOnce() -> R) -> R {
    let runtime = tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor());
    let has_other_threads = matches!(runtime, Ok(tokio::runtime::RuntimeFlavor::MultiThread));
    if has_other_threads { tokio::task::block_in_place(work) } else { work() }
}
