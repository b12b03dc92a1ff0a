//! Requests that go well, and those that are wrong by themselves.

use serde_json::{Value, json};
use warmgate::sim::{Fault, SimEngine};
use xxhash_rust::xxh3::xxh3_64;

use crate::client::{CHAT, Client, call, chat, fast, post, send, start, streamed, until};

fn cached(response: &Value) -> u64 {
    response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn a_stream_is_one_event_a_chunk_and_says_what_the_plain_answer_says() {
    let engine = start();
    let mut body = streamed("Tell me a story.", 6);
    body["stream_options"] = json!({"include_usage": true});
    let stream = send(&engine, CHAT, &body).await.unwrap();
    assert_eq!(stream.status, 200);
    assert_eq!(stream.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(stream.chunks.iter().all(|chunk| chunk.starts_with("data: ") && chunk.ends_with("\n\n")));
    assert_eq!(stream.chunks.len(), 1 + 6 + 1 + 1, "role, tokens, usage, [DONE]");
    assert_eq!(stream.chunks.last().unwrap(), "data: [DONE]\n\n");
    let events = stream.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[6]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[7]["usage"]["completion_tokens"], 6);
    let pieces: String =
        events[1..7].iter().map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap()).collect();

    let plain = send(&engine, CHAT, &chat("Tell me a story.", 6)).await.unwrap().json();
    assert_eq!(plain["choices"][0]["message"]["content"], pieces.as_str(), "one prompt, one seed, one answer");
    assert_eq!(plain["usage"]["prompt_tokens"], events[7]["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn every_endpoint_answers_plain_and_streamed() {
    let engine = start();
    let message = json!([{"role": "user", "content": "Hi"}]);
    for (path, body, last) in [
        (CHAT, json!({"messages": message}), "data: [DONE]\n\n"),
        ("/v1/completions", json!({"prompt": "Hi"}), "data: [DONE]\n\n"),
        ("/v1/completions", json!({"prompt": [1, 2, 3]}), "data: [DONE]\n\n"),
        ("/generate", json!({"text": "Hi"}), "data: [DONE]\n\n"),
        ("/generate", json!({"input_ids": [1, 2, 3]}), "data: [DONE]\n\n"),
        ("/v1/messages", json!({"messages": message, "max_tokens": 3}), "event: message_stop\n"),
        ("/v1/responses", json!({"input": "Hi"}), "event: response.completed\n"),
    ] {
        let plain = send(&engine, path, &body).await.unwrap();
        assert_eq!((plain.status, plain.header("content-type")), (200, Some("application/json")), "{path}");
        assert!(plain.json().is_object(), "{path}");
        let mut body = body;
        body["stream"] = json!(true);
        let stream = send(&engine, path, &body).await.unwrap();
        assert!(stream.chunks.last().unwrap().starts_with(last), "{path} ends with {:?}", stream.chunks.last());
        assert!(stream.events().len() >= 3, "{path}");
    }
    let embedded = send(&engine, "/v1/embeddings", &json!({"input": ["a", "b"]})).await.unwrap().json();
    assert_eq!(embedded["data"].as_array().unwrap().len(), 2);
    let tokens = send(&engine, "/tokenize", &json!({"prompt": "12345"})).await.unwrap().json();
    assert_eq!((&tokens["count"], tokens["tokens"].as_array().unwrap().len()), (&json!(2), 2));
    let counted = send(&engine, "/v1/messages/count_tokens", &json!({"messages": message})).await.unwrap().json();
    assert!(counted["input_tokens"].as_u64().unwrap() > 1);
    until(&engine, "all served", |state| state.requests.served == 17 && state.requests.in_flight == 0).await;
    assert_eq!(engine.state().engine.held_blocks, 0);
}

#[tokio::test]
async fn the_header_comes_at_once_and_the_role_with_the_first_token() {
    let engine = start();
    engine.inject(Fault::Freeze, None).unwrap();
    let mut chatting = Client::to(&engine).await;
    chatting.post(CHAT, streamed("Hi", 2).to_string().as_bytes()).await.unwrap();
    assert_eq!(chatting.head().await.unwrap().status, 200, "the header does not wait for the engine");
    let mut responding = Client::to(&engine).await;
    responding.post("/v1/responses", json!({"input": "Hi", "stream": true}).to_string().as_bytes()).await.unwrap();
    responding.head().await.unwrap();
    for name in ["response.created", "response.in_progress"] {
        let event = responding.chunk().await.unwrap();
        assert!(event.starts_with(&format!("event: {name}\n")), "{name} does not wait either: {event}");
    }
    assert!(chatting.arrived().is_empty() && responding.arrived().is_empty(), "nothing else before the first token");
    engine.clear_faults();
    assert!(chatting.chunk().await.unwrap().contains(r#""role":"assistant""#));
    assert!(responding.chunk().await.unwrap().starts_with("event: response.output_item.added\n"));
}

#[tokio::test]
async fn cached_tokens_grow_with_the_shared_prefix() {
    let engine = start();
    let system = "You are a careful assistant. ".repeat(40);
    let first_user = json!({"role": "user", "content": "What is a cache?"});
    let mut messages = vec![json!({"role": "system", "content": system}), first_user];
    let mut last_prompt_tokens = 0;
    for turn in 0..4 {
        let answer = send(&engine, CHAT, &json!({"messages": messages, "max_tokens": 40})).await.unwrap().json();
        let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        let expected = if turn == 0 { 0 } else { (last_prompt_tokens + 40 - 2) / 16 * 16 };
        assert!(cached(&answer) >= expected, "turn {turn} finds the last prompt and its answer: {}", cached(&answer));
        assert!(cached(&answer) < prompt_tokens);
        last_prompt_tokens = prompt_tokens;
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": format!("And what of number {turn}?")}));
    }
    let system_only = json!({"messages": [messages[0], {"role": "user", "content": "Something else"}]});
    let other = send(&engine, CHAT, &system_only).await.unwrap().json();
    assert!(cached(&other) >= 272 && cached(&other) < 304, "another user shares the system prompt: {}", cached(&other));
    let mut salted = system_only;
    salted["cache_salt"] = json!("tenant");
    assert_eq!(cached(&send(&engine, CHAT, &salted).await.unwrap().json()), 0, "a salt shares nothing");
}

#[tokio::test]
async fn the_cache_holds_no_more_than_its_blocks() {
    let mut options = fast();
    options.parameters.kv_blocks = 40;
    let engine = SimEngine::start(options).unwrap();
    let prompt = |name: &str| json!({"prompt": name.repeat(1200), "max_tokens": 1}); // 300 tokens, 19 blocks
    for (name, expected) in [("a", 0), ("b", 0), ("a", 288), ("c", 0), ("a", 288), ("b", 48)] {
        let answer = send(&engine, "/v1/completions", &prompt(name)).await.unwrap().json();
        assert_eq!(
            cached(&answer),
            expected,
            "two prompts of 19 blocks fit into 40, a third pushes the least recently used out from its tail: {name}"
        );
        assert!(engine.state().engine.cached_blocks <= 40);
    }
    let too_long = send(&engine, "/v1/completions", &json!({"prompt": "x".repeat(2600)})).await.unwrap();
    assert_eq!((too_long.status, &too_long.json()["error"]["param"]), (400, &json!("input_tokens")));
    let too_much = send(&engine, "/v1/completions", &json!({"prompt": "x", "max_tokens": 640})).await.unwrap();
    assert_eq!((too_much.status, &too_much.json()["error"]["param"]), (400, &json!("max_tokens")));
    assert_eq!(engine.state().requests.rejected, 2);
}

#[tokio::test]
async fn bodies_of_every_size_and_framing_arrive_whole() {
    let mut options = fast();
    options.parameters.kv_blocks = 1 << 20;
    options.parameters.timing = warmgate::sim::engine::Timing::from_rates(1e12, 1e6);
    options.parameters.step_tokens = 1 << 24;
    let engine = SimEngine::start(options).unwrap();
    let mut client = Client::to(&engine).await;
    for size in [100, 65_536, 65_537, 1 << 20, 4 << 20] {
        let body = json!({"prompt": "p".repeat(size - 28), "max_tokens": 1}).to_string();
        let expected = format!("{:016x}", xxh3_64(body.as_bytes()));
        let head = "POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\n";
        client.post("/v1/completions", body.as_bytes()).await.unwrap();
        let by_length = client.response().await.unwrap();
        client.write(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
        for piece in body.as_bytes().chunks(size / 3 + 1) {
            client.write(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).await.unwrap();
        }
        client.write(b"0\r\n\r\n").await.unwrap();
        let by_chunks = client.response().await.unwrap();
        client
            .write(format!("{head}expect: 100-continue\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes())
            .await
            .unwrap();
        assert_eq!(client.any_head().await.unwrap().status, 100, "the body is asked for");
        client.write(body.as_bytes()).await.unwrap();
        for response in [by_length, by_chunks, client.response().await.unwrap()] {
            assert_eq!(response.status, 200, "{size}: {}", response.text());
            assert_eq!(response.header("x-sim-body-xxh3"), Some(expected.as_str()), "{size} bytes");
            assert_eq!(response.header("x-sim-body-bytes"), Some(body.len().to_string().as_str()));
        }
    }
    let state = engine.state();
    assert_eq!(state.requests.bodies, 15, "all on one connection");
    assert_eq!(state.received.last().unwrap().body_bytes, 4 << 20);
    assert!(state.received[0].headers.contains(&(String::from("host"), String::from("sim"))));
}

#[tokio::test]
async fn pipelined_and_http_1_0_requests_are_served() {
    let engine = start();
    let mut client = Client::to(&engine).await;
    let one = post(CHAT, chat("one", 2).to_string().as_bytes());
    let two = post(CHAT, streamed("two", 2).to_string().as_bytes());
    client.write(&[one.as_slice(), &two, b"GET /version HTTP/1.1\r\nhost: sim\r\n\r\n"].concat()).await.unwrap();
    assert_eq!(client.response().await.unwrap().json()["object"], "chat.completion");
    assert_eq!(client.response().await.unwrap().events()[0]["object"], "chat.completion.chunk");
    assert_eq!(client.response().await.unwrap().json()["version"], "0.32.0");

    let mut old = Client::to(&engine).await;
    let body = chat("old", 2).to_string();
    let head = "POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\n";
    old.write(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    let response = old.response().await.unwrap();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
}

#[tokio::test]
async fn what_is_wrong_is_refused_in_the_real_engines_words() {
    let engine = start();
    let mut client = Client::to(&engine).await;
    for (path, body, status, message) in [
        (CHAT, "", 400, "Field required"),
        (CHAT, r#"{"model": "tiny-llama", "messages": ["#, 400, "'loc': 'body.37', 'msg': 'JSON decode error'"),
        (CHAT, r#"{"model":"sim-model"}"#, 400, "body.messages"),
        (CHAT, r#"{"model":"x","messages":[]}"#, 404, "The model `x` does not exist. Valid aliases: sim-model."),
        ("/v1/messages", r#"{"model":"x","messages":[]}"#, 404, "The model `x` does not exist."),
    ] {
        client.post(path, body.as_bytes()).await.unwrap();
        let response = client.response().await.unwrap();
        assert_eq!(response.status, status, "{body}");
        let error = &response.json()["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{body}: {error}");
        assert_eq!(error.get("code").is_some(), path == CHAT, "each API has its own form");
    }
    for (method, path, status, allow) in [
        ("GET", "/v1/nothing", 404, None),
        ("GET", CHAT, 405, Some("POST")),
        ("DELETE", "/v1/models", 405, Some("GET")),
    ] {
        let response = call(&engine, method, path).await.unwrap();
        assert_eq!((response.status, response.header("allow")), (status, allow));
        assert!(response.json()["detail"].is_string());
    }
    let mut head = Client::to(&engine).await;
    head.write(b"HEAD /health HTTP/1.1\r\nhost: sim\r\n\r\nGET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
    assert_eq!(head.head().await.unwrap().status, 405, "health is for GET only");
    assert_eq!(head.head().await.unwrap().status, 200, "and the answer to HEAD has no body");
    let mut garbage = Client::to(&engine).await;
    garbage.write(b"this is not http\r\n\r\n").await.unwrap();
    assert_eq!(garbage.response().await.unwrap().text(), "Invalid HTTP request received.");
    assert_eq!(engine.state().requests.rejected, 5);
}

#[tokio::test]
async fn the_clients_request_id_names_the_answer() {
    let engine = start();
    let mut client = Client::to(&engine).await;
    let body = chat("Hi", 1).to_string();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\nx-request-id: abc-1\r\n";
    client.write(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    assert_eq!(client.response().await.unwrap().json()["id"], "chatcmpl-abc-1");
}
