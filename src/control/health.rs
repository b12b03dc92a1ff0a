//! Active health: what a series of probe results makes of a backend.
//!
//! A backend starts as `starting`, which takes no requests: an engine accepts connections long before its weights are
//! loaded. Its first good probe makes it healthy; from then on `fall` failures in a row make it unhealthy and `rise`
//! successes in a row healthy again.

use crate::pool::Health;

/// Probe results of one backend, summed up.
#[derive(Debug, Clone)]
pub(super) struct Probes {
    rise: u32,
    fall: u32,
    health: Health,
    /// Results in a row that speak against `health`.
    contrary: u32,
}

// === impl Probes ===

impl Probes {
    /// No probe yet.
    pub(super) fn new(rise: u32, fall: u32) -> Self {
        Self { rise, fall, health: Health::Starting, contrary: 0 }
    }

    /// What the results so far say.
    pub(super) fn health(&self) -> Health {
        self.health
    }

    /// The same with what another process has found.
    pub(super) fn restore(&mut self, health: Health) {
        (self.health, self.contrary) = (health, 0);
    }

    /// Takes other thresholds, keeping what is known.
    pub(super) fn set_thresholds(&mut self, rise: u32, fall: u32) {
        (self.rise, self.fall) = (rise, fall);
    }

    /// Takes a result; the new health if it changed.
    pub(super) fn observe(&mut self, is_good: bool) -> Option<Health> {
        let (next, needed) = match (self.health, is_good) {
            (Health::Starting, true) => (Health::Healthy, 1),
            (Health::Healthy, false) => (Health::Unhealthy, self.fall),
            (Health::Unhealthy, true) => (Health::Healthy, self.rise),
            _ => {
                self.contrary = 0;
                return None;
            }
        };
        self.contrary += 1;
        if self.contrary < needed {
            return None;
        }
        self.contrary = 0;
        self.health = next;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_starts_until_its_first_good_probe_and_never_falls_before_it() {
        let mut probes = Probes::new(2, 3);
        for _ in 0..5 {
            assert_eq!(probes.observe(false), None);
            assert_eq!(probes.health(), Health::Starting);
        }
        assert_eq!(probes.observe(true), Some(Health::Healthy), "one good probe is enough the first time");
    }

    #[test]
    fn only_failures_in_a_row_make_it_unhealthy() {
        let mut probes = Probes::new(1, 3);
        probes.observe(true);
        for is_good in [false, false, true, false, false] {
            assert_eq!(probes.observe(is_good), None, "a success between them starts the count again");
        }
        assert_eq!(probes.observe(false), Some(Health::Unhealthy));
    }

    #[test]
    fn only_successes_in_a_row_bring_it_back() {
        let mut probes = Probes::new(2, 1);
        probes.observe(true);
        assert_eq!(probes.observe(false), Some(Health::Unhealthy));
        for is_good in [true, false, true] {
            assert_eq!(probes.observe(is_good), None);
        }
        assert_eq!(probes.observe(true), Some(Health::Healthy));
    }
}
