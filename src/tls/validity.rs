//! When certificates are valid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long before its end a certificate is worth a warning: renewals are usually made 30 days before.
const SOON: i64 = 14 * 24 * 3600;

/// The time in which all certificates of a chain are valid, seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

/// What the time makes of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Good,
    /// It ends soon; what to say.
    EndsSoon(String),
    /// It is not valid; why.
    Invalid(String),
}

/// The time, seconds since 1970.
pub(crate) fn now_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

// === impl Validity ===

impl Validity {
    /// The time in which both are valid.
    pub(super) fn and(self, other: Self) -> Self {
        Self { not_before: self.not_before.max(other.not_before), not_after: self.not_after.min(other.not_after) }
    }

    pub(super) fn standing(self, now: i64) -> Standing {
        if now > self.not_after {
            Standing::Invalid(format!("expired on {}", shown(self.not_after)))
        } else if now < self.not_before {
            Standing::Invalid(format!("is not valid before {}; is the clock right?", shown(self.not_before)))
        } else if now > self.not_after - SOON {
            Standing::EndsSoon(format!("expires on {}", shown(self.not_after)))
        } else {
            Standing::Good
        }
    }
}

fn shown(seconds: i64) -> String {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    // A certificate without an end names the year 9999, the last that can be written.
    let last = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since.min(last)).to_string()
}
