//! What the old process has learned, in the new one.

use serde_json::{Value, json};
use warmgate::sim::{EngineOptions, KvEventOptions, SimEngine};

use crate::SERVER;
use crate::common_control::client::{Connection, ask, get, post_chat};
use crate::common_control::engine::{Answer, Engine, Page};
use crate::common_control::proxy::backend;
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually, long_prompt, within};
use crate::service::Service;

/// Engines, and a process in front of them that has sent one long prompt to each.
async fn warm(engines: &[Engine], scratch: &Scratch, upgrade: &str) -> Service {
    let server = SERVER.replace('}', &format!(", upgrade: {{{upgrade}}}}}"));
    // Nobody is found unhealthy within a test.
    let health = "{interval: 100ms, timeout: 60s, rise: 1, fall: 3}".into();
    let ejection = "{failures: 2, base: 1h, max: 1h, stuck_after: 1h}".into();
    let settings = Settings { server, health, ejection, ..Settings::new(engines).policy("cost") };
    let service = Service::start(&scratch.file("warmgate.yaml", settings.to_string())).await;
    for engine in engines {
        service.first.until_state(engine.name(), "healthy").await;
    }
    // Samples enough for the learned length of a token to change the blocks.
    for _ in 0..40 {
        assert_eq!(post_chat(service.address(), &chat(&long_prompt("sample"))).await.status, 200);
    }
    for number in 0..8 {
        assert_eq!(post_chat(service.address(), &chat(&long_prompt(&format!("p{number}")))).await.status, 200);
    }
    service
}

/// What decides about these prompts: for each, every backend's matched tokens.
async fn matched(service: &Service) -> Vec<Value> {
    let mut found = Vec::new();
    for number in 0..8 {
        let body = chat(&long_prompt(&format!("p{number}"))).to_string();
        let explained = ask(service.admin(), "POST", "/explain", &body).await.json();
        let of = |backend: &Value| json!([backend["name"], backend["matched_tokens"]]);
        found.push(explained["backends"].as_array().unwrap().iter().map(of).collect());
    }
    found
}

