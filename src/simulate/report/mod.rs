//! How a run is shown.

pub mod plot;
