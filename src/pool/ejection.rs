//! Passive ejection: real requests that fail take a backend out, and real requests bring it back.
//!
//! ```text
//! Serving --failures in a row, or stuck--> Ejected --time is up, one request--> Probing --success--> Serving
//!                                             ^                                    |
//!                                             +--- failure (for longer), or lost --+
//! ```
//!
//! Each ejection lasts twice as long as the one before it, up to a limit; a backend that then serves for that limit
//! without another ejection starts afresh. A **stuck** backend (it holds streams and gives no token) is ejected at once
//! and comes back as soon as a token comes, or by a probe like any other.
//!
//! Failures are counted as by linkerd's consecutive-failures breaker, the times are those of Envoy's outlier detection.
//! Only a request that was admitted in the present state is heard: answers to requests sent before the ejection say
//! nothing about the backend now. [`Ejection::admission`] reads one atomic; everything else takes a short lock. Whether
//! a backend is used nevertheless because all are out is for `routing` to say.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::time::Moment;

/// When to eject, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EjectionSettings {
    /// Failures in a row that eject; those that say the backend is gone weigh two ([`FailureKind::weight`]).
    pub failures: NonZeroU32,
    /// The first ejection's time.
    pub base: Duration,
    /// The longest ejection's time.
    pub max: Duration,
    /// A backend that holds streams and gives no token for this long is stuck.
    pub stuck_after: Duration,
}

/// What went wrong with a request. Answers that are the engine's right to give are no failures: 4xx (429 with them),
/// and 503 for overload; nor is the reset of a pooled connection that had gone stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No connection, TLS included.
    Connect,
    /// The connection broke before the answer's end.
    Reset,
    /// A 5xx answer, except 503 for overload.
    ServerError,
    /// An answer without a token, or one that the engine gave up: it is about to stop.
    Aborted,
    /// Silence for longer than a limit of time.
    Silent,
}

/// Whether requests may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Any number.
    Open,
    /// One, with a [`ProbePermit`].
    Probe,
    /// None before this moment; `None` while a probe is under way.
    Closed {
        /// When a probe will be admitted.
        until: Option<Moment>,
    },
}

/// Why a backend was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EjectionCause {
    /// Too many failures in a row, the last of this kind.
    Failures(FailureKind),
    /// It held requests and gave no token.
    Stuck,
}

/// A change of state, reported once so that it is logged once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Out.
    Ejected {
        /// What for.
        cause: EjectionCause,
        /// When a probe will be admitted.
        until: Moment,
        /// The how-many-th ejection in a row.
        times: u32,
    },
    /// Back.
    Readmitted,
}

/// A backend's ejection state; shared by all snapshots.
#[derive(Debug)]
pub struct Ejection {
    machine: Mutex<Machine>,
    /// [`OPEN`], [`PROBING`] or the nanoseconds of the moment a probe is admitted. Written under the lock, read by
    /// anyone, `Relaxed`: it is a hint, as a permit is given out under the lock.
    gate: AtomicU64,
}

/// The right to send the one probing request. Given back by the verdict on it, or by its drop: then the backend stays
/// ejected without penalty, and the next request may probe.
#[derive(Debug)]
#[must_use = "dropping it gives up the probe"]
pub struct ProbePermit {
    ejection: Arc<Ejection>,
    epoch: u64,
}

/// An ejection state for another process, whose moments mean nothing here: all times are from now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EjectionRecord {
    /// Ejections in a row.
    times: u32,
    /// How long the present state has lasted.
    lasted: Duration,
    /// Failures in a row, while it serves.
    failures: u32,
    /// What for it is out, and for how long still, if it is out. One that is being probed is due for a probe.
    out: Option<(EjectionCause, Duration)>,
}

const OPEN: u64 = 0;
const PROBING: u64 = u64::MAX;

#[derive(Debug)]
struct Machine {
    state: State,
    /// Ejections in a row.
    times: u32,
    /// When the present state began.
    since: Moment,
    /// Number of the present state, so that a permit of an earlier one is void.
    epoch: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Serving { failures: u32 },
    Ejected(Sentence),
    Probing(Sentence),
}

#[derive(Debug, Clone, Copy)]
struct Sentence {
    cause: EjectionCause,
    at: Moment,
    until: Moment,
}

