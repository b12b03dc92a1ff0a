//! Bodies no client should send, and all that real clients sent: no panic, no error of ours, no more than linear work.

use super::*;
use crate::request::fixtures::{recordings, split};
use crate::request::json::work;

/// Reads `body` at every endpoint, streams every prompt, and returns the work done: bytes looked at and written.
fn exhaust(body: &[u8]) -> usize {
    work::DONE.set(0);
    let mut written = 0;
    for endpoint in Endpoint::ALL {
        if let Ok(request) = read(endpoint, body) {
            request.prompts.iter().for_each(|prompt| prompt.canonical(&mut |piece| written += piece.len()));
        }
    }
    work::DONE.get() + written
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn arbitrary_bytes_panic_nowhere(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exhaust(&bytes);
    }

    #[test]
    fn mutated_requests_panic_nowhere_and_are_refused_only_if_not_json(
        body in any_body(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3u8), 0..6),
    ) {
        let mut bytes = body.to_string().into_bytes();
        for (from, to, how) in edits {
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            match how {
                0 => bytes[from] = bytes[to],
                1 => bytes.insert(to, bytes[from]),
                _ => bytes.swap(from, to),
            }
        }
        exhaust(&bytes);
        let is_json = std::str::from_utf8(&bytes).is_ok() && serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
        for endpoint in Endpoint::ALL {
            prop_assert_eq!(read(endpoint, &bytes).is_ok(), is_json, "{}: {}", endpoint.as_str(), String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn json_of_any_form_at_any_member_is_forwarded(
        key in prop::sample::select(vec!["messages", "prompt", "input", "system", "instructions", "tools", "documents",
            "text", "input_ids", "image_data", "query", "stream_options", "sampling_params", "metadata", "model"]),
        value in prop::sample::select(vec!["null", "3", "-1.5e3", "true", "\"x\"", "[]", "{}", "[[[]]]", "[null]", "[{}]",
            "[[1,\"a\",null]]", "[{\"role\":[],\"content\":{\"type\":{}}}]", "[{\"content\":[[],{},3,null,\"x\"]}]",
            "[{\"content\":[{\"type\":\"tool_result\",\"content\":[{\"type\":\"tool_result\",\"content\":[{\"type\":\"tool_result\",\"content\":[]}]}]}]}]",
            "[{\"tool_calls\":[3,{},{\"function\":{\"function\":{}}}]}]", "{\"include_usage\":[]}", "[1,[2],\"3\"]"]),
    ) {
        let body = format!("{{\"{key}\":{value}}}");
        exhaust(body.as_bytes());
        for endpoint in Endpoint::ALL {
            prop_assert!(read(endpoint, body.as_bytes()).is_ok(), "{}: {body}", endpoint.as_str());
        }
    }
}

#[test]
fn empty_and_broken_bodies_are_told_apart() {
    for endpoint in Endpoint::ALL {
        assert_eq!(read(endpoint, b"").unwrap_err(), ReadError::Empty);
        assert_eq!(read(endpoint, b" \r\n").unwrap_err(), ReadError::Empty);
        assert!(read(endpoint, b"[1, 2]").unwrap().prompts.is_empty(), "JSON that is no object is forwarded");
        let error = read(endpoint, br#"{"model": "secret", "messages": ["#).unwrap_err();
        assert!(matches!(error, ReadError::NotJson { offset: 33, .. }), "{error:?}");
        assert_eq!(error.to_string(), "the request body is not valid JSON: unexpected end at byte 33");
    }
}

#[test]
fn too_deep_is_forwarded_without_a_prompt() {
    let deep = [b"[".repeat(200_000), b"]".repeat(200_000)].concat();
    let body = [br#"{"model":"m","messages":[{"role":"user","content":"x"}],"extra":"#, deep.as_slice(), b"}"].concat();
    let request = read(Endpoint::ChatCompletions, &body).unwrap();
    assert_eq!(request.model.as_deref(), Some("m"));
    assert!(request.prompts.is_empty());
}

#[test]
fn hostile_bodies_take_linear_work() {
    const SIZE: usize = 64 * 1024;
    let many = |piece: &str| piece.repeat(SIZE / piece.len());
    let list = |open: &str, piece: &str, close: &str| format!("{open}{}{close}", many(piece).trim_end_matches(','));
    let calls = list("", r#"{"function":{"name":"f","arguments":{}}},"#, "");
    let bodies = [
        many("["),
        many(r#"{"a":"#),
        many(r#"{"messages":["#),
        list(r#"{"prompt":""#, r#"\""#, r#""}"#),
        list(r#"{"prompt":""#, r"\ud83d", r#""}"#),
        list(r#"{"messages":[{"role":"user","content":""#, r"\n", r#""}]}"#),
        list("{", r#""model":"a","#, "}"),
        list("{", r#""messages":[{"role":"user","content":"a"}],"#, "}"),
        list(r#"{"messages":[{"#, r#""content":[{"text":"a"},{"text":"b"}],"#, "}]}"),
        list(r#"{"messages":[{"content":[{"#, r#""content":["a"],"#, "}]}]}"),
        list(&format!(r#"{{"messages":[{{"tool_calls":[{calls}],"#), r#""content":"a","#, "}]}"),
        list(r#"{"messages":["#, "{},", "]}"),
        list(r#"{"messages":[{"content":["#, "{},", "]}]}"),
        list(r#"{"messages":[{"content":["#, r#"{"type":"tool_result","content":[[],[]]},"#, "]}]}"),
        list(r#"{"messages":[{}],"tools":["#, r#"{"a":1},"#, "]}"),
        list(r#"{"messages":[{}],"tools":{"#, r#""a":1,"#, "}}"),
        format!(r#"{{"messages":[{{}}],"tools":{}1{}}}"#, r#"{"a":"#.repeat(60), "}".repeat(60)),
        list(r#"{"prompt":["#, "1,", "]}"),
        list(r#"{"prompt":["#, "[1],", "]}"),
        list(r#"{"documents":["a"],"query":["#, r#""","#, "]}"),
        list(r#"{"text":["#, r#""","#, r#"],"image_data":"x"}"#),
        format!("{{\"n\":{}}}", many("9")),
    ];
    for body in bodies {
        let half: String = body.chars().take(60).collect();
        let per_byte = exhaust(body.as_bytes()) as f64 / body.len() as f64 / Endpoint::ALL.len() as f64;
        assert!(per_byte < 6.0, "{per_byte:.1} bytes of work for each byte of {half}..");
        assert!(per_byte > 0.1 || body.len() < 2000, "the work is counted: {per_byte:.3} for {half}..");
    }
}

#[test]
fn megabytes_of_one_thing_come_to_an_end() {
    let escapes = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "\\\"".repeat(1 << 20));
    let keys = format!(r#"{{{}"model":"b","messages":[{{}}]}}"#, r#""model":"a","#.repeat(200_000));
    let nested = "[".repeat(2 << 20);
    for (body, prompt_bytes) in [(escapes, 7 + (2 << 20)), (keys, 3), (nested, 0)] {
        work::DONE.set(0);
        let request = read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
        let written: usize = request.prompts.iter().map(|prompt| bytes_of(prompt).len()).sum();
        assert_eq!(written, prompt_bytes);
        assert!(work::DONE.get() <= 2 * body.len(), "{} bytes of work for {}", work::DONE.get(), body.len());
    }
}

#[test]
fn every_recorded_request_is_read_without_an_error_of_ours() {
    let mut read_count = 0;
    for recording in recordings("http", ".req") {
        let Some((start_line, body)) = split(&recording.bytes) else {
            assert_eq!(recording.name, "err-garbage.req", "only garbage has no head");
            continue;
        };
        let path = start_line.split(' ').nth(1).unwrap();
        let Some(endpoint) = Endpoint::of(path).filter(|_| start_line.starts_with("post")) else { continue };
        let request = read(endpoint, &body);
        match recording.name.as_str() {
            "err-bad-json.req" => assert!(matches!(request, Err(ReadError::NotJson { offset: 37, .. })), "{request:?}"),
            "err-empty-body.req" => assert_eq!(request.unwrap_err(), ReadError::Empty),
            name => {
                let request = request.unwrap_or_else(|error| panic!("{name}: {error}"));
                let lacks_prompt = ["err-missing-messages.req", "err-empty-messages.req", "messages-bad.req"];
                assert_eq!(request.prompts.is_empty(), lacks_prompt.contains(&name), "{name}");
                assert_eq!(request.model.is_none(), name.contains("no-model") || name.contains("nomodel"), "{name}");
                read_count += 1;
            }
        }
    }
    assert!(read_count == 0 || read_count > 50, "{read_count} requests are fewer than were recorded");
}

#[test]
fn the_recorded_warm_request_repeats_the_cold_one() {
    let recordings = recordings("http", ".req");
    let prompt = |name: &str| {
        let recording = recordings.iter().find(|recording| recording.name == name)?;
        let (_, body) = split(&recording.bytes)?;
        Some(bytes_of(&read(Endpoint::ChatCompletions, &body).unwrap().prompts[0]))
    };
    let (Some(cold), Some(warm), Some(plain)) = (prompt("chat-cold.req"), prompt("chat-warm.req"), prompt("chat.req"))
    else {
        return;
    };
    assert_eq!(cold, warm);
    assert_ne!(cold, plain);
}
