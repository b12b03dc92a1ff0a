//! What the simulator prints and draws.

mod table;

pub(super) use table::table;
