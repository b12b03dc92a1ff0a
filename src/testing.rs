//! What tests of several modules share.

use proptest::test_runner::{Config, RngSeed};

/// Property tests of so many cases, the same ones at every run.
pub(crate) fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::default() }
}
