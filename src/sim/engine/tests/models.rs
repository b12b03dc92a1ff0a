//! The named models give the figures that they are named for.

use super::*;

/// Seconds to the first token of a prompt alone, and from there to the second.
fn seconds(model: Model, prompt_tokens: u32) -> (f64, f64) {
    let quiet = Parameters { noise: Noise::default(), ..model.parameters(16, 100_000) };
    let mut engine = Engine::new(quiet);
    let id = engine.submit(request(1, 1, prompt_tokens, 2), Moment::ORIGIN).unwrap();
    let times = token_times(&drain(&mut engine), id);
    (times[0].since(Moment::ORIGIN).as_secs_f64(), times[1].since(times[0]).as_secs_f64())
}

fn assert_near(actual: f64, expected: f64, what: &str) {
    assert!((actual / expected - 1.0).abs() < 0.01, "{what}: {actual} instead of {expected}");
}

#[test]
fn names_lead_back_to_models() {
    assert!(Model::ALL.into_iter().all(|model| Model::named(model.name()) == Some(model)));
    assert_eq!(Model::named("none"), None);
}

#[test]
fn the_reference_computes_8000_tokens_in_less_than_a_second() {
    // 8,192 tokens in four steps: compute, four times the fixed cost, and the KV entries read by the later three.
    let compute = 8192.0 * 94.6e-6 + 8192.0 * 8192.0 * 2.1e-9;
    let expected = compute + 4.0 * (4e-3 + 40e-6) + (2048.0 + 4096.0 + 6144.0) * 2.56e-8;
    let (first, second) = seconds(Model::Reference, 8192);
    assert_near(first, expected, "seconds to the first token");
    assert_near(second, 15e-3 + 40e-6 + 8192.0 * 2.56e-8, "seconds to the second");
}

#[test]
fn prefill_first_is_the_reference_on_hardware_2_6_times_as_fast() {
    // A prompt of one chunk in both, so that only the speed differs.
    let (reference, fast) = (seconds(Model::Reference, 2000), seconds(Model::PrefillFirst, 2000));
    assert_near(reference.0 / fast.0, 2.6, "speed of prefill");
    assert_near(reference.1 / fast.1, 2.6, "speed of decoding");
    let parameters = Model::PrefillFirst.parameters(16, 100);
    assert_eq!((parameters.batching, parameters.queue_order), (Batching::PrefillFirst, QueueOrder::LongestMatch));
    assert_eq!((parameters.step_tokens, parameters.noise.share), (8192, 0.2));
}

#[test]
fn linear_computes_8000_tokens_a_second_and_decodes_for_nearly_nothing() {
    for prompt_tokens in [800, 8000, 80_000] {
        let (first, second) = seconds(Model::Linear, prompt_tokens);
        assert_near(first, f64::from(prompt_tokens) / 8000.0, "seconds to the first token");
        assert_near(second, 1e-3, "seconds to the second");
    }
    let mut engine = Engine::new(Model::Linear.parameters(16, 100_000));
    for member in 0..100 {
        engine.submit(request(member, member, 8, 1000), Moment::ORIGIN).unwrap();
    }
    let last = drain(&mut engine).last().unwrap().at.since(Moment::ORIGIN).as_secs_f64();
    assert_near(last, 0.1 + 0.999, "seconds for 100 sequences of 1,000 tokens: 800 of prefill, then a step a token");
}

#[test]
fn the_small_model_has_the_published_times() {
    assert_near(seconds(Model::Small, 150).0, 0.030, "150 uncached tokens");
    assert_near(seconds(Model::Small, 2400).0, 0.061, "2,400 uncached tokens");
    assert_near(seconds(Model::Small, 2400).1, 0.004, "one token more");
}

#[test]
fn queues_of_the_models_are_bounded_by_their_callers() {
    for model in Model::ALL {
        let mut engine = Engine::new(model.parameters(16, 1000));
        let all_taken = (0..10_000).all(|_| engine.submit(request(1, 1, 10, 1), Moment::ORIGIN).is_ok());
        assert!(all_taken, "{} turned a request away", model.name());
    }
}
