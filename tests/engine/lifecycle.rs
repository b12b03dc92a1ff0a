//! Aborts, limits, metrics, restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;

use serde_json::json;
use warmgate::sim::engine::Timing;
use warmgate::sim::{Fault, SimEngine};

use crate::client::{CHAT, Client, call, chat, fast, post, send, start, streamed, until, within};

/// An engine whose answers take minutes.
fn slow() -> SimEngine {
    let mut options = fast();
    options.parameters.timing = Timing::from_rates(1e6, 20.0);
    options.parameters.max_num_seqs = 2;
    options.parameters.max_waiting = 300;
    SimEngine::start(options).unwrap()
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_place_wherever_it_is() {
    let engine = slow();
    let mut decoding = Client::to(&engine).await;
    decoding.post(CHAT, streamed("decoding", 1000).to_string().as_bytes()).await.unwrap();
    decoding.head().await.unwrap();
    decoding.chunk().await.unwrap();
    let mut plain = Client::to(&engine).await;
    plain.post(CHAT, chat("plain", 1000).to_string().as_bytes()).await.unwrap();
    until(&engine, "both run", |state| state.engine.running == 2).await;
    let mut waiting = Client::to(&engine).await;
    waiting.post(CHAT, streamed("waiting", 1000).to_string().as_bytes()).await.unwrap();
    until(&engine, "the third waits", |state| state.engine.waiting == 1).await;
    drop(waiting);
    until(&engine, "the queue is empty", |state| state.engine.waiting == 0 && state.engine.aborted == 1).await;
    drop((decoding, plain));
    until(&engine, "nothing is held", |state| {
        state.engine.running == 0 && state.engine.held_blocks == 0 && state.requests.in_flight == 0
    })
    .await;
    let state = engine.state();
    assert_eq!((state.requests.aborted, state.engine.aborted, state.requests.served), (3, 3, 0));
}

#[tokio::test]
async fn two_hundred_aborts_leave_nothing_behind() {
    let engine = slow();
    let mut clients = Vec::new();
    for number in 0..200 {
        let mut client = Client::to(&engine).await;
        client.post(CHAT, streamed(&number.to_string(), 500).to_string().as_bytes()).await.unwrap();
        clients.push(client);
    }
    until(&engine, "all are there", |state| state.engine.running + state.engine.waiting == 200).await;
    drop(clients);
    until(&engine, "all are gone", |state| {
        state.requests.in_flight == 0 && state.engine.running + state.engine.waiting == 0
    })
    .await;
    let state = engine.state();
    assert_eq!((state.requests.aborted, state.engine.aborted, state.engine.held_blocks), (200, 200, 0));
}

#[tokio::test]
async fn the_queue_is_bounded_and_says_so() {
    let mut options = fast();
    options.parameters.max_num_seqs = 1;
    options.parameters.max_waiting = 1;
    let engine = SimEngine::start(options).unwrap();
    engine.inject(Fault::Freeze, None).unwrap();
    let mut first = Client::to(&engine).await;
    first.post(CHAT, chat("first", 1).to_string().as_bytes()).await.unwrap();
    until(&engine, "one waits", |state| state.engine.waiting == 1).await;
    let refused = send(&engine, CHAT, &chat("second", 1)).await.unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (503, &json!("Service Unavailable")));
    engine.clear_faults();
    assert_eq!(first.response().await.unwrap().status, 200, "the one that waited is served");
    let metrics = call(&engine, "GET", "/metrics").await.unwrap().text();
    assert!(metrics.contains(r#"reason="max_num_queued_reqs"} 1.0"#), "{metrics}");
}

#[tokio::test]
async fn bodies_and_connections_are_bounded() {
    let mut options = fast();
    (options.max_body_bytes, options.max_buffered_bytes, options.max_connections) = (100_000, 65_536, 2);
    let engine = SimEngine::start(options).unwrap();
    let mut client = Client::to(&engine).await;
    client
        .write(format!("POST {CHAT} HTTP/1.1\r\nhost: sim\r\ncontent-length: 100001\r\n\r\n").as_bytes())
        .await
        .unwrap();
    assert_eq!(client.response().await.unwrap().status, 413);
    drop(client);
    let large = chat(&"x".repeat(80_000), 1);
    assert_eq!(send(&engine, CHAT, &large).await.unwrap().status, 503, "no room for the body");
    assert_eq!(send(&engine, CHAT, &chat("small", 1)).await.unwrap().status, 200, "what it took was given back");

    let mut held: Vec<Client> = vec![Client::to(&engine).await, Client::to(&engine).await];
    for client in &mut held {
        client.write(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
        client.response().await.unwrap();
    }
    let mut third = Client::to(&engine).await;
    third.write(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
    held[0].write(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
    held[0].response().await.unwrap();
    assert!(third.arrived().is_empty(), "the third connection waits");
    held.pop();
    assert_eq!(third.response().await.unwrap().status, 200, "until one of the others is closed");
}

#[tokio::test]
async fn the_metrics_are_well_formed_and_true() {
    let engine = start();
    let prompt = json!({"prompt": "m".repeat(640), "max_tokens": 3}); // 160 tokens
    for _ in 0..2 {
        send(&engine, "/v1/completions", &prompt).await.unwrap();
    }
    let response = call(&engine, "GET", "/metrics").await.unwrap();
    assert!(response.header("content-type").unwrap().starts_with("text/plain; version="));
    let samples = parse(&response.text());
    let labels = r#"engine="0",model_name="sim-model""#;
    for (name, value) in [
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
        ("vllm:prefix_cache_queries_total", 320.0),
        ("vllm:prefix_cache_hits_total", 144.0),
        ("vllm:prompt_tokens_total", 320.0),
        ("vllm:generation_tokens_total", 6.0),
        ("vllm:time_to_first_token_seconds_count", 2.0),
        ("vllm:e2e_request_latency_seconds_count", 2.0),
    ] {
        assert_eq!(samples.get(&format!("{name}{{{labels}}}")), Some(&value), "{name}");
    }
    assert!(samples["process_start_time_seconds"] > 1.7e9);
    let config = samples.keys().find(|name| name.starts_with("vllm:cache_config_info{")).unwrap();
    assert!(config.contains(r#"block_size="16""#) && config.contains(r#"num_gpu_blocks="8192""#));
    let success = r#"vllm:request_success_total{engine="0",model_name="sim-model",finished_reason="length"}"#;
    assert_eq!(samples[success], 2.0);

    engine.inject(Fault::Freeze, None).unwrap();
    let mut waiting = Client::to(&engine).await;
    waiting.post("/v1/completions", prompt.to_string().as_bytes()).await.unwrap();
    until(&engine, "one waits", |state| state.engine.waiting == 1).await;
    let samples = parse(&call(&engine, "GET", "/metrics").await.unwrap().text());
    assert_eq!(samples[&format!("vllm:num_requests_waiting{{{labels}}}")], 1.0);
}

/// Checks the text format line by line; series with their values.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let (mut samples, mut families, mut buckets) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned()), "{name} is declared once");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(families.contains(family) || families.contains(name), "{name} was declared");
            if name.ends_with("_bucket") {
                let last = buckets.insert(name.to_owned(), value).unwrap_or(0.0);
                assert!(value >= last, "buckets are cumulative: {line}");
            }
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} comes once");
        }
    }
    for (name, last) in buckets {
        let count = samples.iter().find(|(series, _)| series.starts_with(&name.replace("_bucket", "_count{")));
        assert_eq!(count.unwrap().1, &last, "the last bucket has them all");
    }
    samples
}

#[tokio::test]
async fn a_restart_forgets_everything_and_comes_back_on_its_port() {
    let engine = start();
    let prompt = json!({"prompt": "r".repeat(640), "max_tokens": 1});
    for _ in 0..2 {
        send(&engine, "/v1/completions", &prompt).await.unwrap();
    }
    let before = engine.state();
    assert!(before.engine.cached_tokens > 0 && before.generation == 1);
    engine.inject(Fault::Slow { factor: 1000.0 }, None).unwrap();
    let mut streaming = Client::to(&engine).await;
    streaming.post(CHAT, streamed("cut", 100).to_string().as_bytes()).await.unwrap();
    streaming.head().await.unwrap();
    engine.clear_faults();

    engine.inject(Fault::Restart { down_ms: 200 }, None).unwrap();
    let cut = within(async { while streaming.chunk().await.is_ok() {} });
    cut.await;
    let refused = Client::connect(engine.address()).await.err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused), "nobody listens meanwhile");
    let again = within(async {
        loop {
            match call(&engine, "GET", "/health").await {
                Ok(response) => return response,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    assert_eq!(again.await.header("x-sim-generation"), Some("2"));
    let after = engine.state();
    assert!(after.started_at > before.started_at);
    assert_eq!((after.engine.cached_blocks, after.requests.requests, after.engine.finished), (0, 0, 0));
    let cold = send(&engine, "/v1/completions", &prompt).await.unwrap().json();
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_and_a_stopped_engine_frees_it() {
    let engine = start();
    let again = SimEngine::start(warmgate::sim::EngineOptions { listen: engine.address(), ..fast() });
    assert_eq!(again.err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
    let mut idle = Client::to(&engine).await;
    idle.write(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
    idle.response().await.unwrap();
    let address = engine.address();
    engine.stop().await;
    assert_eq!(Client::connect(address).await.err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
    assert!(idle.head().await.is_err(), "its connections are closed");
    SimEngine::start(warmgate::sim::EngineOptions { listen: address, ..fast() }).expect("the port is free");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time() {
    let engine =
        SimEngine::start(warmgate::sim::EngineOptions { idle_timeout: Duration::from_millis(30), ..fast() }).unwrap();
    let mut client = Client::to(&engine).await;
    client.write(&post(CHAT, chat("Hi", 1).to_string().as_bytes())).await.unwrap();
    assert_eq!(client.response().await.unwrap().status, 200);
    let end = client.head().await.unwrap_err().kind();
    assert_eq!(end, ErrorKind::UnexpectedEof, "closed, not reset, and without an answer nobody asked for");
}