fn some_matched(found: &[Value]) -> usize {
    let backends = found.iter().filter_map(Value::as_array).flatten();
    backends.filter(|backend| backend[1].as_u64().unwrap_or(0) > 0).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_locality_trust_and_ejections_are_taken_over() {
    let (engines, scratch) = (["a", "b", "c", "d"].map(Engine::up), Scratch::new());
    let mut service = warm(&engines, &scratch, "").await;
    // One that real requests have found broken, and one that the operator has taken out.
    engines[2].set_answer(Answer::Reset);
    eventually("it is ejected", async || {
        assert_eq!(post_chat(service.address(), &chat(&long_prompt(&fastrand::u64(..).to_string()))).await.status, 200);
        backend(service.admin(), "c").await["state"] == "ejected"
    })
    .await;
    assert_eq!(ask(service.admin(), "POST", "/backends/d/drain?deadline=30m", "").await.status, 200);
    let (before, report) = (matched(&service).await, get(service.admin(), "/backends").await.json());
    // What the two others hold does not show: they are no candidates.
    assert!(some_matched(&before) > 0, "{before:?}");

    // From now on no probe will tell anything.
    engines.iter().for_each(|engine| engine.set_health(Page::Hang));
    service.upgrade().await;
    assert_eq!(get(service.admin(), "/readyz").await.status, 200, "it can serve at once");
    assert_eq!(matched(&service).await, before);
    let taken_over = get(service.admin(), "/backends").await.json();
    assert_eq!(taken_over["pools"][0]["bytes_per_token"], report["pools"][0]["bytes_per_token"]);
    let keys = ["state", "index_blocks", "trust", "address", "prefill_tokens_per_second"];
    let pairs = [&report, &taken_over].map(|report| report["pools"][0]["backends"].as_array().unwrap().clone());
    for (old, new) in pairs[0].iter().zip(&pairs[1]) {
        for key in keys {
            assert_eq!(old[key], new[key], "{key} of {}", old["name"]);
        }
    }
    let [a, b, c, d] = &pairs[1][..] else { panic!("four backends: {taken_over}") };
    assert_eq!([a, b, c].map(|backend| &backend["state"]), ["healthy", "healthy", "ejected"]);
    assert_eq!(d["drain"]["cause"], "operator");
    let left = |d: &Value| d["drain"]["deadline_seconds"].as_f64();
    assert!(left(d) <= left(&pairs[0][3]) && left(d) > Some(0.0), "its time goes on: {d}");
    let reply = within("an answer", post_chat(service.address(), &chat(&long_prompt("p0")))).await;
    assert!(["a", "b"].contains(&reply.backend()), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_moves_to_another_address_starts_anew() {
    let (engines, scratch) = (["a", "b"].map(Engine::up), Scratch::new());
    let mut service = warm(&engines, &scratch, "").await;
    let other = Engine::up("a");
    other.set_health(Page::Hang);
    let settings = Settings { server: SERVER.into(), ..Settings::new([&other, &engines[1]]).policy("cost") };
    engines[1].set_health(Page::Hang);
    // Between the two the old process may read the file too; it changes nothing that is looked at.
    scratch.file("warmgate.yaml", settings.to_string());
    service.upgrade().await;
    assert_eq!(backend(service.admin(), "a").await["index_blocks"], 0, "the name is the same, the engine is not");
    assert!(backend(service.admin(), "b").await["index_blocks"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_for_it_the_new_process_starts_cold_and_says_so() {
    let (engines, scratch) = (["a", "b"].map(Engine::up), Scratch::new());
    let mut service = warm(&engines, &scratch, "max_state_bytes: 0").await;
    assert!(some_matched(&matched(&service).await) > 0);
    service.upgrade().await;
    assert_eq!(some_matched(&matched(&service).await), 0);
    assert_eq!(service.first.logged("starting cold: the state of the process that is replaced"), 1);
    assert_eq!(post_chat(service.address(), &chat("hello")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_locality_is_followed_again_and_assumed_until_then() {
    let any = "127.0.0.1:0".parse().unwrap();
    let kv_events = Some(KvEventOptions { replay: Some(any), ..KvEventOptions::at(any) });
    let engine = || SimEngine::start(EngineOptions { kv_events: kv_events.clone(), ..EngineOptions::default() });
    let (engines, scratch) = ([engine().unwrap(), engine().unwrap()], Scratch::new());
    let backends: Vec<_> = engines.iter().map(|engine| format!("{{url: '{}'}}", engine.url())).collect();
    let text = format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\nserver: {SERVER}\n\
         logging: {{access_log: 'off'}}\npools:\n- {{name: p, engine: vllm, kv_events: {{enabled: true}}, backends: [{}]}}\n",
        backends.join(", ")
    );
    let mut service = Service::start(&scratch.file("warmgate.yaml", text)).await;
    let is_followed = async |service: &Service| {
        let report = get(service.admin(), "/backends").await.json();
        let backends = report["pools"][0]["backends"].as_array().unwrap().clone();
        backends.iter().all(|backend| backend["kv_events"][0]["state"] == "live" && backend["trust"] == "exact")
    };
    eventually("both are followed", async || is_followed(&service).await).await;
    let body = json!({"prompt": (0..800).collect::<Vec<u32>>(), "max_tokens": 1}).to_string();
    let complete = async |service: &Service| {
        let mut connection = Connection::open(service.address()).await.unwrap();
        let headers = "content-type: application/json\r\n";
        let reply = connection.ask("POST", "/v1/completions", headers, &body).await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    complete(&service).await;
    let cached = complete(&service).await;
    assert!(cached > 700, "{cached}");

    service.upgrade().await;
    assert_eq!(complete(&service).await, cached, "whatever it is known by");
    eventually("both are followed again", async || is_followed(&service).await).await;
    assert_eq!(complete(&service).await, cached);
    let path = "/explain?path=/v1/completions";
    let explained = ask(service.admin(), "POST", path, &body).await.json();
    let best = &explained["backends"][0];
    assert!(best["matched_tokens"].as_u64().unwrap() > 700, "{explained}");
}
