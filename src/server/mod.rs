//! Composition root.

pub mod listen;
