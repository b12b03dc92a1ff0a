use super::*;
use crate::request::fixtures::{recordings, split};
use proptest::prelude::*;

/// All that can be asked of a reader, how many times it reported the first data, and whether an error.
#[derive(Debug, PartialEq)]
struct Seen {
    firsts: usize,
    has_error: bool,
    events: u64,
    is_done: bool,
    usage: Option<Usage>,
    id: Option<String>,
}

fn see<'a>(is_sse: bool, chunks: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut reader = ResponseReader::new(is_sse, true).with_response_id();
    let (mut firsts, mut has_error) = (0, false);
    for chunk in chunks {
        let progress = reader.push(chunk);
        firsts += usize::from(progress.first_data);
        has_error |= progress.error;
    }
    let id = reader.response_id().map(str::to_owned);
    assert_eq!(reader.has_error(), has_error, "what was reported is remembered");
    Seen { firsts, has_error, events: reader.events(), is_done: reader.saw_done(), usage: reader.usage(), id }
}

fn whole(is_sse: bool, body: &str) -> Seen {
    see(is_sse, std::iter::once(body.as_bytes()))
}

fn counts(prompt_tokens: u64, cached_tokens: Option<u64>, output_tokens: u64) -> Option<Usage> {
    Some(Usage { prompt_tokens, cached_tokens, output_tokens })
}

/// Usage as a full parse of a body finds it: of the last `usage` that is an object, wherever it lies.
fn parsed_usage(is_sse: bool, body: &[u8]) -> Option<Usage> {
    fn find(value: &serde_json::Value, found: &mut Option<Usage>) {
        if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
            let at = |path: &str| usage.pointer(path).and_then(serde_json::Value::as_u64);
            let cache = at("/cache_read_input_tokens").unwrap_or(0) + at("/cache_creation_input_tokens").unwrap_or(0);
            let prompt = at("/prompt_tokens").or(at("/input_tokens").map(|input| input + cache));
            let cached = at("/prompt_tokens_details/cached_tokens")
                .or(at("/input_tokens_details/cached_tokens"))
                .or(at("/cache_read_input_tokens"));
            let output = at("/completion_tokens").or(at("/output_tokens")).unwrap_or(0);
            *found = Some(Usage { prompt_tokens: prompt.unwrap(), cached_tokens: cached, output_tokens: output });
        }
        match value {
            serde_json::Value::Object(members) => members.values().for_each(|value| find(value, found)),
            serde_json::Value::Array(items) => items.iter().for_each(|value| find(value, found)),
            _ => {}
        }
    }
    let mut found = None;
    let payloads = body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    for payload in payloads.chain((!is_sse).then_some(body)) {
        if let Ok(value) = serde_json::from_slice(payload) {
            find(&value, &mut found);
        }
    }
    found
}

#[test]
fn every_recorded_answer_is_read_alike_however_it_is_cut() {
    let (mut with_usage, mut streams) = (0, 0);
    for recording in recordings("http", ".resp") {
        let Some((_, body)) = split(&recording.bytes) else { continue };
        let is_sse = memchr::memmem::find(&recording.bytes, b"text/event-stream").is_some();
        let seen = see(is_sse, std::iter::once(body.as_slice()));
        let name = &recording.name;
        assert_eq!(seen.usage, parsed_usage(is_sse, &body), "{name}");
        with_usage += usize::from(seen.usage.is_some());
        streams += usize::from(is_sse);
        assert_eq!(seen.is_done, is_sse, "{name}: each recorded stream came to its end");
        assert_eq!(seen.id.is_some(), name.starts_with("responses"), "{name}");
        assert_eq!((seen.firsts, seen.has_error), first_and_error(&body), "{name}");
        let sizes = if body.len() > 20_000 { 63..=64 } else { 1..=64 };
        for size in sizes {
            assert_eq!(see(is_sse, body.chunks(size)), seen, "{name} in chunks of {size}");
        }
    }
    assert!(with_usage == 0 || (with_usage > 30 && streams > 8), "{with_usage} with usage, {streams} streams");
}

