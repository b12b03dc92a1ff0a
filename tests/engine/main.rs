//! The simulated engine over real sockets: what it serves, and that each fault does what it says.

mod client;
mod faults;
mod lifecycle;
mod serving;
