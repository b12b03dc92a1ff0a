//! How long one step of the simulated engine takes.
//!
//! The form is the one measured of large models on several accelerators: a fixed cost a step, then the larger of reading
//! the weights (which bounds decoding) and computing the prefill chunk, then a little for every sequence and for every KV
//! token attended to. Prefill is linear in its tokens plus a quadratic part for attention, and a step that contains any may
//! cost something more.

use std::time::Duration;

/// Coefficients of the step time. All in seconds; each is zero or more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Fixed cost of a step: scheduling, launches, sampling.
    pub step_seconds: f64,
    /// The least a step computes for: reading the weights once. A lone decoding sequence gets a token in
    /// `step_seconds + decode_seconds`.
    pub decode_seconds: f64,
    /// Prefill, once for each step that contains any.
    pub prefill_step_seconds: f64,
    /// Prefill, for one token.
    pub prefill_seconds_per_token: f64,
    /// Prefill, for one token squared: `n` tokens from nothing cost `n * linear + n * n * quadratic`.
    pub prefill_seconds_per_token_squared: f64,
    /// For every running sequence.
    pub sequence_seconds: f64,
    /// For every KV token that the running sequences hold.
    pub kv_token_seconds: f64,
}

// === impl Timing ===

impl Timing {
    /// A 70B-class model on eight accelerators: about 8,900 prefill tokens a second at a prompt of 8,000, 15 ms a token
    /// when decoding alone.
    pub const REFERENCE: Self = Self {
        step_seconds: 4e-3,
        decode_seconds: 11e-3,
        prefill_step_seconds: 0.0,
        prefill_seconds_per_token: 94.6e-6,
        prefill_seconds_per_token_squared: 2.1e-9,
        sequence_seconds: 40e-6,
        kv_token_seconds: 2.56e-8,
    };

    /// A small model: 4 ms a token; a prefill alone takes 30 ms for 150 tokens and 61 ms for 2,400.
    pub const SMALL: Self = Self {
        step_seconds: 0.0,
        decode_seconds: 4e-3,
        prefill_step_seconds: 28e-3,
        prefill_seconds_per_token: 13.75e-6,
        prefill_seconds_per_token_squared: 0.0,
        sequence_seconds: 0.0,
        kv_token_seconds: 0.0,
    };

    /// Rates a person can follow: `prefill_rate` prompt tokens a second, `decode_rate` steps a second.
    pub fn from_rates(prefill_rate: f64, decode_rate: f64) -> Self {
        Self {
            step_seconds: 0.0,
            decode_seconds: 1.0 / decode_rate,
            prefill_step_seconds: 0.0,
            prefill_seconds_per_token: 1.0 / prefill_rate,
            prefill_seconds_per_token_squared: 0.0,
            sequence_seconds: 0.0,
            kv_token_seconds: 0.0,
        }
    }

    /// The same on hardware that does everything `factor` times as fast.
    pub fn faster(self, factor: f64) -> Self {
        Self {
            step_seconds: self.step_seconds / factor,
            decode_seconds: self.decode_seconds / factor,
            prefill_step_seconds: self.prefill_step_seconds / factor,
            prefill_seconds_per_token: self.prefill_seconds_per_token / factor,
            prefill_seconds_per_token_squared: self.prefill_seconds_per_token_squared / factor,
            sequence_seconds: self.sequence_seconds / factor,
            kv_token_seconds: self.kv_token_seconds / factor,
        }
    }

    /// Seconds of compute that take a prompt from its first `from` tokens to its first `to`.
    pub fn prefill_seconds(&self, from: u32, to: u32) -> f64 {
        let (from, to) = (f64::from(from), f64::from(to));
        (to - from) * self.prefill_seconds_per_token + (to * to - from * from) * self.prefill_seconds_per_token_squared
    }

