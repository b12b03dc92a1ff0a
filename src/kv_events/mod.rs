//! KV events: engines tell which blocks they hold, so that locality need not be guessed.

mod event;

pub use event::{Batch, EngineHash, Event, Medium, Removed, Stored};
