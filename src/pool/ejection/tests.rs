use proptest::prelude::*;

use super::*;

const SETTINGS: EjectionSettings = EjectionSettings {
    failures: NonZeroU32::new(4).unwrap(),
    base: Duration::from_secs(5),
    max: Duration::from_secs(30),
    stuck_after: Duration::from_secs(20),
};

fn at(seconds: u64) -> Moment {
    Moment::at(Duration::from_secs(seconds))
}

fn fail(ejection: &Ejection, kind: FailureKind, now: Moment) -> Option<Transition> {
    ejection.record_failure(None, kind, &SETTINGS, now)
}

fn eject(ejection: &Ejection, now: Moment) -> Transition {
    assert_eq!(fail(ejection, FailureKind::Connect, now), None);
    fail(ejection, FailureKind::Connect, now).expect("two connect failures weigh four")
}

fn ejected(kind: FailureKind, until: u64, times: u32) -> Transition {
    Transition::Ejected { cause: EjectionCause::Failures(kind), until: at(until), times }
}

#[test]
fn failures_in_a_row_eject_and_a_success_starts_the_count_anew() {
    let ejection = Ejection::default();
    for _ in 0..10 {
        for _ in 0..3 {
            assert_eq!(fail(&ejection, FailureKind::ServerError, at(1)), None);
        }
        assert_eq!(ejection.record_success(None, at(1)), None);
    }
    assert_eq!(ejection.admission(at(1)), Admission::Open);
    assert_eq!(fail(&ejection, FailureKind::Reset, at(2)), None);
    assert_eq!(fail(&ejection, FailureKind::ServerError, at(2)), None);
    let transition = fail(&ejection, FailureKind::ServerError, at(2));
    assert_eq!(transition, Some(ejected(FailureKind::ServerError, 7, 1)));
    assert_eq!(ejection.admission(at(3)), Admission::Closed { until: Some(at(7)) });
    assert_eq!(ejection.admission(at(7)), Admission::Probe);
}

/// Another process, whose time began at another moment, goes on from this state.
fn handed_over(old: &Ejection, now: Moment, theirs: Moment) -> Arc<Ejection> {
    let new = Arc::new(Ejection::default());
    new.restore(old.record(now), &SETTINGS, theirs);
    new
}

#[test]
fn another_process_goes_on_with_the_rest_of_an_ejection_and_its_count() {
    let old = Ejection::default();
    eject(&old, at(1_000));
    let new = handed_over(&old, at(1_002), at(1));
    assert_eq!(new.admission(at(2)), Admission::Closed { until: Some(at(4)) }, "three seconds are left");
    let permit = new.try_probe(at(4));
    let probing = handed_over(&new, at(4), at(1));
    assert_eq!(probing.admission(at(1)), Admission::Probe, "a probe under way there is due here");
    let failed = new.record_failure(permit, FailureKind::Reset, &SETTINGS, at(4));
    assert_eq!(failed, Some(ejected(FailureKind::Reset, 14, 2)), "it is the second one in a row");
}

#[test]
fn another_process_goes_on_counting_failures_and_forgets_what_a_long_service_forgets() {
    let old = Ejection::default();
    fail(&old, FailureKind::ServerError, at(1));
    let new = handed_over(&old, at(2), at(0));
    assert_eq!(fail(&new, FailureKind::Reset, at(0)), None);
    assert!(fail(&new, FailureKind::ServerError, at(0)).is_some(), "the first failure counts");

    let old = Arc::new(Ejection::default());
    eject(&old, at(1_000));
    let readmitted = old.record_success(old.try_probe(at(1_005)), at(1_005));
    assert_eq!(readmitted, Some(Transition::Readmitted));
    let soon = handed_over(&old, at(1_010), at(10));
    assert_eq!(eject(&soon, at(11)), ejected(FailureKind::Connect, 21, 2));
    let late = handed_over(&old, at(1_040), at(10));
    assert_eq!(eject(&late, at(11)), ejected(FailureKind::Connect, 16, 1));
}

#[test]
fn one_request_probes_and_its_success_readmits() {
    let ejection = Arc::new(Ejection::default());
    eject(&ejection, at(0));
    assert!(ejection.try_probe(at(4)).is_none(), "not before its time");
    let permit = ejection.try_probe(at(5));
    assert!(permit.is_some());
    assert!(ejection.try_probe(at(5)).is_none(), "one at a time");
    assert_eq!(ejection.admission(at(100)), Admission::Closed { until: None });
    assert_eq!(ejection.record_success(None, at(6)), None, "another request's success is old news");
    assert_eq!(ejection.record_success(permit, at(6)), Some(Transition::Readmitted));
    assert_eq!(ejection.admission(at(6)), Admission::Open);
}