// === impl EjectionSettings ===

impl Default for EjectionSettings {
    fn default() -> Self {
        Self {
            failures: NonZeroU32::MIN.saturating_add(4),
            base: Duration::from_secs(5),
            max: Duration::from_secs(60),
            stuck_after: Duration::from_secs(60),
        }
    }
}

impl EjectionSettings {
    fn time(&self, times: u32) -> Duration {
        let doublings = times.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.max)
    }
}

// === impl FailureKind ===

impl FailureKind {
    /// How many failures it counts as. A refused or broken connection means that the process is gone, an answer that was
    /// given up or never came that it is going; a 5xx may be one request's own fault.
    pub fn weight(self) -> u32 {
        match self {
            Self::Connect | Self::Reset | Self::Aborted | Self::Silent => 2,
            Self::ServerError => 1,
        }
    }

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::ServerError => "server_error",
            Self::Aborted => "aborted",
            Self::Silent => "silent",
        }
    }
}

// === impl Transition ===

impl Transition {
    /// Writes it to the log, once, by whoever caused it.
    pub fn log(self, backend: &str, now: Moment) {
        match self {
            Self::Ejected { cause, until, times } => {
                let seconds = until.since(now).as_secs_f64();
                log::warn!(
                    "backend {backend} ejected for {seconds:.1} s: {} (ejection {times} in a row)",
                    cause.name()
                );
            }
            Self::Readmitted => log::info!("backend {backend} readmitted"),
        }
    }
}

// === impl EjectionCause ===

impl EjectionCause {
    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failures(kind) => kind.name(),
            Self::Stuck => "stuck",
        }
    }
}

// === impl Ejection ===

impl Default for Ejection {
    fn default() -> Self {
        let machine = Machine { state: State::Serving { failures: 0 }, times: 0, since: Moment::ORIGIN, epoch: 0 };
        Self { machine: Mutex::new(machine), gate: AtomicU64::new(OPEN) }
    }
}

impl Ejection {
    /// Whether requests may be sent now.
    pub fn admission(&self, now: Moment) -> Admission {
        match self.gate.load(Relaxed) {
            OPEN => Admission::Open,
            PROBING => Admission::Closed { until: None },
            until if until <= now.as_nanos() => Admission::Probe,
            until => Admission::Closed { until: Some(Moment::from_nanos(until)) },
        }
    }

    /// The right to send the probing request, if its time has come and nobody else has it.
    pub fn try_probe(self: &Arc<Self>, now: Moment) -> Option<ProbePermit> {
        let epoch = self.change(|machine| match machine.state {
            State::Ejected(sentence) if sentence.until <= now => {
                machine.enter(State::Probing(sentence), now);
                Some(machine.epoch)
            }
            _ => None,
        })?;
        Some(ProbePermit { ejection: Arc::clone(self), epoch })
    }

    /// A request was answered (with anything that is no failure); `permit` if it was the probe.
    pub fn record_success(&self, permit: Option<ProbePermit>, now: Moment) -> Option<Transition> {
        self.change(|machine| match machine.state {
            State::Serving { .. } => {
                machine.state = State::Serving { failures: 0 };
                None
            }
            State::Probing(_) if self.is_valid(permit.as_ref(), machine) => Some(machine.readmit(now)),
            State::Probing(_) | State::Ejected(_) => None,
        })
    }

    /// A request failed; `permit` if it was the probe.
    pub fn record_failure(
        &self,
        permit: Option<ProbePermit>,
        kind: FailureKind,
        settings: &EjectionSettings,
        now: Moment,
    ) -> Option<Transition> {
        let cause = EjectionCause::Failures(kind);
        self.change(|machine| match machine.state {
            State::Serving { failures } => {
                let failures = failures.saturating_add(kind.weight());
                machine.state = State::Serving { failures };
                (failures >= settings.failures.get()).then(|| machine.eject(cause, settings, now))
            }
            State::Probing(_) if self.is_valid(permit.as_ref(), machine) => Some(machine.eject(cause, settings, now)),
            State::Probing(_) | State::Ejected(_) => None,
        })
    }

