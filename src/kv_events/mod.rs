//! KV events: engines tell which blocks they hold, so that locality need not be guessed.
//!
//! A [`Source`] follows an engine where it tells that (`zmtp`, `replay`), a [`Stream`] makes
//! one gapless run of what comes, a [`Decoder`] reads each message, and a [`Sink`] takes the events.

mod decode;
mod encode;
mod endpoint;
mod event;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod prediction_tests;
mod replay;
mod source;
mod status;
mod stream;
#[cfg(test)]
mod whole_tests;
mod zmtp;

pub use decode::{DecodeError, Decoder, Fault, LeftOut};
pub use encode::{Form, encode};
pub use endpoint::{Endpoint, EndpointError};
pub use event::{Batch, EngineHash, Event, Medium, Removed, Stored};
pub use source::{Following, Source};
pub use status::{SourceState, SourceStatus, SourceWatch};
pub use stream::{Counts, Replay, Sink, Stream};
