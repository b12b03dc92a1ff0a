//! What the simulator prints and draws.

mod plot;
mod progress;
mod table;

pub(super) use plot::{Series, draw};
pub(super) use progress::Progress;
pub(super) use table::table;
