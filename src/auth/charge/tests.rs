use super::*;
use crate::auth::Callers;
use crate::config::{Auth, Key, KeyDigest, KeyLimits, Priority};
use crate::testing::config;
use proptest::prelude::*;

fn caller(limits: KeyLimits) -> Arc<Caller> {
    let key = Key {
        label: "a".into(),
        digests: vec![KeyDigest::of(b"one")],
        limits,
        models: None,
        pools: None,
        paths: None,
        priority: Priority::Normal,
    };
    let auth = Auth { keys_file: Some("/keys".into()), keys: [key].into() };
    Arc::clone(Callers::new(&auth).named("a").unwrap())
}

fn limits(requests: u32, concurrent: u32, tokens: u32, uncached: u32) -> KeyLimits {
    KeyLimits {
        requests_per_minute: NonZeroU32::new(requests),
        concurrent_requests: NonZeroU32::new(concurrent),
        tokens_per_minute: NonZeroU32::new(tokens),
        uncached_tokens_per_minute: NonZeroU32::new(uncached),
    }
}

const NOW: Moment = Moment::ORIGIN;

#[test]
fn each_limit_refuses_on_its_own_and_says_which() {
    let refusal = |limits, prompt: u64, uncached: u64| {
        let caller = caller(limits);
        let mut held = Vec::new();
        for _ in 0..2 {
            let begun = caller.begin(NOW).and_then(|mut charge| {
                charge.take_tokens(prompt, NOW)?;
                charge.take_uncached(uncached, NOW)?;
                Ok(charge)
            });
            match begun {
                Ok(charge) => held.push(charge),
                Err(limited) => return Some(limited.kind),
            }
        }
        None
    };
    assert_eq!(refusal(limits(0, 0, 0, 0), u64::MAX, u64::MAX), None, "nothing is limited");
    assert_eq!(refusal(limits(1, 0, 0, 0), 0, 0), Some(LimitKind::Requests));
    assert_eq!(refusal(limits(0, 1, 0, 0), 0, 0), Some(LimitKind::Concurrent));
    assert_eq!(refusal(limits(0, 0, 10, 0), 6, 6), Some(LimitKind::Tokens));
    assert_eq!(refusal(limits(0, 0, 0, 10), 6, 6), Some(LimitKind::UncachedTokens));
    assert_eq!(refusal(limits(2, 2, 12, 12), 6, 6), None, "the last of each is still given");
}

#[test]
fn a_refusal_by_concurrency_costs_no_request() {
    let caller = caller(limits(2, 1, 0, 0));
    let held = caller.begin(NOW).unwrap();
    assert_eq!(caller.begin(NOW).unwrap_err().kind, LimitKind::Concurrent);
    drop(held);
    assert!(caller.begin(NOW).is_ok());
}

#[test]
fn a_request_is_settled_by_what_it_used() {
    let caller = caller(limits(0, 0, 100, 100));
    let mut charge = caller.begin(NOW).unwrap();
    charge.take_tokens(50, NOW).unwrap();
    charge.take_uncached(50, NOW).unwrap();
    charge.settle(Spent { prompt: 40, uncached: 8, output: 20 }, NOW);
    let left = || (caller.token_room(NOW).unwrap().left, caller.uncached_room(NOW).unwrap().left);
    assert_eq!(left(), (40, 92));
    drop(charge);
    assert_eq!(left(), (40, 92), "it is settled once");
    let mut failed = caller.begin(NOW).unwrap();
    failed.take_tokens(30, NOW).unwrap();
    failed.settle(Spent::default(), NOW);
    assert_eq!(left(), (40, 92), "what was not served costs nothing");
    assert_eq!(caller.request_room(NOW), None, "without a limit there is nothing to say");
}

#[derive(Debug, Clone)]
enum Step {
    Begin(u64),
    Settle(usize, u64),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0_u64..50).prop_map(Step::Begin),
        (0_usize..8, 0_u64..50).prop_map(|(at, spent)| Step::Settle(at, spent)),
        (0_usize..8).prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn what_is_taken_is_the_sum_of_what_charges_say(steps in steps()) {
        let caller = caller(limits(0, 5, 1000, 0));
        // Charges that are held, and what those that ended have cost.
        let (mut held, mut ended): (Vec<(Charge, u64)>, u64) = (Vec::new(), 0);
        for step in steps {
            match step {
                Step::Begin(prompt) => match caller.begin(NOW) {
                    Ok(mut charge) => {
                        let taken = if charge.take_tokens(prompt, NOW).is_ok() { prompt } else { 0 };
                        held.push((charge, taken));
                    }
                    Err(limited) => {
                        prop_assert_eq!((limited.kind, held.len()), (LimitKind::Concurrent, 5));
                    }
                },
                Step::Settle(at, spent) if at < held.len() => {
                    held[at].0.settle(Spent { prompt: spent, ..Spent::default() }, NOW);
                    held[at].1 = spent;
                }
                Step::Drop(at) if at < held.len() => ended += held.swap_remove(at).1,
                Step::Settle(..) | Step::Drop(_) => {}
            }
            let taken = ended + held.iter().map(|(_, taken)| taken).sum::<u64>();
            prop_assert_eq!(caller.token_room(NOW).unwrap().left, 1000_u64.saturating_sub(taken));
            prop_assert_eq!(caller.in_flight() as usize, held.len());
        }
    }
}