#[test]
fn failed_probes_double_the_time_up_to_the_limit() {
    let ejection = Arc::new(Ejection::default());
    eject(&ejection, at(0));
    let mut now = 5;
    for (times, seconds) in [(2, 10), (3, 20), (4, 30), (5, 30)] {
        let permit = ejection.try_probe(at(now));
        assert_eq!(fail(&ejection, FailureKind::Connect, at(now)), None, "an older request's failure is no verdict");
        let transition = ejection.record_failure(permit, FailureKind::Reset, &SETTINGS, at(now));
        assert_eq!(transition, Some(ejected(FailureKind::Reset, now + seconds, times)));
        now += seconds;
    }
}

#[test]
fn a_backend_that_served_for_long_starts_afresh() {
    for (served, times) in [(29, 2), (30, 1)] {
        let ejection = Arc::new(Ejection::default());
        eject(&ejection, at(0));
        let permit = ejection.try_probe(at(10));
        ejection.record_success(permit, at(10));
        let transition = eject(&ejection, at(10 + served));
        assert!(matches!(transition, Transition::Ejected { times: t, .. } if t == times), "{transition:?}");
    }
}

#[test]
fn a_lost_permit_leaves_the_backend_ejected_without_penalty() {
    let ejection = Arc::new(Ejection::default());
    eject(&ejection, at(0));
    drop(ejection.try_probe(at(5)));
    assert_eq!(ejection.admission(at(5)), Admission::Probe, "the next request may probe at once");
    let permit = ejection.try_probe(at(5));
    let transition = ejection.record_failure(permit, FailureKind::Connect, &SETTINGS, at(5));
    assert_eq!(transition, Some(ejected(FailureKind::Connect, 15, 2)), "the lost probe did not count");
}

#[test]
fn a_permit_of_another_backend_or_an_earlier_state_is_void() {
    let (one, other) = (Arc::new(Ejection::default()), Arc::new(Ejection::default()));
    for ejection in [&one, &other] {
        eject(ejection, at(0));
    }
    let _probing = other.try_probe(at(5));
    let foreign = one.try_probe(at(5));
    assert_eq!(other.record_success(foreign, at(6)), None);
    assert_eq!(one.admission(at(6)), Admission::Probe, "it was given back where it came from");

    let stale = one.try_probe(at(6));
    one.note_silence(Duration::from_secs(90), &SETTINGS, at(96)).expect("the probe hangs");
    assert!(matches!(one.admission(at(97)), Admission::Closed { until: Some(_) }));
    let fresh = one.try_probe(at(106));
    assert_eq!(one.record_success(stale, at(107)), None, "the hung probe's late answer is no verdict on the fresh one");
    assert_eq!(
        one.admission(at(107)),
        Admission::Closed { until: None },
        "nor does its permit's end end the fresh one"
    );
    assert_eq!(one.record_success(fresh, at(108)), Some(Transition::Readmitted));
}

#[test]
fn a_stuck_backend_is_out_at_once_and_back_with_its_first_token() {
    let ejection = Ejection::default();
    assert_eq!(ejection.note_silence(Duration::from_secs(19), &SETTINGS, at(100)), None);
    let transition = ejection.note_silence(Duration::from_secs(20), &SETTINGS, at(101));
    assert_eq!(transition, Some(Transition::Ejected { cause: EjectionCause::Stuck, until: at(106), times: 1 }));
    assert_eq!(ejection.note_silence(Duration::from_secs(21), &SETTINGS, at(102)), None, "reported once");
    assert_eq!(ejection.note_progress(at(80), at(102)), None, "a token from before the ejection is no sign of life");
    assert_eq!(ejection.note_progress(at(102), at(103)), Some(Transition::Readmitted));
    assert_eq!(ejection.admission(at(103)), Admission::Open);
    assert_eq!(ejection.note_progress(at(104), at(104)), None);
    let transition = ejection.note_silence(Duration::from_secs(60), &SETTINGS, at(105));
    assert_eq!(transition, None, "silence is counted from the readmission on");
}

#[test]
fn a_backend_ejected_for_failures_is_not_brought_back_by_tokens() {
    let ejection = Ejection::default();
    eject(&ejection, at(0));
    assert_eq!(ejection.note_progress(at(2), at(2)), None);
    assert!(matches!(ejection.admission(at(2)), Admission::Closed { .. }));
}

