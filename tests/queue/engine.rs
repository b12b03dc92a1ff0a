//! An engine that tells how many requests it runs at once (SGLang) is given some more than that; one that does not (vLLM) is
//! known by those that wait inside of it.

use serde_json::Value;
use tokio::task::JoinSet;
use warmgate::kv_events::Form;
use warmgate::server::Server;
use warmgate::sim::engine::Parameters;
use warmgate::sim::{EngineOptions, KvEventOptions, SimEngine};

use crate::common::client::{self, Client};
use crate::common::eventually;

/// As many as may wait inside an engine of two places before it counts as busy.
const SPARE: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_inside_of_which_requests_wait_gets_no_more_of_them() {
    fill(
        EngineOptions { parameters: two_places(), ..EngineOptions::default() },
        "engine: vllm, metrics: {interval: 100ms}",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_says_how_many_it_runs_gets_some_more_than_that() {
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let kv_events = Some(KvEventOptions { form: Form::Sglang, ..KvEventOptions::at(at) });
    let options = EngineOptions { parameters: two_places(), kv_events, ..EngineOptions::default() };
    fill(options, "engine: sglang, metrics: {enabled: false}, health: {path: /health}").await;
}

fn two_places() -> Parameters {
    Parameters { max_num_seqs: 2, ..EngineOptions::default().parameters }
}

/// Sends an engine of two places more than it is to get, in a pool with these keys.
async fn fill(options: EngineOptions, keys: &str) {
    let engine = SimEngine::start(options).unwrap();
    let text = format!(
        "listeners: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0'}}\n\
         logging: {{access_log: 'off', level: 'off'}}\npools:\n- {{name: p, {keys}, backends: [{{url: '{}'}}]}}\n",
        engine.url()
    );
    let server = Server::start(warmgate::config::parse(&text, "engine").unwrap(), None).await.unwrap();
    let (address, admin) = (server.addresses()[0], server.admin_address());
    let report = async || client::get(admin, "/backends").await.json::<Value>()["pools"][0].clone();
    eventually("the backend is healthy", async || report().await["backends"][0]["state"] == "healthy").await;
    if keys.contains("sglang") {
        eventually("it has said what it runs", async || report().await["backends"][0]["engine"]["max_running"] == 2)
            .await;
    }

    let mut clients = JoinSet::new();
    let mut ask = async |number: usize| {
        clients.spawn(async move {
            let body = serde_json::json!({"prompt": format!("{number} words"), "stream": true, "max_tokens": 4_000});
            let mut client = Client::connect(address).await;
            client
                .send("POST", "/v1/completions", "content-type: application/json\r\n", body.to_string().as_bytes())
                .await;
            // The answer takes longer than the test, which ends it.
            client.wire.closed().await;
        });
    };
    for number in 0..2 + SPARE {
        ask(number).await;
    }
    let is_full = async || report().await["backends"][0]["is_full"] == true;
    eventually("it is seen to be full", is_full).await;
    for number in 0..3 {
        ask(100 + number).await;
    }
    eventually("more of them wait here", async || report().await["queue"]["normal"] == 3).await;
    assert_eq!(engine.state().engine.waiting, SPARE, "and not there");
    clients.abort_all();
    eventually("nobody waits", async || report().await["queue"]["normal"] == 0).await;
}
