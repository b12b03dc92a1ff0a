//! KV events over real sockets: what is published, replayed and told of, and what faults do to it.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::{Value, json};
use warmgate::kv_events::Form;
use warmgate::sim::{ApiKey, EngineOptions, Fault, SimEngine};

use crate::client::{CHAT, Client, call, chat, send, start, until, within};
use crate::listener::{
    COMPLETIONS, Listener, Message, TOPIC, answers, ask, dealer, from, publishing, publishing_as, replay,
};

fn start_publishing() -> SimEngine {
    SimEngine::start(publishing()).unwrap()
}

/// The names that are held after these messages; signed ones by their bits.
fn held<'a>(messages: impl IntoIterator<Item = &'a Message>) -> HashSet<u64> {
    let mut held = HashSet::new();
    for event in messages.into_iter().flat_map(Message::events) {
        let names = event["block_hashes"].as_array().into_iter().flatten();
        let names = names.map(|name| name.as_u64().unwrap_or_else(|| name.as_i64().unwrap().cast_unsigned()));
        match event["type"].as_str().unwrap() {
            "BlockStored" => names.for_each(|name| assert!(held.insert(name), "stored once")),
            "BlockRemoved" => names.for_each(|name| assert!(held.remove(&name), "stored before")),
            _ => held.clear(),
        }
    }
    held
}

fn cached(engine: &SimEngine) -> HashSet<u64> {
    engine.cached_names().into_iter().map(|name| name.0).collect()
}

/// Random prompts, eight at a time, of which many share a beginning.
async fn load(engine: &SimEngine, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..12 {
        let requests: Vec<Value> = (0..8)
            .map(|_| {
                let shared = "shared beginning ".repeat(rng.usize(1..30));
                chat(&format!("{shared}{}", "x".repeat(rng.usize(1..600))), rng.u32(1..60))
            })
            .collect();
        let mut tasks = tokio::task::JoinSet::new();
        let address = engine.address();
        for body in requests {
            tasks.spawn(async move {
                let mut client = Client::connect(address).await.unwrap();
                client.post(CHAT, body.to_string().as_bytes()).await.unwrap();
                client.response().await.unwrap().status
            });
        }
        assert!(tasks.join_all().await.iter().all(|&status| status == 200));
    }
}

async fn what_is_told_is_what_is_held(form: Form) {
    let mut options = publishing_as(form);
    (options.parameters.kv_blocks, options.parameters.block_tokens) = (80, 8);
    let engine = SimEngine::start(options).unwrap();
    let mut listener = Listener::to(&engine).await;
    load(&engine, 1).await;
    engine.inject(Fault::ClearCache, None).unwrap();
    load(&engine, 2).await;
    until(&engine, "nothing runs", |state| state.engine.running == 0 && state.requests.in_flight == 0).await;
    let next_seq = engine.state().kv_events.unwrap().next_seq;
    let all = replay(&engine, 0).await;
    assert_eq!(all.iter().map(|message| message.seq).collect::<Vec<_>>(), (0..next_seq).collect::<Vec<_>>());
    assert_eq!(all[listener.first.clone().unwrap().seq as usize], listener.first.clone().unwrap());
    let mut seq = 0;
    while seq + 1 < next_seq {
        let message = listener.next().await;
        seq = message.seq;
        assert_eq!(message, all[seq as usize], "live and in the replay it is the same");
    }
    let removed = all.iter().flat_map(Message::kinds).filter(|kind| kind == "BlockRemoved").count();
    assert!(removed > 20, "the cache was full: {removed} removals");
    assert_eq!(all.iter().flat_map(Message::kinds).filter(|kind| kind == "AllBlocksCleared").count(), 1);
    assert_eq!(held(&all), cached(&engine));
    assert_eq!(cached(&engine).len(), engine.state().engine.cached_blocks);
}

#[tokio::test]
async fn a_listener_knows_what_the_cache_holds() {
    what_is_told_is_what_is_held(Form::Vllm).await;
}

#[tokio::test]
async fn in_sglangs_form_too() {
    what_is_told_is_what_is_held(Form::Sglang).await;
}

