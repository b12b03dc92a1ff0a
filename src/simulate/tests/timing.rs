//! Against a naive model: one backend, and requests so far apart that each is alone.

use super::*;
use crate::sim::engine::Parameters;

/// Seconds to the first and to the last token of a request alone on an engine that has `cached` tokens of its prompt.
fn naive(engine: &Parameters, cached: u32, prompt: u32, output: u32) -> (f64, f64) {
    let (mut computed, mut clock) = (cached, 0.0);
    while computed < prompt {
        let until = prompt.min(computed + engine.step_tokens);
        let prefill = engine.timing.prefill_seconds(computed, until);
        clock += engine.timing.step(prefill, 1, u64::from(computed)).as_secs_f64();
        computed = until;
    }
    let first_token = clock;
    for further in 1..output {
        clock += engine.timing.step(0.0, 1, u64::from(prompt + further - 1)).as_secs_f64();
    }
    (first_token, clock)
}

/// Each minute one of these texts; `cached` are the tokens of each that must be found.
fn check(model: Model, texts: &[(u64, u32)], cached: &[u32]) {
    let minutes = (0_u64..).map(|minute| seconds(minute * 60));
    let list: Vec<Ask> = minutes.zip(texts).map(|(start, &(name, tokens))| (start, name, tokens, 30)).collect();
    let setup = setup(1, model, 1_000_000);
    let records = by_arrival(&outcome(&asks(&list), &setup, COST));
    for ((record, &(_, tokens)), &cached) in records.iter().zip(texts).zip(cached) {
        assert_eq!(record.cached_blocks * BLOCK_TOKENS.get(), cached);
        assert_eq!((record.prefill_tokens, record.blocks), (tokens - cached, tokens / BLOCK_TOKENS));
        let (first_token, end) = naive(&setup.engine, cached, tokens, 30);
        let times = record.times.unwrap();
        let is_near = |left: f64, right: f64| (left - right).abs() < 1e-6;
        assert!(is_near(times.first_token, first_token), "{times:?}: {first_token} by hand");
        assert!(is_near(times.end, end), "{times:?}: {end} by hand");
        assert!(is_near(times.alone, first_token), "{times:?}: nothing else is done");
    }
}

#[test]
fn a_request_alone_takes_as_long_as_its_steps() {
    for model in [Model::Reference, Model::Linear, Model::Small] {
        check(model, &[(1, 200), (2, 2_048), (3, 10_000), (4, 1)], &[0, 0, 0, 0]);
    }
}

#[test]
fn what_is_cached_is_not_computed_again() {
    // 4,000 tokens are 62 whole blocks and 32 tokens; 640 are ten blocks, of which the last is computed for its last token.
    check(Model::Reference, &[(1, 4_000), (1, 4_000), (1, 9_000), (1, 640)], &[0, 3_968, 3_968, 576]);
}
