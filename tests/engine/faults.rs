//! Each fault does what it says, as often as it says.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::json;
use warmgate::sim::{Fault, SimEngine};

use crate::client::{CHAT, Client, call, chat, send, start, streamed, until};

async fn order(engine: &SimEngine, body: serde_json::Value) -> u16 {
    send(engine, "/sim/fault", &body).await.unwrap().status
}

/// The error a request ends with, and the next request, which must be served.
async fn strikes_once(engine: &SimEngine, body: &serde_json::Value) -> ErrorKind {
    let struck = send(engine, CHAT, body).await.expect_err("the fault strikes").kind();
    assert_eq!(send(engine, CHAT, body).await.unwrap().status, 200, "and then no more");
    assert_eq!((engine.state().requests.faulted, engine.state().requests.served), (1, 1));
    struck
}

#[tokio::test]
async fn a_reset_before_the_body_reads_nothing_of_it() {
    let engine = start();
    assert_eq!(order(&engine, json!({"kind": "reset_before_body", "count": 1})).await, 200);
    assert_eq!(strikes_once(&engine, &chat("Hi", 1)).await, ErrorKind::ConnectionReset);
    assert_eq!(engine.state().requests.bodies, 1, "only the second body was read");
}

#[tokio::test]
async fn a_reset_mid_upload_comes_after_half_the_body() {
    let engine = start();
    engine.inject(Fault::ResetMidUpload, Some(1)).unwrap();
    let mut client = Client::to(&engine).await;
    client
        .write(format!("POST {CHAT} HTTP/1.1\r\nhost: sim\r\ncontent-length: 1000000\r\n\r\n").as_bytes())
        .await
        .unwrap();
    client.write(&[b'x'; 300_000]).await.unwrap();
    until(&engine, "the request is there", |state| state.requests.in_flight == 1).await;
    client.write(&[b'x'; 250_000]).await.unwrap();
    assert_eq!(client.head().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!((engine.state().requests.bodies, engine.state().requests.faulted), (0, 1));
}

#[tokio::test]
async fn a_reset_mid_stream_comes_after_the_tokens_asked_for() {
    let engine = start();
    engine.inject(Fault::ResetMidStream { after_tokens: 2 }, Some(1)).unwrap();
    let mut client = Client::to(&engine).await;
    client.post(CHAT, streamed("Hi", 8).to_string().as_bytes()).await.unwrap();
    assert_eq!(client.head().await.unwrap().status, 200);
    for event in 0..3 {
        client.chunk().await.unwrap_or_else(|error| panic!("the role and two tokens come out, {event}: {error}"));
    }
    assert_eq!(client.chunk().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    until(&engine, "the engine is free", |state| state.engine.running == 0 && state.engine.aborted == 1).await;

    engine.inject(Fault::ResetMidStream { after_tokens: 1 }, Some(1)).unwrap();
    assert_eq!(
        send(&engine, CHAT, &chat("Hi", 8)).await.unwrap_err().kind(),
        ErrorKind::ConnectionReset,
        "not streamed"
    );
}

#[tokio::test]
async fn a_dead_core_ends_streams_with_an_error_event_and_answers_500() {
    let engine = start();
    assert_eq!(order(&engine, json!({"kind": "error_mid_stream", "after_tokens": 1, "count": 2})).await, 200);
    let stream = send(&engine, CHAT, &streamed("Hi", 8)).await.unwrap();
    let events = stream.events();
    assert_eq!((stream.status, events.len()), (200, 3), "role, one token, the error");
    assert_eq!(events[2]["error"]["code"], 500);
    assert_eq!(stream.chunks.last().unwrap(), "data: [DONE]\n\n");
    let plain = send(&engine, CHAT, &chat("Hi", 8)).await.unwrap();
    assert_eq!((plain.status, &plain.json()["error"]["type"]), (500, &json!("InternalServerError")));
    assert_eq!(send(&engine, CHAT, &chat("Hi", 8)).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_error_status_comes_before_or_after_the_body() {
    let engine = start();
    for order in [
        json!({"kind": "status", "status": 503, "before_body": true, "count": 1}),
        json!({"kind": "status", "status": 502, "count": 2}),
    ] {
        assert_eq!(send(&engine, "/sim/fault", &order).await.unwrap().status, 200);
    }
    let mut early = Client::to(&engine).await;
    early
        .write(format!("POST {CHAT} HTTP/1.1\r\nhost: sim\r\ncontent-length: 5000000\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let response = early.response().await.unwrap();
    assert_eq!(
        (response.status, response.header("connection")),
        (503, Some("close")),
        "nothing of the body was needed"
    );
    assert_eq!(response.header("x-sim-body-bytes"), None);
    early.write(&vec![b'x'; 5_000_000]).await.expect("who sends on is not reset at once");
    for _ in 0..2 {
        let late = send(&engine, CHAT, &chat("Hi", 1)).await.unwrap();
        assert_eq!(late.status, 502);
        assert!(late.header("x-sim-body-bytes").is_some(), "the body was read");
    }
    assert_eq!(send(&engine, CHAT, &chat("Hi", 1)).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_stall_answers_nothing_and_shows_as_running() {
    let engine = start();
    engine.inject(Fault::Stall, Some(1)).unwrap();
    engine.inject(Fault::StallStream, Some(1)).unwrap();
    let (mut silent, mut header_only) = (Client::to(&engine).await, Client::to(&engine).await);
    silent.post(CHAT, streamed("Hi", 1).to_string().as_bytes()).await.unwrap();
    until(&engine, "the first stalls", |state| state.requests.stalled == 1).await;
    header_only.post(CHAT, streamed("Hi", 1).to_string().as_bytes()).await.unwrap();
    assert_eq!(header_only.head().await.unwrap().status, 200, "this one has a header");
    until(&engine, "the second stalls", |state| state.requests.stalled == 2).await;
    assert_eq!(send(&engine, CHAT, &chat("Hi", 1)).await.unwrap().status, 200, "others are served meanwhile");
    assert!(silent.arrived().is_empty() && header_only.arrived().is_empty());
    let metrics = call(&engine, "GET", "/metrics").await.unwrap().text();
    assert!(metrics.contains("num_requests_running{engine=\"0\",model_name=\"sim-model\"} 2.0"));
    drop((silent, header_only));
    until(&engine, "both are given up", |state| state.requests.stalled == 0 && state.requests.aborted == 2).await;
}

#[tokio::test]
async fn an_engine_that_was_told_to_stop_holds_its_streams_and_answers_without_a_token() {
    let engine = start();
    let mut held = Client::to(&engine).await;
    engine.inject(Fault::Sigterm, None).unwrap();
    held.post(CHAT, streamed("Hi", 3).to_string().as_bytes()).await.unwrap();
    assert_eq!(held.response().await.unwrap().status, 500, "new chats get an error");
    let prompt = json!({"model": "sim-model", "prompt": "Hi", "max_tokens": 3});
    let whole = send(&engine, "/v1/completions", &prompt).await.unwrap();
    assert_eq!((whole.status, &whole.json()["choices"][0]["finish_reason"]), (200, &"abort".into()));
    assert_eq!(whole.json()["usage"]["completion_tokens"], 0);
    let stream = json!({"model": "sim-model", "prompt": "Hi", "max_tokens": 3, "stream": true});
    let stream = send(&engine, "/v1/completions", &stream).await.unwrap();
    assert_eq!((stream.status, stream.text().as_str()), (200, "data: [DONE]\n\n"));
    assert_eq!(call(&engine, "GET", "/health").await.unwrap().status, 200);
    assert_eq!(engine.state().faults.len(), 1);

    engine.clear_faults();
    engine.inject(Fault::Slow { factor: 1000.0 }, None).unwrap();
    held.post(CHAT, streamed("Hi", 3).to_string().as_bytes()).await.unwrap();
    until(&engine, "one is in flight", |state| state.requests.in_flight == 1).await;
    engine.inject(Fault::Sigterm, None).unwrap();
    assert_eq!(engine.state().requests.in_flight, 1, "it hangs");
    engine.clear_faults();
    assert_eq!(held.response().await.unwrap().events().len(), 4, "and is whole when that is over");
}

#[tokio::test]
async fn refusing_refuses_new_connections_closes_idle_ones_and_lets_streams_end() {
    let engine = start();
    engine.inject(Fault::Freeze, None).unwrap();
    let (mut idle, mut busy) = (Client::to(&engine).await, Client::to(&engine).await);
    idle.write(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
    idle.response().await.unwrap();
    busy.post(CHAT, streamed("Hi", 3).to_string().as_bytes()).await.unwrap();
    until(&engine, "one is in flight", |state| state.engine.waiting == 1).await;
    engine.inject(Fault::Refuse { for_ms: None }, None).unwrap();
    assert_eq!(idle.head().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(
        Client::connect(engine.address()).await.err().map(|error| error.kind()),
        Some(ErrorKind::ConnectionRefused)
    );
    engine.clear_faults();
    assert_eq!(busy.response().await.unwrap().events().len(), 4, "what was in flight goes on");
    until_reachable(&engine).await;

    let refusing = order(&engine, json!({"kind": "refuse"})).await;
    assert_eq!(refusing, 400, "over HTTP it needs an end");
    assert_eq!(order(&engine, json!({"kind": "refuse", "for_ms": 50})).await, 200);
    until_reachable(&engine).await;
    assert_eq!(engine.state().faults, []);
}

async fn until_reachable(engine: &SimEngine) {
    let start = Instant::now();
    while call(engine, "GET", "/health").await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "it is never reachable again");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_slow_engine_is_slow_until_it_is_cleared() {
    let engine = start();
    let time = async || {
        let start = Instant::now();
        send(&engine, CHAT, &chat("Hi", 10)).await.unwrap();
        start.elapsed()
    };
    assert_eq!(order(&engine, json!({"kind": "slow", "factor": 20})).await, 200);
    assert!(time().await >= Duration::from_millis(200), "ten steps of 20 ms");
    engine.inject(Fault::Slow { factor: 10_000.0 }, None).unwrap();
    assert_eq!(call(&engine, "DELETE", "/sim/fault").await.unwrap().status, 200);
    assert!(time().await < Duration::from_secs(5), "ten steps of 1 ms");
}

#[tokio::test]
async fn health_and_metrics_have_faults_of_their_own() {
    let engine = start();
    assert_eq!(order(&engine, json!({"kind": "health_fail", "count": 1})).await, 200);
    assert_eq!(order(&engine, json!({"kind": "metrics_hang"})).await, 200);
    let mut hanging = Client::to(&engine).await;
    hanging.write(b"GET /metrics HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
    assert_eq!(send(&engine, CHAT, &chat("Hi", 1)).await.unwrap().status, 200, "requests are served");
    assert_eq!(call(&engine, "GET", "/health").await.unwrap().status, 503);
    assert_eq!(call(&engine, "GET", "/health").await.unwrap().status, 200);
    assert!(hanging.arrived().is_empty(), "the metrics hang");
    engine.clear_faults();
    assert_eq!(call(&engine, "GET", "/metrics").await.unwrap().status, 200);
}

#[tokio::test]
async fn the_faults_in_force_are_listed_and_nonsense_is_refused() {
    let engine = start();
    for body in [json!({"kind": "explode"}), json!({"kind": "status", "status": 99}), json!([])] {
        assert_eq!(order(&engine, body.clone()).await, 400, "{body}");
    }
    order(&engine, json!({"kind": "status", "status": 503, "count": 7})).await;
    order(&engine, json!({"kind": "slow", "factor": 2.5})).await;
    let state = call(&engine, "GET", "/sim/state").await.unwrap().json();
    assert_eq!(
        state["faults"],
        json!([
            {"kind": "status", "status": 503, "before_body": false, "count": 7},
            {"kind": "slow", "factor": 2.5, "count": null},
        ])
    );
    assert_eq!((&state["name"], &state["generation"]), (&json!("sim"), &json!(1)));
}

#[tokio::test]
async fn a_restart_over_http_answers_first() {
    let engine = start();
    assert_eq!(order(&engine, json!({"kind": "restart"})).await, 200);
    until(&engine, "it is another process", |state| state.generation == 2).await;
    until_reachable(&engine).await;
}
