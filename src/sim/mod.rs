//! Simulation: inference engines without a GPU.
//!
//! [`engine`] is the model: pure, in anybody's time. [`SimEngine`] is that model behind real HTTP on the current runtime,
//! with vLLM's endpoints, metrics and manners, and with faults on demand. It stands in for engines in tests and in the
//! demo, and is never part of serving real traffic.

mod answer;
mod args;
mod driver;
mod endpoint;
pub mod engine;
mod exposition;
mod fault;
mod handle;
mod histogram;
mod http;
mod options;
mod process;
mod prompt;
mod publisher;
mod shared;
mod state;
mod tokens;
mod words;

pub use args::EngineArgs;
pub use fault::{Fault, Order};
pub use handle::SimEngine;
pub use options::{ApiKey, EngineOptions};
pub use process::{Counts, Received};
pub use publisher::{KvEventOptions, KvEventState};
pub use state::{EngineState, Inside};
pub(crate) use words::syllables;
