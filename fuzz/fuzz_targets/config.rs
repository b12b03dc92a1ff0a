//! Configuration files: any text is a configuration or gives problems that can be printed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmgate::config;

fuzz_target!(|text: &str| {
    // Files that it names are read when it is used, not here.
    match config::parse(text, "fuzzed") {
        Ok(parsed) => assert!(!parsed.listeners.is_empty(), "a configuration has a listener"),
        Err(problems) => assert!(!problems.to_string().is_empty(), "a problem is told"),
    }
});
