//! KV events: engines tell which blocks they hold, so that locality need not be guessed.

mod encode;
mod event;

pub use encode::{Form, encode};
pub use event::{Batch, EngineHash, Event, Medium, Removed, Stored};
