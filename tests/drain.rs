//! A backend leaves: nothing new goes there, its conversations may go on until a deadline, and then it empties. By the
//! operator and by a reload.

mod common_control;

use common_control::client::{ask, get, open_stream};
use common_control::engine::{Answer, Engine, is_whole_stream};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{chat, eventually, logs, long_prompt, streamed};
use serde_json::Value;

/// Where nothing is in the way, a conversation may go on for longer than any test takes.
fn settings<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> Settings {
    Settings { drain: "{deadline: 1h}".into(), ..Settings::new(engines).policy("cost") }
}

/// A conversation that lives at the backend of this name: its next request.
async fn conversation(proxy: &Proxy, name: &str) -> Value {
    for number in 0..100 {
        let request = chat(&long_prompt(&format!("of {name}, try {number}")));
        if proxy.chat(&request).await.backend() == name {
            return request;
        }
    }
    panic!("nothing came to {name}");
}

async fn drain(proxy: &Proxy, name: &str, query: &str) {
    let reply = ask(proxy.admin(), "POST", &format!("/backends/{name}/drain{query}"), "").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
}

async fn undrain(proxy: &Proxy, name: &str) {
    assert_eq!(ask(proxy.admin(), "POST", &format!("/backends/{name}/undrain"), "").await.status, 200);
}

