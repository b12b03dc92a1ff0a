//! How many bytes of canonical prompt make a token, learned from what engines report.
//!
//! Two uses, two speeds. Lengths are converted with the learned value at once. The block size in bytes, which decides
//! what is a block at all, follows only when it is clearly wrong: a change makes every hash new, so all locality learned
//! before is lost to view at that moment. It should happen once after the start and then never.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Bytes per token before anything is learned: English text under common tokenizers.
const INITIAL_BYTES_PER_TOKEN: f64 = 4.0;

/// Learned values beyond these are not believed: less is not possible but for markup, more is a run of white space.
const MIN_BYTES_PER_TOKEN: f64 = 1.0;
const MAX_BYTES_PER_TOKEN: f64 = 16.0;

/// A single prompt outside this range was cut by the engine, or its count means something else.
const CREDIBLE_BYTES_PER_TOKEN: std::ops::RangeInclusive<f64> = 0.5..=32.0;

/// Shorter prompts teach nothing: the chat template's own tokens (20 to 40) outweigh the text.
const MIN_SAMPLE_TOKENS: u64 = 64;

/// Weight that old samples keep with each new one: half of it after 69.
const KEEP: f64 = 0.99;

/// Samples before the block size may change, and again before its next change.
const SAMPLES_BEFORE_CHANGE: u32 = 32;

/// How far the learned value must be from the one in use before the block size follows: 25 %.
const TOLERANCE: f64 = 0.25;

/// The scale of one pool: one model's tokenizer and template, and the block size of its engines.
///
/// Readers take atomics without a lock; each is valid by itself, and no two are read as a pair. Samples are taken in
/// under a private lock, held for a few additions. All orderings are relaxed.
#[derive(Debug)]
pub struct Scale {
    /// `f64` bits. Written under `state`, read by every request.
    bytes_per_token: AtomicU64,
    /// Never 0. Written under `state`, read by every request.
    block_bytes: AtomicU32,
    /// Never 0. Written under `state`, read by every request.
    block_tokens: AtomicU32,
    state: Mutex<State>,
}

/// One answered request.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Canonical bytes of the prompt, all of them.
    pub prompt_bytes: u64,
    /// Tokens of the prompt as the engine counted them, cached ones included.
    pub prompt_tokens: u64,
    /// Images, audio, video or files in the prompt: such a sample is not used.
    pub has_media: bool,
}

/// What a scale has learned, for another process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScaleRecord {
    bytes: f64,
    tokens: f64,
    in_use: f64,
    samples_since_change: u32,
}

#[derive(Debug)]
struct State {
    block_tokens: NonZeroU32,
    /// Decayed sums over samples.
    bytes: f64,
    tokens: f64,
    /// Bytes per token that the block size was made with.
    in_use: f64,
    samples_since_change: u32,
}

// === impl Scale ===

impl Scale {
    /// A scale that has learned nothing, for engines with blocks of `block_tokens` tokens.
    pub fn new(block_tokens: NonZeroU32) -> Self {
        Self::starting_at(block_tokens, INITIAL_BYTES_PER_TOKEN)
    }

    /// The same with another first guess at the bytes per token.
    pub fn starting_at(block_tokens: NonZeroU32, bytes_per_token: f64) -> Self {
        let in_use = bytes_per_token.clamp(MIN_BYTES_PER_TOKEN, MAX_BYTES_PER_TOKEN);
        let state = State { block_tokens, bytes: 0.0, tokens: 0.0, in_use, samples_since_change: 0 };
        Self {
            bytes_per_token: AtomicU64::new(in_use.to_bits()),
            block_bytes: AtomicU32::new(state.block_bytes().get()),
            block_tokens: AtomicU32::new(block_tokens.get()),
            state: Mutex::new(state),
        }
    }

    /// Learns from an answered request. Prompts of token ids are not samples: they have no text to measure.
    pub fn observe(&self, sample: Sample) {
        let mut state = self.state.lock();
        if let Some(bytes_per_token) = state.observe(sample) {
            self.bytes_per_token.store(bytes_per_token.to_bits(), Ordering::Relaxed);
            self.block_bytes.store(state.block_bytes().get(), Ordering::Relaxed);
        }
    }

    /// What was learned.
    pub fn record(&self) -> ScaleRecord {
        let State { bytes, tokens, in_use, samples_since_change, .. } = *self.state.lock();
        ScaleRecord { bytes, tokens, in_use, samples_since_change }
    }

