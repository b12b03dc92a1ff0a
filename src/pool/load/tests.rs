use std::sync::Barrier;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Moment {
    Moment::at(Duration::from_millis(millis))
}

/// What a request does next, in the random histories below.
#[derive(Debug, Clone)]
enum Step {
    Dispatch { work: f64, prompt_tokens: u32, answer: Answer },
    FirstToken(usize),
    Drop(usize),
    Finish(usize),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![3 => Just(Answer::Streamed), 1 => Just(Answer::Whole)];
    prop_oneof![
        4 => (0.0..60_000.0, any::<u32>(), answer)
            .prop_map(|(work, prompt_tokens, answer)| Step::Dispatch { work, prompt_tokens, answer }),
        3 => any::<usize>().prop_map(Step::FirstToken),
        2 => any::<usize>().prop_map(Step::Drop),
        1 => any::<usize>().prop_map(Step::Finish),
        1 => Just(Step::Look),
    ]
}

/// The naive model of one request: pending until told otherwise.
struct Model {
    milliwork: u64,
    prompt_tokens: u64,
    answer: Answer,
    is_pending: bool,
    guard: InFlight,
}

/// An unstreamed request leaves the queue by estimate as well; the model takes the implementation's word for these,
/// after checking that only the oldest have left.
fn follow_estimates(load: &Load, requests: &mut [Model]) {
    let state = load.state.lock();
    for request in requests.iter_mut().filter(|request| request.is_pending) {
        if state.pending.contains_key(&request.guard.ticket) {
            continue;
        }
        assert_eq!(request.answer, Answer::Whole, "a streamed request leaves the queue by its first token only");
        let first = state.pending.keys().next();
        assert!(first.is_none_or(|&first| first > request.guard.ticket), "estimates follow the order of dispatch");
        request.is_pending = false;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), cases: 200, ..ProptestConfig::default() })]

    /// Invariant (4): pending work is the sum of its FIFO, never negative, and 0 when idle.
    #[test]
    fn the_sums_equal_those_of_a_naive_model(steps in prop::collection::vec((step(), 0_u64..2_000), 1..120)) {
        let load = Arc::new(Load::default());
        let mut requests: Vec<Model> = Vec::new();
        let (mut millis, mut recent) = (0, 0.0);
        for (step, wait) in steps {
            millis += wait;
            recent *= (-(wait as f64) / 60_000.0).exp();
            let now = at(millis);
            let len = requests.len().max(1);
            match step {
                Step::Dispatch { work, prompt_tokens, answer } => {
                    let guard = load.dispatch(work, prompt_tokens, answer, now);
                    let (milliwork, prompt_tokens) = (to_milliwork(work), prompt_tokens.into());
                    requests.push(Model { milliwork, prompt_tokens, answer, is_pending: true, guard });
                    recent += 1.0;
                }
                Step::FirstToken(which) => if let Some(request) = requests.get_mut(which % len) {
                    request.guard.first_token(now);
                    request.is_pending = false;
                }
                Step::Drop(which) => if which % len < requests.len() {
                    drop(requests.remove(which % len));
                }
                Step::Finish(which) => if which % len < requests.len() {
                    requests.remove(which % len).guard.finish(now);
                }
                Step::Look => {}
            }
            let view = load.view(now);
            follow_estimates(&load, &mut requests);
            let pending: Vec<u64> = requests.iter().filter(|r| r.is_pending).map(|r| r.milliwork).collect();
            prop_assert_eq!(view.pending_work, from_milliwork(pending.iter().sum()));
            prop_assert_eq!(view.head_work, from_milliwork(pending.first().copied().unwrap_or(0)));
            prop_assert_eq!(view.in_flight as usize, requests.len());
            prop_assert_eq!(view.decoding as usize, requests.len() - pending.len());
            prop_assert_eq!(view.prompt_tokens, requests.iter().map(|r| r.prompt_tokens).sum::<u64>());
            prop_assert!((view.recent - recent).abs() < 1e-6, "{} is not {}", view.recent, recent);
            prop_assert!(view.queued_work(8_000.0) >= 0.0 && view.queued_work(8_000.0) <= view.pending_work);
            prop_assert!(view.rate.rate().is_finite());
        }
        requests.clear();
        let view = load.view(at(millis));
        prop_assert_eq!(LoadView { rate: RateSums::START, head_for: Duration::ZERO, recent: 0.0, ..view }, LoadView::IDLE);
        prop_assert_eq!(load.stuck_for(at(millis + 1_000_000)), Duration::ZERO, "an idle backend is not stuck");
    }
}

#[test]
fn threads_in_any_interleaving_leave_exactly_nothing() {
    let (load, barrier) = (Arc::new(Load::default()), Barrier::new(4));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (load, barrier) = (&load, &barrier);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut held: Vec<InFlight> = Vec::new();
                barrier.wait();
                for round in 0..3_000 {
                    let now = at(round);
                    let answer = if rng.bool() { Answer::Streamed } else { Answer::Whole };
                    match rng.u8(..4) {
                        0 | 1 => held.push(load.dispatch(rng.f64() * 0.1 + 1e4 * rng.f64(), 7, answer, now)),
                        2 if !held.is_empty() => {
                            let which = rng.usize(..held.len());
                            held[which].first_token(now);
                        }
                        _ if !held.is_empty() => drop(held.swap_remove(rng.usize(..held.len()))),
                        _ => {}
                    }
                    let view = load.view(now);
                    assert!(view.head_work <= view.pending_work, "a torn view has no head larger than the whole");
                }
            });
        }
    });
    let state = load.state.lock();
    assert_eq!((state.pending_milliwork, state.pending.len(), state.decoding, state.streamed), (0, 0, 0, 0));
    assert_eq!(state.prompt_tokens, 0);
    assert!(state.learner.is_idle(), "no request is left that a sample would wait for");
    drop(state);
    let view = load.view(at(1_000_000));
    assert_eq!((view.pending_work, view.head_work, view.decoding, view.in_flight), (0.0, 0.0, 0, 0));
}

