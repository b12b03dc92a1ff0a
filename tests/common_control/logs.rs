//! The log of a proxy that runs in this process. All tests of a binary share it, so each looks for names of its own.

use std::sync::{Mutex, Once};

use log::{LevelFilter, Log, Metadata, Record};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

impl Log for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("warmgate")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            LINES.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// Starts to collect, once a process.
pub fn collect() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        log::set_logger(&Collector).expect("nobody else in a test binary sets a logger");
        log::set_max_level(LevelFilter::Info);
    });
}

/// The lines so far that hold all of `parts`; each starts with its level.
pub fn lines_with(parts: &[&str]) -> Vec<String> {
    LINES.lock().unwrap().iter().filter(|line| parts.iter().all(|part| line.contains(part))).cloned().collect()
}

/// How many lines there are with all of `parts`.
pub fn count(parts: &[&str]) -> usize {
    lines_with(parts).len()
}