/// What is due for a recording: one first data for each body that is not empty, an error where it is an error object.
fn first_and_error(body: &[u8]) -> (usize, bool) {
    let is_error = serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|value| value.get("error").is_some());
    (usize::from(!body.is_empty()), is_error)
}

#[test]
fn a_killed_engine_shows_as_an_error() {
    for (name, output_first) in [("stream-long", true), ("prefill", false)] {
        let found = recordings("behaviour", &format!("shutdown-enginecore-sigkill.{name}.resp"));
        for recording in found {
            let text = String::from_utf8(recording.bytes).unwrap();
            // One of the recordings is the end of a stream, without its head. Chunk sizes are no fields to a reader.
            let body = if text.starts_with("HTTP/") { text.split_once("\r\n\r\n").unwrap().1 } else { &text };
            let seen = whole(true, body);
            assert_eq!((seen.firsts, seen.has_error), (usize::from(output_first), true), "{name}");
        }
    }
}

#[test]
fn a_drained_engine_gives_an_end_without_output() {
    let seen = whole(true, "data: [DONE]\n\n");
    assert_eq!((seen.firsts, seen.events, seen.is_done), (0, 0, true));
}

#[test]
fn first_data_is_output_and_nothing_else() {
    for (body, firsts, events) in [
        (": ping\n\n", 0, 0),
        ("data:\n\n", 0, 0),
        ("id: 1\nretry: 5\n\n", 0, 0),
        ("data:{}\n\n", 1, 1),
        ("data: x\r\n\r\n", 1, 1),
        ("data: 1\rdata: 2\r", 1, 2),
        ("data:  [DONE] \n\n", 0, 0),
        ("data: [DONE!]\n\n", 1, 1),
        ("datax: {}\n\n", 0, 0),
        ("event: ping\ndata: {\"type\": \"ping\"}\n\n", 0, 1),
        ("event: response.created\ndata: {}\n\nevent: response.output_text.delta\ndata: {}\n\n", 1, 2),
        ("event: response.in_progress\r\ndata: {}\r\n\r\n", 0, 1),
        ("event:message_start\ndata: {}\n\n", 1, 1),
        ("data: {\"error\":{\"message\":\"x\"}}\n\n", 0, 1),
    ] {
        let seen = whole(true, body);
        assert_eq!((seen.firsts, seen.events), (firsts, events), "{body:?}");
    }
}

#[test]
fn first_data_is_reported_by_the_chunk_that_shows_it() {
    let mut reader = ResponseReader::new(true, false);
    assert!(!reader.push(b"data: {\"id\":\"a\"").first_data, "it may yet be an error");
    assert!(reader.push(b"}\n").first_data, "a whole line is judged at once");
    assert!(!reader.push(b"\ndata: {}\n\n").first_data, "only the first is the first");
    let mut reader = ResponseReader::new(true, false);
    let long = format!("data: {{\"id\":\"{}", "a".repeat(HEAD_BYTES));
    assert!(reader.push(long.as_bytes()).first_data, "a long line needs no end");
}