    /// Seconds until an engine that does nothing else has computed a prompt from its first `from` tokens to its first
    /// `to`, in steps of `step_tokens`.
    pub fn alone(&self, from: u32, to: u32, step_tokens: u32) -> f64 {
        let starts = (from..to).step_by(step_tokens.max(1) as usize);
        let steps = starts.map(|start| {
            let end = to.min(start.saturating_add(step_tokens.max(1)));
            self.step(self.prefill_seconds(start, end), 1, start.into()).as_secs_f64()
        });
        steps.sum()
    }

    /// The length of a step that computes `prefill_seconds` of prefill with `running` sequences holding `kv_tokens`.
    /// At least a microsecond, so that simulated time always moves.
    pub fn step(&self, prefill_seconds: f64, running: usize, kv_tokens: u64) -> Duration {
        let fixed = if prefill_seconds > 0.0 { self.prefill_step_seconds } else { 0.0 };
        let seconds = self.step_seconds
            + self.decode_seconds.max(fixed + prefill_seconds)
            + self.sequence_seconds * running as f64
            + self.kv_token_seconds * kv_tokens as f64;
        bounded(seconds)
    }
}

/// The nearest length that a step may have.
pub(super) fn bounded(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(MAX_STEP).clamp(MIN_STEP, MAX_STEP)
}

const MIN_STEP: Duration = Duration::from_micros(1);
/// No real step lasts this long; coefficients that say so are a mistake which must not stop the clock for good.
const MAX_STEP: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_prompt_cost_what_the_prompt_costs() {
        let timing = Timing::REFERENCE;
        let whole = timing.prefill_seconds(0, 8192);
        let chunks: f64 = (0..4).map(|chunk| timing.prefill_seconds(chunk * 2048, (chunk + 1) * 2048)).sum();
        assert!((whole - chunks).abs() < 1e-9, "{whole} in one piece, {chunks} in four");
        assert!((8192.0 / whole - 8900.0).abs() < 100.0, "the reference prefills {} tokens a second", 8192.0 / whole);
    }

    #[test]
    fn prefill_hides_behind_the_weights_until_it_is_larger() {
        let timing = Timing::from_rates(1000.0, 100.0);
        assert_eq!(timing.step(0.002, 4, 100), Duration::from_millis(10), "a small chunk rides along with decoding");
        assert_eq!(timing.step(0.25, 4, 100), Duration::from_millis(250), "a large one sets the pace");
    }

    #[test]
    fn a_step_with_prefill_pays_its_fixed_part_once() {
        let millis = |tokens| {
            let prefill_seconds = Timing::SMALL.prefill_seconds(0, tokens);
            Timing::SMALL.step(prefill_seconds, 1, 0).as_secs_f64() * 1e3
        };
        let lengths = [millis(0), millis(150), millis(2400)];
        for (length, expected) in lengths.into_iter().zip([4.0, 30.06, 61.0]) {
            assert!((length - expected).abs() < 0.01, "a step took {length} ms instead of {expected}");
        }
    }

    #[test]
    fn faster_hardware_is_faster_at_everything() {
        let all = Timing { prefill_step_seconds: 0.01, ..Timing::REFERENCE };
        let length = |timing: Timing| timing.step(timing.prefill_seconds(1000, 3000), 20, 100_000).as_secs_f64();
        assert!((length(all) / length(all.faster(2.6)) - 2.6).abs() < 1e-6);
        let decode = |timing: Timing| timing.step(0.0, 20, 100_000).as_secs_f64();
        assert!((decode(all) / decode(all.faster(2.6)) - 2.6).abs() < 1e-6);
    }

    #[test]
    fn absurd_coefficients_neither_stop_nor_hang_the_clock() {
        let instant = Timing::from_rates(f64::INFINITY, f64::INFINITY);
        assert_eq!(instant.step(0.0, 1, 1), MIN_STEP);
        let frozen = Timing::from_rates(0.0, 0.0);
        assert_eq!(frozen.step(f64::NAN, 1, 1), MAX_STEP);
    }
}