    /// Goes on from there, so that prompts are cut into the same blocks; what cannot be is left alone.
    pub fn restore(&self, record: ScaleRecord) {
        let ScaleRecord { bytes, tokens, in_use, samples_since_change } = record;
        let is_sound = |sum: f64| sum.is_finite() && sum >= 0.0;
        if !(MIN_BYTES_PER_TOKEN..=MAX_BYTES_PER_TOKEN).contains(&in_use) || !is_sound(bytes) || !is_sound(tokens) {
            return;
        }
        let mut state = self.state.lock();
        *state = State { block_tokens: state.block_tokens, bytes, tokens, in_use, samples_since_change };
        let learned = state.learned().unwrap_or(in_use);
        self.bytes_per_token.store(learned.to_bits(), Ordering::Relaxed);
        self.block_bytes.store(state.block_bytes().get(), Ordering::Relaxed);
    }

    /// Takes over the engines' block size once it is known; every block hash is new if it differs.
    pub fn set_block_tokens(&self, block_tokens: NonZeroU32) {
        let mut state = self.state.lock();
        state.block_tokens = block_tokens;
        self.block_tokens.store(block_tokens.get(), Ordering::Relaxed);
        self.block_bytes.store(state.block_bytes().get(), Ordering::Relaxed);
    }

    /// Learned bytes per token, 1 to 16.
    pub fn bytes_per_token(&self) -> f64 {
        f64::from_bits(self.bytes_per_token.load(Ordering::Relaxed))
    }

