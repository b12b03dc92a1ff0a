//! What engines say on `/metrics`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warmgate::control::engine::EngineSample;

fuzz_target!(|text: &str| {
    let sample = EngineSample::read(text);
    for value in [sample.running, sample.waiting, sample.kv_usage].into_iter().flatten() {
        assert!(value.is_finite() && value >= 0.0, "a gauge is a number: {value}");
    }
    let _ = EngineSample::read_rank(text, 1).cached_tokens_since(&sample);
});
