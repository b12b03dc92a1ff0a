//! Tells systemd what the process is doing (`sd_notify(3)`). Without systemd, nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

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

/// How often [`alive`] must be said, where systemd watches: half of its limit.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        log::warn!("systemd cannot be notified: {error}");
    }
}
