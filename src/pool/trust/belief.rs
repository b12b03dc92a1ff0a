//! One belief and its record: a decayed share of predicted tokens that came true.

use serde::{Deserialize, Serialize};

use super::{MIN_TOKENS, Reason};

/// Weight that earlier comparisons keep with each new one: half of it after 14.
const KEEP: f64 = 0.95;

/// Comparisons before a belief may change, and again before its next change.
const SAMPLES_BEFORE_CHANGE: u32 = 16;

/// Shares of predicted tokens at which a belief changes. Apart, so that it does not flutter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) lost_below: f64,
    pub(super) regained_from: f64,
}

/// Whether something is believed, and how it has fared since that last changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Belief {
    is_lost: bool,
    samples: u32,
    /// Decayed sums, tokens.
    predicted: f64,
    confirmed: f64,
}

// === impl Belief ===

impl Belief {
    pub(super) fn is_held(&self) -> bool {
        !self.is_lost
    }

    /// The same with sums that can be.
    pub(super) fn made_sound(self) -> Self {
        let is_sound = |sum: f64| sum.is_finite() && sum >= 0.0;
        if is_sound(self.predicted) && is_sound(self.confirmed) { self } else { Self::default() }
    }

    /// Takes in that of `predicted` tokens `confirmed` came true; a change of the belief, if that makes one. A count of
    /// what came true may be ahead of its prediction, by as much again as was predicted.
    pub(super) fn observe(&mut self, limits: Limits, predicted: u64, confirmed: u64) -> Option<Reason> {
        if predicted < MIN_TOKENS {
            if predicted == 0 {
                self.confirmed = (self.confirmed + confirmed as f64).min(2.0 * self.predicted);
            }
            return None;
        }
        self.confirmed += confirmed as f64;
        self.predicted += predicted as f64;
        self.confirmed = self.confirmed.min(2.0 * self.predicted);
        self.samples += 1;
        let share = self.confirmed / self.predicted;
        let reason = match self.is_lost {
            _ if self.samples < SAMPLES_BEFORE_CHANGE => None,
            false => (share < limits.lost_below).then_some(Reason::Disagrees),
            true => (share >= limits.regained_from).then_some(Reason::Agrees),
        };
        match reason {
            Some(reason) => *self = Self { is_lost: reason.is_loss(), ..Self::default() },
            None => {
                self.predicted *= KEEP;
                self.confirmed *= KEEP;
            }
        }
        reason
    }
}
