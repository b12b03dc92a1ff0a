//! The program's own log: lines on standard error, at a level that a reload can change.

use std::io::Write;

use log::LevelFilter;

/// Starts the log. Under systemd each line carries its priority, and the journal adds the time.
pub(crate) fn start(level: LevelFilter) {
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let mut builder = env_logger::Builder::new();
    // The builder lets everything through; `set_level` is the filter, since it can change later.
    builder.filter_level(LevelFilter::Trace);
    // Dependencies log every connection that a client breaks off; at our levels they are noise.
    for noisy in ["pingora_core", "pingora_pool", "h2", "rustls"] {
        builder.filter_module(noisy, LevelFilter::Error);
    }
    // Below warnings they tell of each file that is written in the configuration's folder, which may be this log.
    for noisy in ["notify", "mio"] {
        builder.filter_module(noisy, LevelFilter::Warn);
    }
    // Errors for every pooled connection that a backend has closed, and for every client that leaves in its header.
    for noisy in ["pingora_core::connectors", "pingora_proxy"] {
        builder.filter_module(noisy, LevelFilter::Off);
    }
    if is_journal {
        builder.format(|out, record| writeln!(out, "<{}>{}", priority(record.level()), record.args()));
    }
    if builder.try_init().is_ok() {
        set_level(level);
    }
}

/// Changes the level.
pub(crate) fn set_level(level: LevelFilter) {
    log::set_max_level(level);
}

/// The level as a syslog priority (`sd-daemon(3)`).
fn priority(level: log::Level) -> u8 {
    match level {
        log::Level::Error => 3,
        log::Level::Warn => 4,
        log::Level::Info => 6,
        log::Level::Debug | log::Level::Trace => 7,
    }
}
