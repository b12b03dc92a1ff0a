//! The data path.

pub mod body;