    /// Block size for prompts of text, bytes.
    pub fn block_bytes(&self) -> NonZeroU32 {
        NonZeroU32::new(self.block_bytes.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// The engines' block size, tokens.
    pub fn block_tokens(&self) -> NonZeroU32 {
        NonZeroU32::new(self.block_tokens.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Tokens that `bytes` of canonical text come to, rounded; 0 only for 0.
    pub fn tokens(&self, bytes: u64) -> u64 {
        ((bytes as f64 / self.bytes_per_token()).round() as u64).max(u64::from(bytes > 0))
    }

    /// Bytes of canonical text that `tokens` come to, rounded.
    pub fn bytes(&self, tokens: u64) -> u64 {
        (tokens as f64 * self.bytes_per_token()).round() as u64
    }
}

// === impl State ===

impl State {
    /// Takes in a sample; the new bytes per token, if it was of use.
    fn observe(&mut self, sample: Sample) -> Option<f64> {
        let (bytes, tokens) = (sample.prompt_bytes as f64, sample.prompt_tokens as f64);
        let is_credible = CREDIBLE_BYTES_PER_TOKEN.contains(&(bytes / tokens));
        if sample.has_media || sample.prompt_tokens < MIN_SAMPLE_TOKENS || !is_credible {
            return None;
        }
        self.bytes = self.bytes * KEEP + bytes;
        self.tokens = self.tokens * KEEP + tokens;
        self.samples_since_change = self.samples_since_change.saturating_add(1);
        let learned = self.learned()?;
        let is_off = (learned / self.in_use - 1.0).abs() > TOLERANCE;
        if is_off && self.samples_since_change >= SAMPLES_BEFORE_CHANGE {
            self.in_use = learned;
            self.samples_since_change = 0;
        }
        Some(learned)
    }

    /// Bytes per token by all samples; none without one.
    fn learned(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| (self.bytes / self.tokens).clamp(MIN_BYTES_PER_TOKEN, MAX_BYTES_PER_TOKEN))
    }

    fn block_bytes(&self) -> NonZeroU32 {
        let bytes = (f64::from(self.block_tokens.get()) * self.in_use).round();
        // A float beyond the range becomes the largest value.
        NonZeroU32::new(bytes as u32).unwrap_or(NonZeroU32::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scale() -> Scale {
        Scale::new(NonZeroU32::new(16).unwrap())
    }

    fn text(prompt_bytes: u64, prompt_tokens: u64) -> Sample {
        Sample { prompt_bytes, prompt_tokens, has_media: false }
    }

    #[test]
    fn it_starts_at_four_bytes_a_token() {
        let scale = scale();
        assert_eq!(scale.block_bytes().get(), 64);
        assert_eq!((scale.tokens(400), scale.bytes(100)), (100, 400));
        assert_eq!((scale.tokens(0), scale.tokens(1)), (0, 1), "something is never nothing");
        assert_eq!(scale.block_tokens().get(), 16);
    }

    #[test]
    fn lengths_follow_at_once_and_blocks_after_32_samples() {
        let scale = scale();
        scale.observe(text(2000, 1000));
        assert_eq!(scale.bytes(100), 200);
        for _ in 0..30 {
            scale.observe(text(2000, 1000));
        }
        assert_eq!(scale.block_bytes().get(), 64, "31 samples are not enough");
        scale.observe(text(2000, 1000));
        assert_eq!(scale.block_bytes().get(), 32);
    }

    #[test]
    fn a_small_error_moves_no_block() {
        let scale = scale();
        for _ in 0..10_000 {
            scale.observe(text(4900, 1000));
        }
        assert_eq!(scale.block_bytes().get(), 64, "22 % off is left alone: a change makes every hash new");
        assert_eq!(scale.bytes(1000), 4900);
    }

    #[test]
    fn a_second_change_needs_samples_of_its_own() {
        let scale = scale();
        for _ in 0..32 {
            scale.observe(text(2000, 1000));
        }
        for _ in 0..31 {
            scale.observe(text(1_600_000, 100_000));
        }
        assert_eq!(scale.block_bytes().get(), 32);
        scale.observe(text(1_600_000, 100_000));
        assert!(scale.block_bytes().get() > 200, "now it follows");
    }

    #[test]
    fn media_short_prompts_and_incredible_counts_teach_nothing() {
        let scale = scale();
        for sample in [
            Sample { has_media: true, ..text(2000, 1000) },
            text(126, 63),
            text(1_000_000, 1000),
            text(100, 1000),
            text(0, 0),
            text(100, 0),
        ] {
            (0..100).for_each(|_| scale.observe(sample));
            assert_eq!((scale.bytes_per_token(), scale.block_bytes().get()), (4.0, 64), "{sample:?}");
        }
    }

    #[test]
    fn the_engines_block_size_is_taken_over() {
        let scale = scale();
        scale.set_block_tokens(NonZeroU32::new(32).unwrap());
        assert_eq!((scale.block_bytes().get(), scale.block_tokens().get()), (128, 32));
    }

    #[test]
    fn another_process_goes_on_where_this_one_is() {
        let (old, new) = (scale(), scale());
        new.restore(old.record());
        assert_eq!((new.bytes_per_token(), new.block_bytes().get()), (4.0, 64), "nothing learned is nothing restored");
        for _ in 0..40 {
            old.observe(text(2000, 1000));
        }
        new.restore(old.record());
        assert_eq!((new.bytes_per_token(), new.block_bytes()), (old.bytes_per_token(), old.block_bytes()));
        for _ in 0..40 {
            old.observe(text(9000, 1000));
            new.observe(text(9000, 1000));
            assert_eq!((new.bytes_per_token(), new.block_bytes()), (old.bytes_per_token(), old.block_bytes()));
        }
        for wrong in [f64::NAN, 0.0, 1e9] {
            new.restore(ScaleRecord { in_use: wrong, ..old.record() });
        }
        new.restore(ScaleRecord { tokens: f64::INFINITY, ..old.record() });
        assert_eq!(new.record(), old.record(), "what cannot be is left alone");
    }

    #[test]
    fn threads_lose_no_sample() {
        let scale = scale();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..8).for_each(|_| scale.observe(text(2000, 1000))));
            }
        });
        assert_eq!(scale.block_bytes().get(), 32, "32 samples were given, and it takes each of them");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn it_stays_in_its_range_whatever_is_reported(
            samples in prop::collection::vec((0..u64::MAX, 0..u64::MAX), 0..100),
            near in prop::collection::vec((1..400_u64, 1..40_u64), 0..100),
            block_tokens in 1..u32::MAX,
        ) {
            let scale = Scale::new(NonZeroU32::new(block_tokens).unwrap());
            let near = near.into_iter().map(|(bytes, tokens)| (bytes * 100, tokens * 100));
            for (bytes, tokens) in samples.into_iter().chain(near) {
                scale.observe(text(bytes, tokens));
                prop_assert!((1.0..=16.0).contains(&scale.bytes_per_token()));
                let block_bytes = u64::from(scale.block_bytes().get());
                prop_assert!(block_bytes >= u64::from(block_tokens).min(u64::from(u32::MAX)));
                prop_assert!(block_bytes <= u64::from(block_tokens) * 16);
            }
        }
    }
}
