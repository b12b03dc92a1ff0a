//! Tells systemd what the process is doing (`sd_notify(3)`). Without systemd, nothing happens.
//!
//! A process that has handed over is silent: whatever it said would be taken for the new one's word.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sd_notify::NotifyState;

/// Written by [`handed_over`], read by whoever has something to say.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// The process takes requests.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload has begun; [`ready`] ends it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(since) => send(&[NotifyState::Reloading, since]),
        Err(error) => log::warn!("systemd is not told of the reload: {error}"),
    }
}

/// The process winds down.
pub(crate) fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// The process is alive.
pub(crate) fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// Process `successor` is the main one from now on. Said by the old one, whom systemd believes whatever the unit's
/// `NotifyAccess=` is.
pub(crate) fn handed_over(successor: u32) {
    send(&[NotifyState::MainPid(successor)]);
    IS_SILENT.store(true, Relaxed);
}

/// How often [`alive`] must be said, where systemd watches: half of its limit.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn send(state: &[NotifyState<'_>]) {
    if IS_SILENT.load(Relaxed) {
        return;
    }
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("systemd cannot be notified: {error}");
    }
}
