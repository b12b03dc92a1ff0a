//! sim
pub mod engine;
