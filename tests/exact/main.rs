//! Exact locality end to end: engines that publish KV events, and what the proxy makes of them.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod chats;
#[path = "../common/mod.rs"]
mod common;
mod fleet;
mod model;
mod restart;
mod sides;

use common::eventually;
use fleet::{BLOCK, Fleet, JSON, Served, options};
use warmgate::kv_events::Form;
use warmgate::sim::{Fault, SimEngine};

/// Prompts that share beginnings: each is one of few stems, cut somewhere, and an end of its own or none.
struct Prompts(fastrand::Rng);

impl Prompts {
    fn next(&mut self) -> Vec<u32> {
        let stem = self.0.u32(0..6);
        let length = self.0.u32(1..40 * BLOCK);
        let mut ids: Vec<u32> = (0..length).map(|at| stem * 10_000 + at).collect();
        let own = self.0.u32(..);
        ids.extend((0..self.0.u32(0..3 * BLOCK)).map(|at| own.wrapping_add(at)));
        ids
    }
}

/// The blocks that hold all of a working set of [`Prompts`] several times over, and a part of it.
const PLENTY: u32 = 4_096;
const SCARCE: u32 = 80;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_predicted_is_what_the_engine_reports() {
    for form in [Form::Vllm, Form::Sglang] {
        for kv_blocks in [PLENTY, SCARCE] {
            let fleet = Fleet::start(vec![options(kv_blocks, form); 3], "").await;
            let mut prompts = Prompts(fastrand::Rng::with_seed(u64::from(kv_blocks)));
            let mut hits = 0;
            for _ in 0..60 {
                let served = fleet.complete(&prompts.next(), 3).await;
                assert_eq!(served.predicted, served.cached, "{served:?}, {kv_blocks} blocks, {form:?}");
                hits += served.cached;
                fleet.settle().await;
            }
            assert!(hits > 500, "hardly anything was cached: {hits}");
            assert_eq!(fleet.trust().await, "exact");
            fleet.server.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_were_lost_are_asked_for_again() {
    let fleet = Fleet::start(vec![options(SCARCE, Form::Vllm)], "").await;
    let mut prompts = Prompts(fastrand::Rng::with_seed(5));
    for round in 0..40 {
        if round % 8 == 3 {
            fleet.engines[0].inject(Fault::DropKvEvents, Some(2)).unwrap();
        }
        let served = fleet.complete(&prompts.next(), 3).await;
        if round % 8 < 3 {
            assert_eq!(served.predicted, served.cached, "round {round}");
        }
        if round % 8 == 7 {
            // Nothing tells of what was lost but the next message.
            fleet.complete(&prompts.next(), 3).await;
            fleet.settle().await;
        }
    }
    let events = &fleet.backends().await[0]["kv_events"][0];
    assert!(events["gaps"].as_u64().unwrap() >= 4, "{events}");
    assert_eq!(events["clears"], 0, "a replay gives all: {events}");
    fleet.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replay_a_gap_forgets_everything_and_never_claims_too_much() {
    let mut engine = options(SCARCE, Form::Vllm);
    engine.kv_events.as_mut().unwrap().replay = None;
    let fleet = Fleet::start(vec![engine], "").await;
    let mut prompts = Prompts(fastrand::Rng::with_seed(6));
    for round in 0..60 {
        if round == 20 {
            fleet.engines[0].inject(Fault::DropKvEvents, Some(1)).unwrap();
        }
        let ids = prompts.next();
        let explained = fleet.explain(&ids).await;
        let told = explained["backends"][0]["exact_tokens"].as_u64().unwrap_or(0);
        let served = fleet.complete(&ids, 3).await;
        // What was lost is not known to be until the next message.
        if round != 21 {
            assert!(told <= served.cached, "round {round}: {told} told, {served:?}");
        }
        if round != 20 {
            fleet.settle().await;
        }
    }
    let events = &fleet.backends().await[0]["kv_events"][0];
    assert!(events["clears"].as_u64().unwrap() >= 1, "{events}");
    fleet.server.stop().await;
}

/// A restart in place is not to be seen by any probe: connections stay, requests go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_lost_its_cache_is_believed_nothing_from_its_first_new_event_on() {
    let fleet = Fleet::start(vec![options(PLENTY, Form::Vllm)], "").await;
    let mut prompts = Prompts(fastrand::Rng::with_seed(7));
    let known: Vec<Vec<u32>> = (0..40).map(|_| prompts.next()).collect();
    for ids in &known {
        fleet.complete(ids, 1).await;
    }
    fleet.settle().await;
    fleet.engines[0].inject(Fault::RestartCache, None).unwrap();
    // A prompt that shares nothing, with a block of its own: the first new event.
    fleet.complete(&[u32::MAX; 2 * BLOCK as usize], 1).await;
    let told = tokio::time::Instant::now();
    eventually("the restart is noticed", async || fleet.backends().await[0]["kv_events"][0]["restarts"] == 1).await;
    println!("noticed {:?} after the answer that told", told.elapsed());
    for ids in &known {
        let explained = fleet.explain(ids).await;
        assert_eq!(explained["backends"][0]["matched_tokens"], 0, "{explained}");
    }
    for ids in &known {
        let served = fleet.complete(ids, 1).await;
        assert!(served.predicted <= served.cached, "{served:?}");
    }
    fleet.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_falls_silent_is_assumed_to_hold_what_it_computed_until_it_is_heard_again() {
    let fleet = Fleet::start(vec![options(PLENTY, Form::Vllm)], "").await;
    let mut prompts = Prompts(fastrand::Rng::with_seed(8));
    fleet.complete(&prompts.next(), 1).await;
    fleet.settle().await;
    fleet.engines[0].inject(Fault::StopKvEvents, None).unwrap();
    while fleet.trust().await == "exact" {
        fleet.complete(&[prompts.0.u32(..); 3 * BLOCK as usize], 1).await;
    }
    assert_eq!(fleet.trust().await, "assumed");
    assert!(fleet.counts("warmgate_trust_changes_total", r#"belief="exact",reason="silent"} 1"#).await);
    fleet.engines[0].clear_faults();
    eventually("it is heard", async || {
        fleet.complete(&[fastrand::u32(..); 3 * BLOCK as usize], 1).await;
        fleet.trust().await == "exact"
    })
    .await;
    fleet.server.stop().await;
}

/// The events of one engine, taken for those of another: they say what is not so, and do not say what is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_disagree_with_what_the_engine_reports_are_no_longer_believed() {
    let [asked, other] = [(); 2].map(|()| SimEngine::start(options(PLENTY, Form::Vllm)).unwrap());
    let events = other.state().kv_events.unwrap();
    let backend = format!(
        "{{url: '{}', kv_events: {{endpoint: 'tcp://{}', replay: 'tcp://{}'}}}}",
        asked.url(),
        events.publish,
        events.replay.unwrap(),
    );
    let fleet = Fleet::behind(vec![asked, other], &backend, "").await;
    eventually("the other is followed", async || fleet.trust().await == "exact").await;
    let stem: Vec<u32> = (0..20 * BLOCK).collect();
    eventually("the disagreement is noticed", async || {
        // The other one must not be silent.
        let body = serde_json::json!({"prompt": vec![fastrand::u32(..); 32], "max_tokens": 1}).to_string();
        common::client::post(fleet.engines[1].address(), "/v1/completions", JSON, body.as_bytes()).await;
        fleet.complete(&stem, 1).await;
        fleet.trust().await == "assumed"
    })
    .await;
    assert!(fleet.counts("warmgate_trust_changes_total", r#"belief="exact",reason="disagrees"} 1"#).await);
    let Served { predicted, cached, .. } = fleet.complete(&stem, 1).await;
    assert!(predicted > 0 && cached > 0, "what is assumed holds: {predicted} of {cached}");
    fleet.server.stop().await;
}
