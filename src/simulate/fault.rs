//! What goes wrong in a simulated fleet, and when.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Something that happens to a backend at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Since the start, in simulated time.
    pub at: Duration,
    /// What happens.
    pub kind: FaultKind,
}

/// What happens to a backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// The engine process ends, with its cache and what it was at, and is back after a time.
    Restart {
        /// Counted from 0.
        backend: usize,
        /// How long it is away.
        down: Duration,
    },
    /// Every step of the engine takes so many times as long from now on.
    Slow {
        /// Counted from 0.
        backend: usize,
        /// Above 0; 1 is the normal speed.
        factor: f64,
    },
    /// One more backend, with an empty cache.
    Add,
}

/// A text that names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; a fault is restart@SECONDS:BACKEND[:SECONDS_DOWN], slow@SECONDS:BACKEND:FACTOR or add@SECONDS")]
pub struct ParseFaultError(String);

/// How long a restarted engine is away unless the fault says so: weights in the page cache, graphs compiled before.
const DOWN: Duration = Duration::from_secs(30);

// === impl FaultKind ===

impl FaultKind {
    /// The backend it happens to, unless it is a new one.
    pub fn backend(&self) -> Option<usize> {
        match *self {
            Self::Restart { backend, .. } | Self::Slow { backend, .. } => Some(backend),
            Self::Add => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        match self.kind {
            FaultKind::Restart { backend, down } => write!(f, "restart@{at}:{backend}:{}", down.as_secs_f64()),
            FaultKind::Slow { backend, factor } => write!(f, "slow@{at}:{backend}:{factor}"),
            FaultKind::Add => write!(f, "add@{at}"),
        }
    }
}

impl FromStr for Fault {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |what: &str| ParseFaultError(format!("{text:?}: {what}"));
        let (kind, rest) = text.split_once('@').ok_or_else(|| wrong("there is no @"))?;
        let mut fields = rest.split(':');
        let at = fields.next().and_then(seconds).ok_or_else(|| wrong("the time is not a number of seconds"))?;
        let mut backend = || fields.next().and_then(|field| field.parse().ok()).ok_or_else(|| wrong("which backend?"));
        let kind = match kind {
            "restart" => {
                let backend = backend()?;
                let down = match fields.next() {
                    Some(field) => seconds(field).ok_or_else(|| wrong("the time down is not a number of seconds"))?,
                    None => DOWN,
                };
                FaultKind::Restart { backend, down }
            }
            "slow" => {
                let backend = backend()?;
                let factor = fields.next().and_then(|field| field.parse::<f64>().ok());
                let factor = factor.filter(|factor| (0.01..=1e4).contains(factor));
                FaultKind::Slow {
                    backend,
                    factor: factor.ok_or_else(|| wrong("the factor is not within 0.01..10000"))?,
                }
            }
            "add" => FaultKind::Add,
            _ => return Err(wrong("it is none of restart, slow, add")),
        };
        if fields.next().is_some() {
            return Err(wrong("something follows"));
        }
        Ok(Self { at, kind })
    }
}

/// A number of seconds up to a year.
fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=3.2e7).contains(seconds))?;
    Some(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_as_it_is_written() {
        for text in ["restart@600:2:12.5", "slow@0.5:0:3", "add@60"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert_eq!(
            "restart@1:0".parse::<Fault>().unwrap().to_string(),
            "restart@1:0:30",
            "the time down has a default"
        );
    }

    #[test]
    fn what_is_no_fault_is_told() {
        for (text, what) in [
            ("restart", "no @"),
            ("restart@x:1", "not a number"),
            ("restart@-1:1", "not a number"),
            ("restart@1", "which backend"),
            ("restart@1:1:z", "time down"),
            ("slow@1:1", "factor"),
            ("slow@1:1:0", "factor"),
            ("add@1:2", "follows"),
            ("burn@1", "none of"),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