#[tokio::test]
async fn events_have_the_fields_and_the_ids_that_vllm_sends() {
    let mut options = publishing();
    options.models.push("tuned".to_owned());
    let engine = SimEngine::start(options).unwrap();
    let ids: Vec<u32> = (100..140).collect();
    let body = json!({"prompt": ids, "max_tokens": 1, "model": "tuned", "cache_salt": "tenant"});
    send(&engine, COMPLETIONS, &body).await.unwrap();
    send(&engine, COMPLETIONS, &json!({"prompt": "abcd".repeat(16), "max_tokens": 1})).await.unwrap();
    let messages = replay(&engine, 0).await;
    let events: Vec<Value> = messages.iter().flat_map(Message::events).collect();
    assert_eq!(events.len(), 2);
    let mut names: Vec<&String> = events[0].as_object().unwrap().keys().collect();
    names.sort_unstable();
    let mut fields = vec![
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ];
    fields.sort_unstable();
    assert_eq!(names, fields, "their order is tested where they are written");
    assert_eq!(events[0]["token_ids"], json!(ids[..32]), "whole blocks only");
    assert_eq!(events[0]["extra_keys"], json!([["tuned", "tenant"], ["tuned"]]));
    assert_eq!((&events[0]["block_size"], &events[0]["lora_name"]), (&json!(16), &json!("tuned")));
    assert_eq!(events[1]["token_ids"], json!(vec![u32::from_le_bytes(*b"abcd"); 16]));
    assert_eq!(events[1]["extra_keys"], json!([null]));
    let tokens = send(&engine, "/tokenize", &json!({"prompt": "abcdabcd"})).await.unwrap().json();
    assert_eq!(tokens["tokens"], json!(vec![u32::from_le_bytes(*b"abcd"); 2]), "as /tokenize says");
}

#[tokio::test]
async fn a_hit_on_the_whole_prompt_is_cut_back_by_a_block_and_told_nobody() {
    let engine = start_publishing();
    let body = json!({"prompt": (0..64).collect::<Vec<u32>>(), "max_tokens": 1});
    send(&engine, COMPLETIONS, &body).await.unwrap();
    let next_seq = engine.state().kv_events.unwrap().next_seq;
    let again = send(&engine, COMPLETIONS, &body).await.unwrap().json();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 48);
    assert_eq!(engine.state().kv_events.unwrap().next_seq, next_seq);
}

#[tokio::test]
async fn a_replay_begins_where_it_was_asked_to_and_has_what_is_kept() {
    let mut options = publishing();
    options.kv_events.as_mut().unwrap().buffer_steps = 3;
    let engine = SimEngine::start(options).unwrap();
    for number in 0..6 {
        send(&engine, COMPLETIONS, &json!({"prompt": vec![number; 16], "max_tokens": 1})).await.unwrap();
    }
    let numbers =
        async |start| -> Vec<u64> { replay(&engine, start).await.iter().map(|message| message.seq).collect() };
    assert_eq!(numbers(0).await, [3, 4, 5]);
    assert_eq!(numbers(5).await, [5]);
    assert_eq!(numbers(6).await, [0; 0]);
}

#[tokio::test]
async fn a_replay_that_is_asked_for_badly_gets_no_answer() {
    let engine = start_publishing();
    send(&engine, COMPLETIONS, &json!({"prompt": vec![1; 16], "max_tokens": 1})).await.unwrap();
    let mut socket = dealer(&engine).await;
    let zero = Bytes::from_static(&[0; 8]);
    ask(&mut socket, vec![zero.clone()]).await;
    ask(&mut socket, vec![Bytes::from_static(b"x"), zero]).await;
    ask(&mut socket, vec![Bytes::new(), Bytes::from_static(b"0")]).await;
    ask(&mut socket, from(1_000_000)).await;
    assert_eq!(answers(&mut socket).await, [], "the first answer is that to the last request");
}

/// One request for a block that nobody has asked for; with the engine's messages counted after it.
async fn one_block(engine: &SimEngine, number: u32) -> u64 {
    send(engine, COMPLETIONS, &json!({"prompt": vec![number; 16], "max_tokens": 1})).await.unwrap();
    engine.state().kv_events.unwrap().next_seq
}

