//! Has the linker put the functions that requests run through side by side, as `warm.ld` lists them.
//!
//! A proxy that has little to do loses the processor's caches to others between two requests, and what the next one runs
//! through is fetched anew, line by line and page by page. Side by side it is on fewer pages than strewn over 18 MB.

#![expect(clippy::print_stdout, reason = "it is how a build script speaks")]

use std::env;

/// `off` is for linkers that take no scripts.
const SWITCH: &str = "WARMGATE_LINK_ORDER";

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed={SWITCH}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // Where it was measured. Names that a build does not have match nothing, so a list that has aged does less, not harm.
    // Linking by it takes ten seconds of a debug build, which is linked often and need not be fast.
    if is("PROFILE", "release")
        && !is(SWITCH, "off")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && let Ok(folder) = env::var("CARGO_MANIFEST_DIR")
    {
        for arg in ["-Xlinker", "-T", "-Xlinker", &format!("{folder}/build/warm.ld")] {
            println!("cargo::rustc-link-arg-bins={arg}");
        }
    }
}
