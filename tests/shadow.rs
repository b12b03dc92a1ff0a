//! What the proxy counts of its decisions and of those that other policies would have taken; and sessions.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use common_control::client::{Connection, Reply, open_stream};
use common_control::engine::{Answer, Engine};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{chat, eventually, long_prompt, streamed};
use serde_json::{Value, json};

/// A counter of one policy's shadow; none if it is not there.
async fn shadow(proxy: &Proxy, counter: &str, policy: &str) -> Option<f64> {
    proxy.metric(&format!("warmgate_shadow_{counter}_total{{pool=\"main\",policy=\"{policy}\"}}")).await
}

/// A counter of the pool.
async fn count(proxy: &Proxy, counter: &str) -> f64 {
    proxy.metric(&format!("warmgate_{counter}_total{{pool=\"main\"}}")).await.unwrap()
}

/// Asks six times for each of five documents, one request after the other.
async fn ask_for_documents(proxy: &Proxy) {
    for request in 0..30 {
        let prompt = format!("{} question {request}", long_prompt(&format!("document {}", request % 5)));
        assert_eq!(proxy.chat(&streamed(&prompt)).await.status, 200);
    }
}

async fn until_idle(proxy: &Proxy) {
    eventually("nothing is in service", async || proxy.metric("warmgate_requests_in_service").await == Some(0.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_on_round_robin_shows_what_cost_would_get() {
    let engines = ["one", "two", "three"].map(|name| Engine::up(&format!("shadow-{name}")));
    let proxy = Proxy::with(&Settings::new(&engines), &engines.each_ref()).await;
    assert_eq!(shadow(&proxy, "requests", "cost").await, Some(0.0), "series start at zero");
    ask_for_documents(&proxy).await;
    let mut cached = Vec::new();
    for policy in ["actual", "round_robin", "least_request", "cost"] {
        assert_eq!(shadow(&proxy, "requests", policy).await, Some(30.0));
        let tokens = shadow(&proxy, "prompt_tokens", policy).await.unwrap();
        let hit = shadow(&proxy, "cached_tokens", policy).await.unwrap();
        assert!(tokens > 30_000.0 && hit < tokens, "{policy}: {hit} of {tokens}");
        assert!(shadow(&proxy, "ttft_seconds", policy).await > Some(0.0));
        cached.push(hit / tokens);
    }
    let [actual, round_robin, _, cost] = cached[..] else { panic!("four policies were asked for") };
    assert_eq!(actual, round_robin, "it is what is in force");
    assert!(cost > round_robin + 0.2, "one cold request a document instead of three: {cost} against {round_robin}");

    // A request without a prompt is none of a shadow's.
    proxy.chat(&json!({"model": "m"})).await;
    assert_eq!(shadow(&proxy, "requests", "cost").await, Some(30.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_on_cost_shows_what_it_gains_and_a_reload_leaves_nothing_behind() {
    let engines = ["a", "b", "c"].map(|name| Engine::up(&format!("gain-{name}")));
    let settings = Settings::new(&engines).policy("cost");
    let proxy = Proxy::with(&settings, &engines.each_ref()).await;
    ask_for_documents(&proxy).await;
    let cached = async |policy| shadow(&proxy, "cached_tokens", policy).await.unwrap();
    assert!(cached("actual").await > cached("round_robin").await);

    let index_bytes = async || proxy.metric("warmgate_shadow_index_bytes").await.unwrap();
    assert!(index_bytes().await > 0.0);
    proxy.apply(&settings.clone().without("gain-b")).await;
    ask_for_documents(&proxy).await;
    assert_eq!(shadow(&proxy, "requests", "actual").await, Some(60.0), "two backends are left, the counters go on");
    until_idle(&proxy).await;

    proxy.apply(&settings.clone().policy("cost, shadow: false")).await;
    assert_eq!(shadow(&proxy, "requests", "actual").await, None, "it is off");
    assert_eq!(proxy.chat(&chat(&long_prompt("unseen"))).await.status, 200);
    eventually("the shadows' entries are swept", async || index_bytes().await < 4_096.0).await;
    proxy.apply(&settings).await;
    assert_eq!(shadow(&proxy, "requests", "actual").await, Some(0.0), "it begins anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_warm_backend_is_counted_as_a_detour_and_leaving_it_as_a_spill() {
    let engines = ["left", "right"].map(|name| Engine::up(&format!("detour-{name}")));
    engines.iter().for_each(|engine| engine.set_answer(Answer::Gated));
    let proxy = Proxy::with(&Settings::new(&engines).policy("cost"), &engines.each_ref()).await;
    // 100,000 tokens each: 12.5 s at the rate that is assumed at first.
    let (document, appendix) = ("a document of many words ".repeat(16_000), "and its appendix ".repeat(23_529));
    let mut streams = Vec::new();
    let mut send = async |prompt: &str| -> String {
        let (stream, head) = open_stream(proxy.address(), &streamed(prompt)).await;
        streams.push(stream);
        head.backend().to_owned()
    };
    let warm = send(&document).await;
    let before = (count(&proxy, "detour_seconds").await, count(&proxy, "saved_prefill_seconds").await);
    // The one before it has no token yet: it waits for 12.5 s where it is cached, and beside a neighbour that counts
    // twice, against 12.5 s to compute it.
    assert_eq!(send(&document).await, warm);
    assert!(count(&proxy, "detour_seconds").await > before.0, "it waits longer than it has to");
    assert!(count(&proxy, "saved_prefill_seconds").await > before.1 + 10.0, "and 12.5 s of prefill are saved");
    assert_eq!(count(&proxy, "spills").await, 0.0);

    let mut detours = Vec::new();
    for more in 0..20 {
        detours.push(count(&proxy, "detour_seconds").await);
        if send(&format!("{document} {more} {appendix}")).await != warm {
            break;
        }
    }
    assert!(detours.len() < 20, "the queue got ever longer, and nothing was sent elsewhere");
    assert_eq!(count(&proxy, "spills").await, 1.0, "it gave up what is cached");
    let (last, after) = (*detours.last().unwrap(), count(&proxy, "detour_seconds").await);
    assert!(after <= last, "who goes where the wait is the shortest makes no detour: {last}, then {after}");
    engines.iter().for_each(Engine::finish);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_key_in_a_header_or_the_body_pins_what_nothing_else_places() {
    let engines = ["n", "e", "s", "w"].map(|name| Engine::up(&format!("session-{name}")));
    let settings = Settings::new(&engines).policy("cost, session_header: X-Session-Id");
    let proxy = Proxy::with(&settings, &engines.each_ref()).await;
    let mut request = 0;
    let mut place = async |header: Option<&str>, key: Option<&str>| -> String {
        request += 1;
        let mut body: Value = chat(&format!("{request} is the number of a prompt that nobody has asked for before"));
        if let Some(key) = key {
            body["prompt_cache_key"] = json!(key);
        }
        let header = header.map(|value| format!("x-session-id: {value}\r\n")).unwrap_or_default();
        let mut connection = Connection::open(proxy.address()).await.unwrap();
        let reply: Reply = connection.ask("POST", "/v1/chat/completions", &header, &body.to_string()).await.unwrap();
        // What is in flight counts more than the session.
        until_idle(&proxy).await;
        reply.backend().to_owned()
    };
    let mut homes = std::collections::BTreeSet::new();
    // Few: a backend that is home to more sessions than a fair share loses some of them.
    for session in (0..4).map(|number| format!("session-{number}")) {
        let home = place(Some(&session), None).await;
        for (header, key) in [(Some(&*session), None), (None, Some(&*session)), (Some(&*session), Some("another"))] {
            assert_eq!(place(header, key).await, home, "{session} in {header:?} or {key:?}");
        }
        homes.insert(home);
    }
    assert!(homes.len() > 1, "sessions are spread: {homes:?}");
    let mut turns = std::collections::BTreeSet::new();
    for _ in 0..8 {
        turns.insert(place(None, None).await);
    }
    assert_eq!(turns.len(), 4, "without a session all take turns");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_engine_has_nothing_cached_in_any_shadow() {
    let engine = Engine::up("shadow-restarted");
    let proxy = Proxy::with(&Settings::new([&engine]), &[&engine]).await;
    let prompt = streamed(&long_prompt("the same again"));
    let cached = async || {
        let mut tokens = Vec::new();
        for policy in ["actual", "cost", "least_request", "round_robin"] {
            tokens.push(shadow(&proxy, "cached_tokens", policy).await.unwrap());
        }
        tokens
    };
    proxy.chat(&prompt).await;
    proxy.chat(&prompt).await;
    let before = cached().await;
    assert!(before.iter().all(|&tokens| tokens > 500.0), "there is one place to find it: {before:?}");
    engine.stop().await;
    proxy.until_state("shadow-restarted", "unhealthy").await;
    engine.start();
    proxy.until_state("shadow-restarted", "healthy").await;
    proxy.chat(&prompt).await;
    assert_eq!(cached().await, before, "the third request found nothing");
    proxy.chat(&prompt).await;
    assert!(cached().await.iter().zip(&before).all(|(now, before)| now > before), "the fourth did");
}