    /// Tells how long the backend has held streams in silence ([`super::Load::stuck_for`]), of which only the time in
    /// the present state counts; ejects it if that is too long.
    pub fn note_silence(&self, stuck_for: Duration, settings: &EjectionSettings, now: Moment) -> Option<Transition> {
        if stuck_for < settings.stuck_after {
            return None;
        }
        self.change(|machine| {
            let is_out = matches!(machine.state, State::Ejected(_));
            (!is_out && now.since(machine.since) >= settings.stuck_after)
                .then(|| machine.eject(EjectionCause::Stuck, settings, now))
        })
    }

    /// Tells when the last token came ([`super::Load::last_progress`]); brings a stuck backend back if it came after
    /// the ejection.
    pub fn note_progress(&self, at: Moment, now: Moment) -> Option<Transition> {
        if self.gate.load(Relaxed) == OPEN {
            return None;
        }
        self.change(|machine| match machine.state {
            State::Ejected(sentence) | State::Probing(sentence)
                if sentence.cause == EjectionCause::Stuck && at > sentence.at =>
            {
                Some(machine.readmit(now))
            }
            _ => None,
        })
    }

    /// The state for another process.
    pub fn record(&self, now: Moment) -> EjectionRecord {
        let machine = self.machine.lock();
        let (failures, out) = match machine.state {
            State::Serving { failures } => (failures, None),
            State::Ejected(sentence) => (0, Some((sentence.cause, sentence.until.since(now)))),
            State::Probing(sentence) => (0, Some((sentence.cause, Duration::ZERO))),
        };
        EjectionRecord { times: machine.times, lasted: now.since(machine.since), failures, out }
    }

    /// Goes on from there. None is out for longer than `settings` would have it.
    pub fn restore(&self, record: EjectionRecord, settings: &EjectionSettings, now: Moment) {
        let EjectionRecord { times, lasted, failures, out } = record;
        // A moment before this process began cannot be told, so what a long service has earned is given at once.
        let since = Moment::at(Duration::from_nanos(now.as_nanos()).saturating_sub(lasted));
        let times = if out.is_none() && lasted >= settings.max { 0 } else { times };
        self.change(|machine| {
            let state = match out {
                None => State::Serving { failures },
                Some((cause, rest)) => State::Ejected(Sentence { cause, at: now, until: now + rest.min(settings.max) }),
            };
            machine.enter(state, since);
            machine.times = times;
        });
    }

    fn is_valid(&self, permit: Option<&ProbePermit>, machine: &Machine) -> bool {
        permit.is_some_and(|permit| std::ptr::eq(&*permit.ejection, self) && permit.epoch == machine.epoch)
    }

    /// Runs `change` under the lock and publishes the gate it left.
    fn change<R>(&self, change: impl FnOnce(&mut Machine) -> R) -> R {
        let mut machine = self.machine.lock();
        let result = change(&mut machine);
        let gate = match machine.state {
            State::Serving { .. } => OPEN,
            State::Probing(_) => PROBING,
            State::Ejected(sentence) => sentence.until.as_nanos().clamp(OPEN + 1, PROBING - 1),
        };
        self.gate.store(gate, Relaxed);
        result
    }
}

// === impl ProbePermit ===

impl Drop for ProbePermit {
    fn drop(&mut self) {
        // After a verdict the epoch has moved on and this does nothing.
        self.ejection.change(|machine| match machine.state {
            State::Probing(sentence) if machine.epoch == self.epoch => {
                machine.enter(State::Ejected(sentence), machine.since);
            }
            _ => {}
        });
    }
}

// === impl Machine ===

impl Machine {
    fn enter(&mut self, state: State, now: Moment) {
        self.state = state;
        self.since = now;
        self.epoch += 1;
    }

    fn eject(&mut self, cause: EjectionCause, settings: &EjectionSettings, now: Moment) -> Transition {
        let has_served_long = matches!(self.state, State::Serving { .. }) && now.since(self.since) >= settings.max;
        self.times = if has_served_long { 1 } else { self.times.saturating_add(1) };
        let until = now + settings.time(self.times);
        self.enter(State::Ejected(Sentence { cause, at: now, until }), now);
        Transition::Ejected { cause, until, times: self.times }
    }

    fn readmit(&mut self, now: Moment) -> Transition {
        self.enter(State::Serving { failures: 0 }, now);
        Transition::Readmitted
    }
}

#[cfg(test)]
mod tests;