#[test]
fn errors_are_known_by_their_form() {
    for (payload, is_error) in [
        (r#"{"error":{"message":"x","code":500}}"#, true),
        (r#"{ "error" : "x"}"#, true),
        (r#"{"type":"error","error":{"type":"overloaded_error"}}"#, true),
        (r#"{"object":"error","message":"x"}"#, true),
        (r#"{"error":null,"id":"x"}"#, false),
        (r#"{"id":"error"}"#, false),
        (r#"{"type":"errors"}"#, false),
        (r#"["error"]"#, false),
    ] {
        let seen = whole(true, &format!("data: {payload}\n\n"));
        assert_eq!((seen.has_error, seen.firsts == 0), (is_error, is_error), "{payload}");
        assert_eq!(whole(false, payload).has_error, is_error, "{payload}, not streamed");
    }
    assert!(whole(true, "event: error\ndata: {\"message\":\"x\"}\n\n").has_error);
}

#[test]
fn the_end_of_each_api_is_known() {
    for end in ["message_stop", "response.completed", "response.incomplete"] {
        assert!(whole(true, &format!("event: {end}\ndata: {{}}\n\n")).is_done, "{end}");
    }
    assert!(!whole(true, "data: {}\n\n").is_done, "a stream that only stops was cut off");
    assert!(!whole(true, "event: message_stop\n\n").is_done, "the event needs its data");
}

#[test]
fn usage_of_every_api_is_understood() {
    let anthropic = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":30,\
        \"cache_creation_input_tokens\":7,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"usage\":{\"output_tokens\":12}}\n\n";
    assert_eq!(whole(true, anthropic).usage, counts(42, Some(30), 12), "the first and the last report are joined");
    let sglang = r#"{"text":"a","meta_info":{"id":"x","finish_reason":{"type":"stop"},"prompt_tokens":8,"completion_tokens":3,"cached_tokens":4}}"#;
    assert_eq!(whole(false, sglang).usage, counts(8, Some(4), 3));
    assert_eq!(
        whole(true, &format!("data: {{\"meta_info\": {{\"prompt_tokens\": 1}}}}\n\ndata: {sglang}\n\n")).usage,
        counts(8, Some(4), 3)
    );
    let null_last = "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: {\"usage\":null}\n\n";
    assert_eq!(whole(true, null_last).usage, counts(5, None, 2));
    assert_eq!(whole(false, r#"{"usage":{"total_tokens":9}}"#).usage, counts(9, None, 0), "rerank has only a total");
    assert_eq!(
        whole(false, r#"{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8}}}"#).usage,
        counts(9, Some(8), 0)
    );
    for nothing in [
        "",
        "{}",
        r#"{"usage":null}"#,
        r#"{"usage":[]}"#,
        r#"{"usage":{}}"#,
        r#"{"usage""#,
        r#"{"usage":{"prompt_tokens":4"#,
    ] {
        assert_eq!(whole(false, nothing).usage, None, "{nothing}");
    }
}

#[test]
fn text_about_usage_is_not_usage() {
    let body = serde_json::json!({"choices": [{"text": "\"usage\":{\"prompt_tokens\":1}"}, {"text": "a \"usage"}, {"usage": "x"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2}});
    assert_eq!(whole(false, &body.to_string()).usage, counts(7, None, 2));
}

#[test]
fn usage_is_found_before_a_megabyte_of_token_ids() {
    let body = format!(
        r#"{{"usage":{{"prompt_tokens":7,"completion_tokens":2}},"prompt_token_ids":[{}1]}}"#,
        "1234,".repeat(200_000)
    );
    let seen = see(false, body.as_bytes().chunks(16_384));
    assert_eq!(seen.usage, counts(7, None, 2));
}

#[test]
fn usage_is_not_looked_for_unless_wanted() {
    let mut reader = ResponseReader::new(false, false);
    reader.push(br#"{"usage":{"prompt_tokens":7}}"#);
    assert_eq!(reader.usage(), None);
}

#[test]
fn the_response_id_is_the_answers_own() {
    let body = r#"{"previous_response_id":"resp_old","id":"msg_1","x":{"id" : "resp_new"},"y":{"id":"resp_other"}}"#;
    for size in 1..body.len() {
        assert_eq!(see(false, body.as_bytes().chunks(size)).id.as_deref(), Some("resp_new"), "in chunks of {size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing(
        lines in prop::collection::vec(prop::sample::select(vec!["data: {\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":3}}",
            "data: {\"id\":\"resp_1\",\"usage\":null}", "data: [DONE]", "", ": x", "event: response.created", "event: error", "data: \"usage\"",
            "data: {\"error\":{}}", "data: {\"meta_info\":{\"prompt_tokens\":4,\"cached_tokens\":3}}", "\"usage\"\"usage\":{\"total_tokens\":5}"]), 0..12),
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        is_sse in any::<bool>(),
    ) {
        let body = lines.join(end) + end;
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|cut| &body.as_bytes()[cut[0]..cut[1]]);
        prop_assert_eq!(see(is_sse, chunks), whole(is_sse, &body), "{:?}", body);
    }

    #[test]
    fn arbitrary_bytes_panic_nowhere(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8), is_sse in any::<bool>()) {
        see(is_sse, chunks.iter().map(Vec::as_slice));
    }
}