#[test]
fn a_request_is_pending_then_decoding_then_gone() {
    let load = Arc::new(Load::default());
    let mut request = load.dispatch(5_000.0, 0, Answer::Streamed, at(0));
    let view = load.view(at(500));
    assert_eq!((view.pending_work, view.head_work, view.decoding, view.in_flight), (5_000.0, 5_000.0, 0, 1));
    assert_eq!(view.head_for, Duration::from_millis(500));
    assert_eq!(view.queued_work(4_000.0), 3_000.0, "half a second at 4,000 a second is done");
    request.first_token(at(900));
    request.first_token(at(901));
    assert_eq!(
        (load.view(at(901)).pending_work, load.view(at(901)).decoding),
        (0.0, 1),
        "a second first token is none"
    );
    request.finish(at(902));
    assert_eq!(load.view(at(903)).in_flight, 0);
}

#[test]
fn the_next_head_starts_when_the_one_before_it_is_done_or_gone() {
    let load = Arc::new(Load::default());
    let mut first = load.dispatch(1_000.0, 0, Answer::Streamed, at(0));
    let second = load.dispatch(2_000.0, 0, Answer::Streamed, at(10));
    let third = load.dispatch(3_000.0, 0, Answer::Streamed, at(20));
    first.first_token(at(100));
    assert_eq!(load.view(at(150)).head_for, Duration::from_millis(50), "since the last first token");
    second.finish(at(300));
    assert_eq!((load.view(at(350)).head_work, load.view(at(350)).head_for), (3_000.0, Duration::from_millis(50)));
    drop(third);
    let _fourth = load.dispatch(4_000.0, 0, Answer::Streamed, at(900));
    assert_eq!(load.view(at(950)).head_for, Duration::from_millis(50), "an idle engine starts at the dispatch");
}

#[test]
fn unstreamed_requests_leave_the_queue_at_the_learned_rate() {
    let load = Arc::new(Load::default());
    let _held = [8_000.0, 4_000.0].map(|work| load.dispatch(work, 0, Answer::Whole, at(0)));
    assert_eq!((load.view(at(999)).pending_work, load.view(at(999)).decoding), (12_000.0, 0));
    assert_eq!(
        (load.view(at(1_000)).pending_work, load.view(at(1_000)).decoding),
        (4_000.0, 1),
        "8,000 at 8,000 a second"
    );
    assert_eq!((load.view(at(60_000)).pending_work, load.view(at(60_000)).decoding), (0.0, 2));
    assert_eq!(load.rate(), RateSums::START, "nothing is learned from an estimate");
}

#[test]
fn a_first_token_shows_that_unstreamed_requests_ahead_are_prefilled() {
    let load = Arc::new(Load::default());
    let _ahead = load.dispatch(8_000.0, 0, Answer::Whole, at(0));
    let mut streamed = load.dispatch(8_000.0, 0, Answer::Streamed, at(0));
    let _behind = load.dispatch(8_000.0, 0, Answer::Whole, at(0));
    streamed.first_token(at(400));
    assert_eq!((load.view(at(400)).pending_work, load.view(at(400)).decoding), (8_000.0, 2));
    let expected = (40_000.0 * 0.98 + 16_000.0) / (5.0 * 0.98 + 0.4);
    assert!((load.rate().rate() / expected - 1.0).abs() < 1e-6, "both prompts took 0.4 s together");
}

#[test]
fn a_backend_that_holds_streams_in_silence_is_stuck() {
    let load = Arc::new(Load::default());
    assert_eq!(load.stuck_for(at(5_000)), Duration::ZERO, "an idle one is not");
    let _whole = load.dispatch(10.0, 0, Answer::Whole, at(5_000));
    assert_eq!(load.stuck_for(at(9_000)), Duration::ZERO, "nor is one that owes nothing before the end");
    let impatient = load.dispatch(10.0, 0, Answer::Streamed, at(10_000));
    let mut patient = load.dispatch(10.0, 0, Answer::Streamed, at(12_000));
    drop(impatient);
    assert_eq!(load.stuck_for(at(15_000)), Duration::from_secs(5), "a client that gave up is no progress");
    patient.first_token(at(16_000));
    assert_eq!(load.stuck_for(at(17_000)), Duration::from_secs(1));
    patient.progress(at(17_500));
    assert_eq!(load.stuck_for(at(18_000)), Duration::from_millis(500));
    assert_eq!(load.last_progress(), at(17_500));
}

#[test]
fn any_work_is_clamped_to_something_countable() {
    let load = Arc::new(Load::default());
    let extremes = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, -0.0, f64::MIN_POSITIVE, f64::MAX];
    let held = extremes.map(|work| load.dispatch(work, 0, Answer::Streamed, at(0)));
    assert_eq!(load.view(at(0)).pending_work, 2.0 * MAX_WORK, "the two huge ones count as the most, the rest as none");
    drop(held);
    assert_eq!(load.view(at(0)).pending_work, 0.0);
}