async fn phase(proxy: &Proxy, name: &str) -> String {
    proxy.backend(name).await["drain"]["phase"].as_str().unwrap_or("none").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_go_on_where_they_live_and_nothing_new_comes() {
    let (leaving, staying) = (Engine::up("goes-on"), Engine::up("goes-on-beside"));
    let proxy = Proxy::with(&settings([&leaving, &staying]), &[&leaving, &staying]).await;
    let (lives, other) = (conversation(&proxy, "goes-on").await, conversation(&proxy, "goes-on-beside").await);
    drain(&proxy, "goes-on", "").await;
    assert_eq!(
        (proxy.state("goes-on").await.as_str(), phase(&proxy, "goes-on").await.as_str()),
        ("draining", "conversations")
    );
    for number in 0..8 {
        let new = chat(&long_prompt(&format!("new {number}")));
        assert_eq!(proxy.chat(&new).await.backend(), "goes-on-beside", "a new prefix");
        assert_eq!(proxy.chat(&chat("hello")).await.backend(), "goes-on-beside", "a short prompt");
        assert_eq!(proxy.chat(&other).await.backend(), "goes-on-beside", "another's conversation");
        assert_eq!(proxy.chat(&lives).await.backend(), "goes-on", "its own");
    }
    let explained = proxy.explained(&chat(&long_prompt("new")), "goes-on").await;
    assert_eq!(explained["excluded"], "draining");
    assert_eq!(proxy.explained(&lives, "goes-on").await["excluded"], Value::Null);
    assert_eq!(proxy.backend("goes-on").await["drain"]["requests"], 8);
    assert_eq!(proxy.metric(r#"warmgate_drain_requests_total{pool="main",backend="goes-on"}"#).await, Some(8.0));
    assert_eq!(proxy.metric(r#"warmgate_backend_drain_phase{pool="main",backend="goes-on"}"#).await, Some(1.0));
    let left = proxy.metric(r#"warmgate_backend_drain_deadline_seconds{pool="main",backend="goes-on"}"#).await.unwrap();
    assert!((3000.0..=3600.0).contains(&left), "{left} s");

    drain(&proxy, "goes-on", "?deadline=0s").await;
    assert_eq!(proxy.chat(&lives).await.backend(), "goes-on-beside", "its time is over");
    assert_eq!(proxy.state("goes-on").await, "drained");
    eventually("its end is logged", async || logs::count(&["backend goes-on is drained"]) == 1).await;
    assert_eq!(logs::count(&["backend goes-on drains (as asked)"]), 2, "each order is");
    undrain(&proxy, "goes-on").await;
    assert_eq!((proxy.state("goes-on").await.as_str(), phase(&proxy, "goes-on").await.as_str()), ("healthy", "none"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_comes_by_itself_and_what_is_in_flight_may_end() {
    let (leaving, staying) = (Engine::up("by-itself"), Engine::up("by-itself-beside"));
    let proxy = Proxy::with(&settings([&leaving, &staying]), &[&leaving, &staying]).await;
    let lives = conversation(&proxy, "by-itself").await;
    leaving.set_answer(Answer::Gated);
    let mut next = lives.clone();
    next["stream"] = true.into();
    let (mut held, head) = open_stream(proxy.address(), &next).await;
    assert_eq!(head.backend(), "by-itself");
    drain(&proxy, "by-itself", "?deadline=300ms").await;
    eventually("the deadline is over", async || phase(&proxy, "by-itself").await == "emptying").await;
    assert_eq!(proxy.chat(&lives).await.backend(), "by-itself-beside");
    assert_eq!(proxy.state("by-itself").await, "draining");
    eventually("that is logged", async || {
        logs::count(&["backend by-itself: the time of its conversations is over", "1 in flight"]) == 1
    })
    .await;
    leaving.finish();
    assert!(is_whole_stream(&held.rest().await.unwrap()), "nothing was cut");
    proxy.until_state("by-itself", "drained").await;
    assert_eq!(proxy.metric(r#"warmgate_backend_drain_phase{pool="main",backend="by-itself"}"#).await, Some(3.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_respects_a_drain() {
    let policies = [
        "cost",
        "locality_first",
        "prefix_affinity",
        "consistent_hash",
        "least_request",
        "power_of_two",
        "round_robin",
        "random",
    ];
    for policy in policies {
        let (leaving, staying) = (Engine::up("policed"), Engine::up("policed-beside"));
        let settings = settings([&leaving, &staying]).policy(policy);
        let proxy = Proxy::with(&settings, &[&leaving, &staying]).await;
        let lives = conversation(&proxy, "policed").await;
        drain(&proxy, "policed", "").await;
        for number in 0..12 {
            let new = chat(&long_prompt(&format!("{policy} {number}")));
            assert_eq!(proxy.chat(&new).await.backend(), "policed-beside", "{policy}");
        }
        eventually("a conversation that lives there may go there", async || {
            proxy.explained(&lives, "policed").await["excluded"].is_null()
        })
        .await;
        drain(&proxy, "policed", "?deadline=0s").await;
        for _ in 0..6 {
            assert_eq!(proxy.chat(&lives).await.backend(), "policed-beside", "{policy}: its time is over");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_a_reload_removes_keeps_its_conversations_until_it_is_put_back_or_empty() {
    let (leaving, staying) = (Engine::up("removed"), Engine::up("removed-beside"));
    let both = settings([&leaving, &staying]);
    let proxy = Proxy::with(&both, &[&leaving, &staying]).await;
    let lives = conversation(&proxy, "removed").await;
    let without = both.clone().without("removed");
    proxy.apply(&without).await;
    assert_eq!(proxy.backend("removed").await["drain"]["cause"], "removed");
    assert_eq!(proxy.chat(&chat(&long_prompt("new"))).await.backend(), "removed-beside");
    assert_eq!(proxy.chat(&lives).await.backend(), "removed", "it lives there");
    assert_eq!(ask(proxy.admin(), "POST", "/backends/removed/undrain", "").await.status, 404, "the file decides");

    proxy.apply(&both).await;
    assert_eq!((proxy.state("removed").await.as_str(), phase(&proxy, "removed").await.as_str()), ("healthy", "none"));
    assert_eq!(logs::count(&["backend removed was put back"]), 1);
    assert_eq!(proxy.chat(&lives).await.backend(), "removed", "and has kept what it held");

    proxy.apply(&without).await;
    leaving.set_answer(Answer::Gated);
    let mut next = lives.clone();
    next["stream"] = true.into();
    let (mut held, head) = open_stream(proxy.address(), &next).await;
    assert_eq!(head.backend(), "removed");
    drain(&proxy, "removed", "?deadline=0s").await;
    assert_eq!(proxy.chat(&lives).await.backend(), "removed-beside");
    assert_eq!(proxy.state("removed").await, "draining", "it is there as long as something is in flight");
    leaving.finish();
    assert!(is_whole_stream(&held.rest().await.unwrap()));
    proxy.until_state("removed", "absent").await;
    eventually("its series are gone", async || {
        !get(proxy.admin(), "/metrics").await.body.contains(r#"backend="removed""#)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_for_outlasts_reloads() {
    let (leaving, staying) = (Engine::up("asked"), Engine::up("asked-beside"));
    let both = settings([&leaving, &staying]);
    let proxy = Proxy::with(&both, &[&leaving, &staying]).await;
    conversation(&proxy, "asked").await;
    drain(&proxy, "asked", "").await;
    let mut other = both.clone();
    other.timeouts = "{connect: 4s}".into();
    for settings in [&other, &both.clone().without("asked"), &both] {
        proxy.apply(settings).await;
        assert_eq!(proxy.backend("asked").await["drain"]["cause"], "operator");
    }
    let moved = Engine::up("asked-moved");
    let mut elsewhere = both.clone();
    elsewhere.backends[0].1 = moved.address();
    proxy.apply(&elsewhere).await;
    let report = proxy.backend("asked").await;
    assert_eq!(
        (&report["drain"]["cause"], &report["url"]),
        (&"operator".into(), &format!("http://{}", moved.address()).into())
    );
    undrain(&proxy, "asked").await;
    proxy.until_state("asked", "healthy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_is_replaced_serves_until_the_new_one_is_up() {
    let (old, new) = (Engine::up("old"), Engine::down("new"));
    let proxy = Proxy::with(&settings([&old]), &[&old]).await;
    conversation(&proxy, "old").await;
    proxy.apply(&settings([&new])).await;
    for number in 0..4 {
        assert_eq!(proxy.chat(&chat(&format!("hello {number}"))).await.backend(), "old", "better than none");
    }
    assert_eq!(get(proxy.admin(), "/readyz").await.status, 200);
    new.start();
    proxy.until_state("new", "healthy").await;
    for number in 0..4 {
        assert_eq!(proxy.chat(&chat(&format!("hello {number}"))).await.backend(), "new");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_response_is_asked_for_where_it_is() {
    let (leaving, staying) = (Engine::up("stores"), Engine::up("stores-beside"));
    let proxy = Proxy::with(&settings([&leaving, &staying]), &[&leaving, &staying]).await;
    conversation(&proxy, "stores").await;
    leaving.set_answer(Answer::Stored);
    staying.set_answer(Answer::Stored);
    let id = loop {
        let first = ask(proxy.address(), "POST", "/v1/responses", r#"{"model": "m", "input": "hello"}"#).await;
        if first.backend() == "stores" {
            break first.json()["id"].as_str().unwrap().to_owned();
        }
    };
    drain(&proxy, "stores", "").await;
    let next = format!(r#"{{"model": "m", "input": "and?", "previous_response_id": "{id}"}}"#);
    assert_eq!(ask(proxy.address(), "POST", "/v1/responses", &next).await.backend(), "stores");
    assert_eq!(get(proxy.address(), &format!("/v1/responses/{id}")).await.backend(), "stores");
    drain(&proxy, "stores", "?deadline=0s").await;
    assert_eq!(ask(proxy.address(), "POST", "/v1/responses", &next).await.backend(), "stores-beside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_anything_in_its_cache_a_backend_is_drained_at_once() {
    let (leaving, staying) = (Engine::up("bare"), Engine::up("bare-beside"));
    let proxy = Proxy::with(&settings([&leaving, &staying]), &[&leaving, &staying]).await;
    drain(&proxy, "bare", "").await;
    assert_eq!(proxy.state("bare").await, "drained");
    let (_, head) = open_stream(proxy.address(), &streamed("hello")).await;
    assert_eq!(head.backend(), "bare-beside");
    proxy.apply(&settings([&leaving, &staying]).without("bare")).await;
    proxy.until_state("bare", "absent").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_only_go_to_a_busy_backend_waits_for_it_until_the_deadline() {
    let (leaving, staying) = (Engine::up("awaited"), Engine::up("awaited-beside"));
    let settings = Settings { drain: "{deadline: 1h}".into(), ..Settings::new([&leaving, &staying]) };
    let proxy = Proxy::with(&settings.policy("round_robin, max_in_flight: 1"), &[&leaving, &staying]).await;
    leaving.set_answer(Answer::Stored);
    staying.set_answer(Answer::Stored);
    let id = loop {
        let first = ask(proxy.address(), "POST", "/v1/responses", r#"{"model": "m", "input": "hello"}"#).await;
        if first.backend() == "awaited" {
            break first.json()["id"].as_str().expect("it has an id").to_owned();
        }
    };
    leaving.set_answer(Answer::Gated);
    let held = loop {
        let (held, head) = open_stream(proxy.address(), &streamed("held")).await;
        if head.backend() == "awaited" {
            break held;
        }
    };
    drain(&proxy, "awaited", "?deadline=1s").await;
    let body = format!(r#"{{"model": "m", "input": "and?", "previous_response_id": "{id}"}}"#);
    let address = proxy.address();
    let next = tokio::spawn(async move { ask(address, "POST", "/v1/responses", &body).await });
    let queue = async || get(proxy.admin(), "/backends").await.json()["pools"][0]["queue"]["normal"].clone();
    eventually("it waits, though the other one is idle", async || queue().await == 1).await;
    assert_eq!(next.await.unwrap().backend(), "awaited-beside", "the time of the first one is over");
    assert_eq!(proxy.backend("awaited").await["in_flight"], 1, "which is as busy as before");
    leaving.finish();
    drop(held);
}