#[tokio::test]
async fn messages_that_are_dropped_leave_a_gap_that_a_replay_fills() {
    let engine = start_publishing();
    let mut listener = Listener::to(&engine).await;
    engine.inject(Fault::DropKvEvents, Some(2)).unwrap();
    let base = engine.state().kv_events.unwrap().next_seq;
    for number in 0..3 {
        assert_eq!(one_block(&engine, 1_000_000 + number).await, base + u64::from(number) + 1);
    }
    assert_eq!(listener.next().await.seq, base + 2);
    let missing = replay(&engine, base).await;
    assert_eq!(missing.iter().map(|message| message.seq).collect::<Vec<_>>(), [base, base + 1, base + 2]);
    assert_eq!(held(&replay(&engine, 0).await), cached(&engine));
}

#[tokio::test]
async fn events_that_are_stopped_leave_no_trace() {
    let engine = start_publishing();
    let mut listener = Listener::to(&engine).await;
    let base = engine.state().kv_events.unwrap().next_seq;
    let order = json!({"kind": "stop_kv_events"});
    assert_eq!(send(&engine, "/sim/fault", &order).await.unwrap().status, 200);
    assert_eq!(engine.state().faults.len(), 1);
    assert_eq!(one_block(&engine, 1_000_000).await, base);
    engine.clear_faults();
    assert_eq!(one_block(&engine, 1_000_001).await, base + 1);
    assert_eq!(listener.next().await.seq, base);
    assert_eq!(held(&replay(&engine, 0).await).len() + 1, cached(&engine).len(), "one block nobody was told of");
}

#[tokio::test]
async fn a_corrupt_payload_cannot_be_read_and_is_whole_in_a_replay() {
    let engine = start_publishing();
    let mut listener = Listener::to(&engine).await;
    engine.inject(Fault::CorruptKvEvents, Some(1)).unwrap();
    let seq = one_block(&engine, 1_000_000).await - 1;
    one_block(&engine, 1_000_001).await;
    let corrupt = listener.next().await;
    assert_eq!(corrupt.seq, seq);
    assert!(rmp_serde::from_slice::<Value>(&corrupt.payload).is_err());
    assert_eq!(listener.next().await.kinds(), ["BlockStored"], "and then no more");
    assert_eq!(replay(&engine, seq).await[0].kinds(), ["BlockStored"]);
}

#[tokio::test]
async fn a_cache_that_is_cleared_says_so_with_the_next_step() {
    let engine = start_publishing();
    let mut listener = Listener::to(&engine).await;
    engine.inject(Fault::ClearCache, None).unwrap();
    assert_eq!(engine.state().engine.cached_blocks, 0);
    one_block(&engine, 1_000_000).await;
    assert_eq!(listener.next().await.kinds(), ["AllBlocksCleared", "BlockStored"]);
}

#[tokio::test]
async fn a_cache_that_is_restarted_has_new_names_and_begins_at_zero() {
    let engine = start_publishing();
    let mut listener = Listener::to(&engine).await;
    one_block(&engine, 7).await;
    let before = cached(&engine);
    let last = engine.state().kv_events.unwrap().next_seq - 1;
    engine.inject(Fault::RestartCache, None).unwrap();
    assert_eq!((cached(&engine).len(), engine.state().kv_events.unwrap().next_seq), (0, 0));
    for number in 0..20 {
        one_block(&engine, number).await;
    }
    let mut message = listener.next().await;
    while message.seq == last {
        message = listener.next().await;
    }
    assert_eq!((message.seq, message.kinds()), (0, vec!["BlockStored".to_owned()]));
    assert!(before.is_disjoint(&cached(&engine)), "the same tokens have other names");
    assert_eq!(held(&replay(&engine, 0).await), cached(&engine));
    assert_eq!(engine.state().generation, 1, "the process is the same");
}

#[tokio::test]
async fn a_restarted_engine_publishes_at_the_same_ports_from_zero() {
    let engine = start_publishing();
    drop(Listener::to(&engine).await);
    one_block(&engine, 7).await;
    let (before, state) = (cached(&engine), engine.state().kv_events.unwrap());
    engine.inject(Fault::Restart { down_ms: 10 }, None).unwrap();
    within(async { while call(&engine, "GET", "/health").await.is_err() {} }).await;
    drop(Listener::to(&engine).await);
    one_block(&engine, 7).await;
    let after = engine.state().kv_events.unwrap();
    assert_eq!((after.publish, after.replay), (state.publish, state.replay));
    let all = replay(&engine, 0).await;
    assert_eq!((all[0].seq, all.len() as u64), (0, after.next_seq));
    assert_eq!(held(&all), cached(&engine));
    assert!(before.is_disjoint(&cached(&engine)));
}

