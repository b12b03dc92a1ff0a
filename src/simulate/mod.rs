//! `warmgate simulate`: what a policy does to a fleet, in simulated time.
//!
//! The policy, the index and the accounting are the ones that serve ([`crate::routing`], [`crate::locality`],
//! [`crate::pool`]); only the engines and the clock are simulated.

pub mod report;
pub mod workload;