#[test]
fn a_stuck_backend_whose_clients_have_all_left_is_probed() {
    let ejection = Arc::new(Ejection::default());
    ejection.note_silence(Duration::from_secs(20), &SETTINGS, at(100)).expect("stuck");
    let permit = ejection.try_probe(at(105));
    let hung = ejection.note_silence(Duration::from_secs(100), &SETTINGS, at(110));
    assert_eq!(hung, None, "the probe has its own time");
    let hung = ejection.note_silence(Duration::from_secs(115), &SETTINGS, at(125));
    assert!(matches!(hung, Some(Transition::Ejected { times: 2, .. })), "{hung:?}");
    drop(permit);
    assert!(
        matches!(ejection.admission(at(125)), Admission::Closed { until: Some(_) }),
        "a void permit changes nothing"
    );
}

#[test]
fn only_one_of_many_threads_gets_the_permit() {
    let ejection = Arc::new(Ejection::default());
    eject(&ejection, at(0));
    let permits: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| ejection.try_probe(at(5)))).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(permits.len(), 1);
}

/// The machine again, as flat facts instead of states.
#[derive(Debug, Default)]
struct Naive {
    out_until: Option<u64>,
    is_probed: bool,
    failures: u32,
    times: u32,
    serving_since: u64,
}

impl Naive {
    fn admission(&self, now: u64) -> Admission {
        match (self.out_until, self.is_probed) {
            (None, _) => Admission::Open,
            (Some(_), true) => Admission::Closed { until: None },
            (Some(until), false) if now >= until => Admission::Probe,
            (Some(until), false) => Admission::Closed { until: Some(at(until)) },
        }
    }

    fn eject(&mut self, now: u64) {
        if self.out_until.is_none() && now - self.serving_since >= SETTINGS.max.as_secs() {
            self.times = 0;
        }
        self.times += 1;
        let seconds = (5 * 2_u64.pow((self.times - 1).min(10))).min(30);
        (self.out_until, self.is_probed) = (Some(now + seconds), false);
    }

    fn readmit(&mut self, now: u64) {
        (self.out_until, self.is_probed, self.failures, self.serving_since) = (None, false, 0, now);
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Success,
    Failure(FailureKind),
    TakePermit,
    ProbeSuccess,
    ProbeFailure(FailureKind),
    LosePermit,
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![Just(FailureKind::Connect), Just(FailureKind::Reset), Just(FailureKind::ServerError)];
    prop_oneof![
        2 => Just(Event::Success),
        6 => kind.clone().prop_map(Event::Failure),
        6 => Just(Event::TakePermit),
        1 => Just(Event::ProbeSuccess),
        1 => kind.prop_map(Event::ProbeFailure),
        1 => Just(Event::LosePermit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn the_machine_agrees_with_a_naive_model(events in prop::collection::vec((event(), 0_u64..12), 1..150)) {
        let (ejection, mut naive) = (Arc::new(Ejection::default()), Naive::default());
        let (mut permit, mut now): (Option<ProbePermit>, u64) = (None, 0);
        for (event, wait) in events {
            now += wait;
            let was_out = naive.out_until.is_some();
            let has_permit = permit.is_some();
            let transition = match event {
                Event::Success => {
                    naive.failures = if was_out { naive.failures } else { 0 };
                    ejection.record_success(None, at(now))
                }
                Event::Failure(kind) => {
                    if !was_out {
                        naive.failures += kind.weight();
                        if naive.failures >= 4 {
                            naive.eject(now);
                        }
                    }
                    fail(&ejection, kind, at(now))
                }
                Event::TakePermit => {
                    if naive.admission(now) == Admission::Probe {
                        naive.is_probed = true;
                    }
                    permit = ejection.try_probe(at(now)).or(permit);
                    None
                }
                Event::ProbeSuccess if has_permit => {
                    naive.readmit(now);
                    ejection.record_success(permit.take(), at(now))
                }
                Event::ProbeFailure(kind) if has_permit => {
                    naive.eject(now);
                    ejection.record_failure(permit.take(), kind, &SETTINGS, at(now))
                }
                Event::LosePermit if has_permit => {
                    naive.is_probed = false;
                    permit = None;
                    None
                }
                Event::ProbeSuccess | Event::ProbeFailure(_) | Event::LosePermit => None,
            };
            prop_assert_eq!(ejection.admission(at(now)), naive.admission(now), "after {:?} at {}", event, now);
            prop_assert_eq!(permit.is_some(), naive.is_probed);
            let is_change = was_out != naive.out_until.is_some()
                || matches!(event, Event::ProbeFailure(_)) && has_permit;
            prop_assert_eq!(transition.is_some(), is_change, "each transition is reported once: {:?}", event);
        }
    }
}
