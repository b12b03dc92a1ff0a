use proptest::prelude::*;

use super::super::backlog::defer;
use super::*;
use crate::time::Moment;

/// A request comes to a mean backend each half second, so that a prefill of more than a second is long.
const RECENT: f64 = 120.0;

fn busy_for(index: usize, seconds: f64) -> Candidate {
    let load = LoadView { pending_work: seconds * RATE, in_flight: 1, recent: RECENT, ..LoadView::IDLE };
    Candidate { load, ..idle(index) }
}

fn fleet(pending_seconds: &[f64]) -> Vec<Candidate> {
    pending_seconds.iter().enumerate().map(|(index, &seconds)| busy_for(index, seconds)).collect()
}

fn deferred(candidates: &[Candidate], prompt_tokens: u32) -> Option<Deferred> {
    let mut rng = fastrand::Rng::with_seed(1);
    let decision =
        choose(&Policy::default(), &query(prompt_tokens), candidates, &mut rng).expect("there are candidates");
    defer(&decision, candidates, Moment::ORIGIN)
}

const LONG: u32 = RATE as u32 * 3 / 2;
const SHORT: u32 = RATE as u32 / 2;

#[test]
fn a_long_prefill_waits_while_more_than_a_quarter_of_the_backends_are_busy() {
    let (busy, free) = (1.2, 0.1);
    assert!(deferred(&fleet(&[busy, busy, free, free, free, free, free, free]), LONG).is_none());
    let deferral = deferred(&fleet(&[busy, busy, busy, free, free, free, free, free]), LONG).expect("three of eight");
    assert_eq!((deferral.work, deferral.prefill), (f64::from(LONG), Duration::from_millis(1_500)));
    assert!(deferred(&fleet(&[busy; 8]), SHORT).is_none(), "nobody has to wait for long behind it");
}

#[test]
fn of_a_few_backends_one_may_be_busy() {
    let (busy, free) = (1.2, 0.1);
    assert!(deferred(&fleet(&[busy, free]), LONG).is_none());
    assert!(deferred(&fleet(&[busy, free, free]), LONG).is_none());
    assert!(deferred(&fleet(&[busy, busy]), LONG).is_some());
    assert!(deferred(&fleet(&[busy, busy, free]), LONG).is_some());
    assert!(deferred(&fleet(&[busy]), LONG).is_some(), "there is no other");
}

#[test]
fn what_is_long_is_a_matter_of_the_traffic() {
    let mut candidates = fleet(&[4.0; 4]);
    assert!(deferred(&candidates, LONG).is_some());
    candidates.iter_mut().for_each(|candidate| candidate.load.recent = RECENT / 2.0);
    assert!(deferred(&candidates, LONG).is_none(), "half as many come in its time");
    candidates.iter_mut().for_each(|candidate| candidate.load.recent = 0.0);
    assert!(deferred(&candidates, 1_000_000).is_none(), "nobody comes");
    candidates.iter_mut().for_each(|candidate| candidate.load.recent = 1e6);
    assert!(deferred(&candidates, RATE as u32 / 5).is_none(), "a fifth of a second is short for everyone");
    assert!(deferred(&candidates, RATE as u32 / 3).is_some());
}

#[test]
fn time_alone_can_make_a_backend_free() {
    let mut candidates = fleet(&[1.2; 4]);
    candidates[2].load.head_work = candidates[2].load.pending_work;
    let at = deferred(&candidates, LONG).and_then(|deferral| deferral.look_again).expect("its head is computed");
    assert_eq!(at.since(Moment::ORIGIN), Duration::from_millis(201));
}

#[test]
fn while_the_pool_is_behind_decoding_draws_nobody_to_a_queue() {
    // It was away, and decodes nothing; the other one could begin half a second sooner.
    let mut candidates = fleet(&[1.0, 0.5]);
    candidates[1].load.prompt_tokens = 400_000;
    let [returned, other] = score(&CostModel::default(), &query(SHORT), &candidates)[..] else { unreachable!("two") };
    assert!((other.decode - returned.decode - 0.3).abs() < 1e-9, "{returned:?} {other:?}");
    candidates.iter_mut().for_each(|candidate| candidate.load.pending_work /= 10.0);
    let [returned, other] = score(&CostModel::default(), &query(SHORT), &candidates)[..] else { unreachable!("two") };
    assert!(other.decode - returned.decode > 5.0, "all of it counts where there is no backlog");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Only long prefills wait, and only while more than a quarter of the backends have as much pending: never in an idle pool.
    #[test]
    fn only_what_is_long_waits_and_only_for_the_busy(
        pending in prop::collection::vec(0.0..4.0_f64, 1..12), recent in 0.0..2_000.0_f64, prompt in 1_u32..100_000,
    ) {
        let mut candidates = fleet(&pending);
        candidates.iter_mut().for_each(|candidate| candidate.load.recent = recent);
        if let Some(deferral) = deferred(&candidates, prompt) {
            let long = 2.0 * 60.0 / recent;
            prop_assert!(deferral.prefill.as_secs_f64() >= long - 1e-6);
            let busy = pending.iter().filter(|pending| **pending >= long - 1e-9).count();
            prop_assert!(4 * busy > pending.len());
            prop_assert!(busy > 1 || pending.len() == 1, "one may be busy in any case");
        }
    }
}
