//! What sets SGLang's manners and uneven steps apart from the default.

use super::*;

fn prefill_first() -> Parameters {
    Parameters { batching: Batching::PrefillFirst, ..parameters(1000, 8) }
}

/// The moments of a short request's tokens beside the prefill of a long one, and of the long one's first token.
fn beside_a_long_prefill(parameters: Parameters) -> (Vec<Moment>, Moment) {
    let mut engine = Engine::new(parameters);
    let short = engine.submit(request(1, 1, 10, 40), millis(0)).unwrap();
    let long = engine.submit(request(2, 2, 64 * 20, 2), millis(100)).unwrap();
    let events = drain(&mut engine);
    (token_times(&events, short), token_times(&events, long)[0])
}

#[test]
fn prefill_first_keeps_decoding_sequences_waiting_and_mixed_does_not() {
    let during = |(tokens, first): (Vec<Moment>, Moment)| {
        // One step is in progress when the long prompt comes.
        tokens.iter().filter(|&&at| at > millis(120) && at <= first).count()
    };
    assert_eq!(during(beside_a_long_prefill(prefill_first())), 0);
    assert!(during(beside_a_long_prefill(parameters(1000, 8))) >= 20, "the prefill takes 20 steps, each with a token");
}

#[test]
fn prefill_has_the_whole_budget_and_decoding_costs_it_nothing() {
    let mut engine = Engine::new(prefill_first());
    for member in 0..4 {
        engine.submit(request(member, member, 10, 400), millis(0)).unwrap();
    }
    engine.advance(millis(100));
    assert_eq!(engine.load().running, 4);
    let id = engine.submit(request(9, 9, 128, 1), millis(100)).unwrap();
    let events = drain(&mut engine);
    let admitted_at = events.iter().find(|event| event.id == id).unwrap().at;
    let timing = Timing::REFERENCE;
    let chunk = |from, to, kv_tokens| timing.step(timing.prefill_seconds(from, to), 1, kv_tokens);
    assert_eq!(
        token_times(&events, id)[0],
        admitted_at + chunk(0, 64, 0) + chunk(64, 128, 64),
        "two full chunks, as if it were alone"
    );
}

#[test]
fn prefill_first_decodes_all_together_when_there_is_nothing_to_prefill() {
    let mut engine = Engine::new(prefill_first());
    let ids: Vec<RequestId> =
        (0..3).map(|member| engine.submit(request(member, member, 60, 9), millis(0)).unwrap()).collect();
    let events = drain(&mut engine);
    let times: Vec<Vec<Moment>> = ids.iter().map(|&id| token_times(&events, id)).collect();
    assert_eq!(times[0][1..], times[1][1..]);
    assert_eq!(times[1][1..], times[2][1..]);
    assert!(times[0][1] > times[2][0], "the second token of the first waits for the first token of the last");
}

/// Serves family 1 first, then queues `others` requests of no family and behind them one of family 1; the ids as they
/// were queued, and as they were admitted.
fn admissions(others: u64) -> (Vec<RequestId>, Vec<RequestId>) {
    let order = QueueOrder::LongestMatch;
    let mut engine = Engine::new(Parameters { queue_order: order, max_num_seqs: 1, ..parameters(10_000, 1) });
    engine.submit(request(1, 1, 64, 1), millis(0)).unwrap();
    drain(&mut engine);
    let families = (0..others).map(|other| 100 + other).chain([1]);
    let queued = families.map(|family| engine.submit(request(family, 7, 64, 1), millis(500)).unwrap()).collect();
    (queued, admitted(&drain(&mut engine)))
}

#[test]
fn the_longest_match_is_admitted_first_and_equals_as_they_came() {
    let (queued, admitted) = admissions(5);
    assert_eq!(admitted[0], queued[5], "three blocks of it are cached, of the others none");
    assert_eq!(admitted[1..], queued[..5]);
}

#[test]
fn a_long_queue_is_served_as_it_came() {
    let (queued, admitted) = admissions(LONGEST_MATCH_QUEUE as u64 - 1);
    assert_eq!(admitted[0], queued[LONGEST_MATCH_QUEUE - 1], "as many as are searched");
    let (queued, admitted) = admissions(LONGEST_MATCH_QUEUE as u64);
    assert_eq!(admitted[..2], [queued[0], queued[LONGEST_MATCH_QUEUE]], "one more, and the first goes first, once");
}

/// Lengths of many decode steps as shares of what they are without noise.
fn factors(noise: Noise) -> Vec<f64> {
    let mut engine = Engine::new(Parameters { noise, timing: Timing::from_rates(1e6, 100.0), ..parameters(1000, 1) });
    let id = engine.submit(request(1, 1, 10, 5000), millis(0)).unwrap();
    let times = token_times(&drain(&mut engine), id);
    times.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64() / 0.01).collect()
}

#[test]
fn noise_has_its_size_and_follows_from_the_seed() {
    let noise = Noise { share: 0.2, seed: 1 };
    let factors_of_one = factors(noise);
    let mean = factors_of_one.iter().sum::<f64>() / factors_of_one.len() as f64;
    let variance =
        factors_of_one.iter().map(|factor| (factor - mean).powi(2)).sum::<f64>() / factors_of_one.len() as f64;
    assert!((mean - 1.0).abs() < 0.01, "the mean factor is {mean}");
    assert!((variance.sqrt() - 0.2).abs() < 0.01, "the standard deviation is {}", variance.sqrt());
    assert_eq!(factors_of_one, factors(noise), "one seed, one sequence of steps");
    assert_ne!(factors_of_one, factors(Noise { seed: 2, ..noise }), "another seed, another");
    assert!(factors(Noise::default()).iter().all(|factor| (factor - 1.0).abs() < 1e-6), "none by default");
}

#[test]
fn absurd_noise_neither_stops_nor_turns_back_the_clock() {
    for share in [f64::NAN, -1.0, f64::INFINITY, 7.0] {
        assert!(factors(Noise { share, seed: 3 }).iter().all(|&factor| factor > 0.0 && factor < 2.0));
    }
}