#[tokio::test]
async fn vllm_tells_where_its_events_are() {
    let engine = start_publishing();
    let state = engine.state().kv_events.unwrap();
    let sources = call(&engine, "GET", "/kv_event_sources").await.unwrap();
    assert_eq!(sources.status, 200);
    let expected = json!({"0": {"enable_kv_cache_events": true, "publisher": "zmq",
        "endpoint": format!("tcp://{}", state.publish), "replay_endpoint": format!("tcp://{}", state.replay.unwrap()),
        "buffer_steps": 10_000, "hwm": 100_000, "max_queue_size": 100_000, "topic": TOPIC}});
    assert_eq!(sources.json(), expected);
    assert_eq!(call(&engine, "POST", "/kv_event_sources").await.unwrap().status, 405);
    assert_eq!(call(&engine, "GET", "/server_info").await.unwrap().status, 404, "that is SGLang's");
}

#[tokio::test]
async fn sglang_tells_where_its_events_are() {
    let engine = SimEngine::start(publishing_as(Form::Sglang)).unwrap();
    let state = engine.state().kv_events.unwrap();
    let info = call(&engine, "GET", "/server_info").await.unwrap().json();
    let expected = json!({"endpoint_host": "127.0.0.1", "endpoint_port_base": state.publish.port(), "topic": TOPIC,
        "block_size": 16, "dp_size": 1, "replay_endpoint_port_base": state.replay.unwrap().port(),
        "load_endpoint_port_base": null, "load_topic": null});
    assert_eq!((&info["kv_events"], &info["page_size"]), (&expected, &json!(16)));
    assert_eq!(call(&engine, "GET", "/kv_event_sources").await.unwrap().status, 404, "that is vLLM's");
}

#[tokio::test]
async fn without_events_there_is_nothing_to_tell_and_no_fault_of_theirs() {
    let engine = start();
    for path in ["/kv_event_sources", "/server_info"] {
        let response = call(&engine, "GET", path).await.unwrap();
        assert_eq!((response.status, response.text().as_str()), (404, r#"{"detail":"Not Found"}"#));
    }
    assert!(engine.state().kv_events.is_none());
    let refused = engine.inject(Fault::DropKvEvents, Some(1)).unwrap_err();
    assert!(refused.contains("--kv-events"), "{refused}");
    send(&engine, COMPLETIONS, &json!({"prompt": "p".repeat(640), "max_tokens": 1})).await.unwrap();
    engine.inject(Fault::ClearCache, None).unwrap();
    assert_eq!(engine.state().engine.cached_blocks, 0, "a cache can be cleared all the same");
}

#[tokio::test]
async fn a_key_is_demanded_for_the_api_and_for_what_tells_of_events() {
    let options = EngineOptions { api_key: Some(ApiKey::new("secret".to_owned())), ..publishing() };
    assert!(!format!("{options:?}").contains("secret"));
    let engine = SimEngine::start(options).unwrap();
    let ask = async |path: &str, header: &str| {
        let mut client = Client::to(&engine).await;
        client.write(format!("GET {path} HTTP/1.1\r\nhost: sim\r\n{header}\r\n").as_bytes()).await.unwrap();
        client.response().await.unwrap()
    };
    for path in ["/v1/models", "/kv_event_sources"] {
        for header in ["", "authorization: Bearer wrong\r\n", "authorization: secret\r\n"] {
            let refused = ask(path, header).await;
            assert_eq!(
                (refused.status, refused.text().as_str()),
                (401, r#"{"error":"Unauthorized"}"#),
                "{path} {header}"
            );
        }
        assert_eq!(ask(path, "authorization: Bearer secret\r\n").await.status, 200);
    }
    assert_eq!(ask("/health", "").await.status, 200);
    let refused = send(&engine, CHAT, &chat("Hi", 1)).await.unwrap();
    assert_eq!((refused.status, engine.state().requests.requests), (401, 0));
}
