//! What tests of several modules share.

use std::path::PathBuf;

use proptest::test_runner::{Config, RngSeed};

/// Property tests of so many cases, the same ones at every run.
pub(crate) fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::default() }
}

/// A file or folder of recordings of real engines. They are not part of the project: they lie in `../shared` beside the
/// checkout, or where the environment variable `WARMGATE_SHARED` points. Where there are none, a test that needs them says
/// so, by this function, and passes.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("WARMGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")), PathBuf::from);
    let path = shared.join(path);
    if !path.exists() {
        println!("skipped: no recordings at {}", path.display());
        return None;
    }
    Some(path)
}
