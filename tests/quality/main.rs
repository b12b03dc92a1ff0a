//! Routing quality, claim by claim: what the default policy is said to do, and what is published of others, holds in the
//! simulator.
//!
//! Each test runs `warmgate simulate` as anybody can, prints the figures (`cargo test --test quality -- --nocapture`) and
//! fails with them. A run depends on its seed alone, so the figures are the same at every run; another processor may round
//! the last digit of a logarithm another way, which the margins cover. How long a command took is printed, not judged.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and shows its figures"
)]

#[cfg(target_arch = "x86_64")]
mod documents;
mod faults;
mod recorded;
mod simulated;
mod small;
mod utilization;
