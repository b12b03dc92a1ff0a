//! Workloads replayed over HTTP through the proxy before eight simulated engines.
//!
//! `hit_ratio` compares a replay with a run in simulated time, `starved` exact with assumed locality. Tests take turns: they
//! are about real time, and share a small machine badly.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and shows its figures"
)]

#[path = "../common/mod.rs"]
mod common;

mod fleet;
mod hit_ratio;
mod prompts;
mod simulated;
mod starved;

use tokio::sync::Mutex;

/// Held by the test that runs.
static TURN: Mutex<()> = Mutex::const_new(());

const BACKENDS: usize = 8;
const SEED: u64 = 1;

/// Tokens of a block in the built-in workloads, and of the engines.
const BLOCK_TOKENS: u32 = 64;
