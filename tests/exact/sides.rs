//! Side calls: keys, ranks, and engines that do not say where their events are.

use serde_json::json;
use warmgate::kv_events::Form;
use warmgate::sim::{ApiKey, Fault, SimEngine};

use crate::common::eventually;
use crate::fleet::{BLOCK, Fleet, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_wants_a_key_is_asked_with_it() {
    let mut engine = options(256, Form::Vllm);
    engine.api_key = Some(ApiKey::new("S3CRET".to_owned()));
    let file = std::env::temp_dir().join(format!("warmgate-exact-key-{}", std::process::id()));
    std::fs::write(&file, "S3CRET\n").unwrap();
    let without = Fleet::start_unfollowed(vec![engine.clone()], "").await;
    eventually("the want of a key is told", async || {
        let problem = without.backends().await[0]["kv_events_problem"].to_string();
        problem.contains("wants an API key (status 401): set api_key_file")
    })
    .await;
    let with = Fleet::start(vec![engine], &format!("  api_key_file: {}\n", file.display())).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(with.trust().await, "exact");
    assert!(!with.backends().await[0].to_string().contains("S3CRET"));
    with.server.stop().await;
    without.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_events_is_assumed_and_says_what_to_do() {
    let mut engine = options(256, Form::Vllm);
    engine.kv_events = None;
    let fleet = Fleet::start_unfollowed(vec![engine], "").await;
    eventually("what to do is told", async || {
        fleet.backends().await[0]["kv_events_problem"].to_string().contains("kv_events.endpoint")
    })
    .await;
    assert_eq!(fleet.trust().await, "assumed");
    fleet.server.stop().await;
}

/// Each rank is a backend with the same address, and only its own events are followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_is_a_backend_of_its_own() {
    let engine = SimEngine::start(options(256, Form::Vllm)).unwrap();
    let backend = format!("{{url: '{}', name: e, data_parallel_ranks: 2}}", engine.url());
    let fleet = Fleet::behind(vec![engine], &backend, "").await;
    eventually("each rank's events are looked for", async || {
        let backends = fleet.backends().await;
        // The simulated engine has one rank.
        backends[0]["trust"] == "exact" && backends[1]["kv_events_problem"].to_string().contains("of rank 1")
    })
    .await;
    let names: Vec<_> = fleet.backends().await.iter().map(|backend| backend["name"].clone()).collect();
    assert_eq!(names, [json!("e-r0"), json!("e-r1")]);
    let mut served = std::collections::HashSet::new();
    for turn in 0..8 {
        served.insert(fleet.complete(&vec![turn; 2 * BLOCK as usize], 1).await.backend);
    }
    assert_eq!(served.len(), 2, "both ranks serve: {served:?}");
    fleet.server.stop().await;
}

/// Without events, what is assumed is held against what is reported as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predicted_hits_that_are_never_reported_leave_only_the_load_until_they_are() {
    let mut engine = options(4_096, Form::Vllm);
    engine.kv_events = None;
    let fleet = Fleet::start_unfollowed(vec![engine], "").await;
    let stem: Vec<u32> = (0..20 * BLOCK).collect();
    eventually("the belief is lost", async || {
        fleet.engines[0].inject(Fault::ClearCache, None).unwrap();
        fleet.complete(&stem, 1).await;
        fleet.trust().await == "load_only"
    })
    .await;
    assert_eq!(fleet.complete(&stem, 1).await.predicted, 0, "it goes by load");
    eventually("the belief comes back", async || {
        fleet.complete(&stem, 1).await;
        fleet.trust().await == "assumed"
    })
    .await;
    fleet.server.stop().await;
}
