//! KV events: engines tell which blocks they hold, so that locality need not be guessed.

mod decode;
mod encode;
mod event;
#[cfg(test)]
mod fixtures;

pub use decode::{DecodeError, Decoder, Fault, LeftOut};
pub use encode::{Form, encode};
pub use event::{Batch, EngineHash, Event, Medium, Removed, Stored};
