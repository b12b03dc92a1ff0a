use super::*;

fn assumed(tokens: u32) -> Prediction {
    Prediction { assumed: tokens, exact: None }
}

fn exact(at_least: u32, at_most: u32) -> Prediction {
    Prediction { assumed: 0, exact: Some(ExactPrediction { at_least, at_most }) }
}

/// Judges the same outcome `times` times; all changes with the number of the comparison that made them.
fn judge(meter: &TrustMeter, times: usize, prediction: Prediction, reported: u64) -> Vec<(usize, Change)> {
    (1..=times).flat_map(|at| meter.judge(prediction, reported).into_iter().map(move |change| (at, change))).collect()
}

#[test]
fn a_new_backend_is_trusted_as_far_as_it_can_be() {
    let meter = TrustMeter::default();
    assert_eq!((meter.trust(true), meter.trust(false)), (Trust::Exact, Trust::Assumed));
}

#[test]
fn hits_that_never_come_lose_each_belief_and_right_predictions_bring_it_back() {
    for (prediction, belief) in [(assumed(1000), Trust::Assumed), (exact(1000, 1000), Trust::Exact)] {
        let meter = TrustMeter::default();
        let lost = judge(&meter, 100, prediction, 0);
        assert_eq!(lost, [(16, Change { belief, reason: Reason::Disagrees })]);
        assert!(meter.trust(true) < Trust::Exact || belief == Trust::Assumed);
        let regained = judge(&meter, 100, prediction, 1000);
        assert_eq!(regained.len(), 1, "{regained:?}");
        assert_eq!(regained[0].1, Change { belief, reason: Reason::Agrees });
        assert_eq!((meter.trust(true), meter.trust(false)), (Trust::Exact, Trust::Assumed));
    }
}

#[test]
fn without_either_belief_there_is_load() {
    let meter = TrustMeter::default();
    let prediction = Prediction { assumed: 500, ..exact(500, 500) };
    assert_eq!(judge(&meter, 16, prediction, 0).len(), 2);
    assert_eq!((meter.trust(true), meter.trust(false)), (Trust::LoadOnly, Trust::LoadOnly));
}

#[test]
fn hits_that_no_event_announced_lose_exact_locality_but_those_of_requests_in_flight_do_not() {
    let meter = TrustMeter::default();
    assert_eq!(judge(&meter, 100, exact(0, 1000), 1000), []);
    assert_eq!(judge(&meter, 100, exact(0, 1000), 0), [], "what was being computed need not be there yet");
    assert_eq!(judge(&meter, 100, exact(0, 100), 1000)[0].1.reason, Reason::Disagrees);
}

#[test]
fn a_belief_between_its_limits_neither_falls_nor_rises() {
    let meter = TrustMeter::default();
    assert_eq!(judge(&meter, 200, exact(1000, 1000), 650), [], "it is held above half");
    judge(&meter, 50, exact(1000, 1000), 0);
    assert_eq!(meter.trust(true), Trust::Assumed);
    assert_eq!(judge(&meter, 200, exact(1000, 1000), 650), [], "it comes back from four fifths on");
}

#[test]
fn short_predictions_say_nothing() {
    let meter = TrustMeter::default();
    assert_eq!(judge(&meter, 1000, Prediction { assumed: 63, ..exact(63, 63) }, 0), []);
}

#[test]
fn many_requests_without_an_event_lose_exact_locality_until_one_comes() {
    let meter = TrustMeter::default();
    meter.answered(7, 3);
    let changes: Vec<_> = (0..10).filter_map(|_| meter.answered(7, 3)).collect();
    assert_eq!(changes, [Change { belief: Trust::Exact, reason: Reason::Silent }]);
    assert_eq!(meter.trust(true), Trust::Assumed);
    assert_eq!(meter.answered(8, 3), Some(Change { belief: Trust::Exact, reason: Reason::Heard }));
    assert_eq!(meter.trust(true), Trust::Exact);
    assert_eq!(meter.answered(9, 3), None);
}

#[test]
fn counted_hits_stand_in_where_answers_tell_none() {
    let meter = TrustMeter::default();
    let scrape = |hits| {
        meter.predicted(assumed(1000));
        meter.judge_hits(hits).to_vec()
    };
    // Hits are counted at the first token, predictions at the end: a scrape may see either first.
    for _ in 0..50 {
        assert_eq!(meter.judge_hits(1000).len(), 0);
        assert_eq!(scrape(0), []);
    }
    let changes: Vec<_> = (0..50).flat_map(|_| scrape(0)).collect();
    assert_eq!(changes, [Change { belief: Trust::Assumed, reason: Reason::Disagrees }]);
}

#[test]
fn counted_hits_mean_nothing_where_answers_tell_their_own() {
    let meter = TrustMeter::default();
    let lost = (0..16).flat_map(|_| {
        assert_eq!(meter.judge_hits(10_000).len(), 0);
        meter.judge(assumed(1000), 0)
    });
    assert_eq!(lost.collect::<Vec<_>>(), [Change { belief: Trust::Assumed, reason: Reason::Disagrees }]);
}

#[test]
fn blocks_that_no_event_names_lose_exact_locality() {
    let meter = TrustMeter::default();
    let judge = |told| (0..100).flat_map(|_| meter.judge_events(1000, told)).collect::<Vec<_>>();
    assert_eq!(judge(1000), []);
    assert_eq!(judge(0), [Change { belief: Trust::Exact, reason: Reason::Disagrees }]);
    assert_eq!(judge(1000), [Change { belief: Trust::Exact, reason: Reason::Agrees }]);
}
