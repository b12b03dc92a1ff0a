//! What is read of requests, and what their prompts' canonical bytes have in common.

mod forms;
mod robust;

use super::*;
use proptest::prelude::*;

use crate::testing::config;
use serde_json::{Value, json};

fn bytes_of(prompt: &Prompt<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    prompt.canonical(&mut |piece| bytes.extend_from_slice(piece));
    bytes
}

/// The canonical bytes of each prompt in `body`.
fn all(endpoint: Endpoint, body: &str) -> Vec<Vec<u8>> {
    read(endpoint, body.as_bytes()).unwrap().prompts.iter().map(bytes_of).collect()
}

/// The canonical bytes of the one prompt in `body`.
fn one(endpoint: Endpoint, body: &str) -> Vec<u8> {
    let mut prompts = all(endpoint, body);
    assert_eq!(prompts.len(), 1, "one prompt is expected in {body}");
    prompts.remove(0)
}

fn chat(messages: &Value) -> Vec<u8> {
    one(Endpoint::ChatCompletions, &json!({"model": "m", "messages": messages}).to_string())
}

/// Spells `value` in another way: keys backwards, spaces, every character of every string escaped.
fn respell(value: &Value) -> String {
    let escape = |text: &str| {
        let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        format!("\"{units}\"")
    };
    match value {
        Value::String(text) => escape(text),
        Value::Array(items) => format!("[ {} ]", items.iter().map(respell).collect::<Vec<_>>().join(" ,\n")),
        Value::Object(members) => {
            let members = members.iter().rev().map(|(key, value)| format!("{}\t: {}", escape(key), respell(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(" ,\r\n"))
        }
        other => other.to_string(),
    }
}

fn any_part() -> impl Strategy<Value = Value> {
    let text = "[ -~é]{1,30}";
    prop_oneof![
        text.prop_map(|text| json!({"type": "text", "text": text})),
        text.prop_map(|url| json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}})),
        text.prop_map(|data| json!({"type": "image", "source": {"type": "base64", "data": data}})),
        text.prop_map(|text| json!({"type": "thinking", "thinking": text, "signature": "s"})),
        (text, text).prop_map(
            |(name, value)| json!({"type": "tool_use", "id": "1", "name": name, "input": {"a": value, "b": [1, null]}})
        ),
        (text, text).prop_map(|(left, right)| json!({"type": "tool_result", "tool_use_id": "1",
            "content": [{"type": "text", "text": left}, {"type": "text", "text": right}]})),
        text.prop_map(|text| json!({"type": "unheard_of", "payload": {"z": text, "a": 1}})),
    ]
}

fn any_message() -> impl Strategy<Value = Value> {
    let text = "[ -~é\n]{0,60}";
    let role = prop::sample::select(vec!["system", "user", "assistant", "developer", "tool"]);
    prop_oneof![
        (role.clone(), text).prop_map(|(role, content)| json!({"role": role, "content": content})),
        (role, prop::collection::vec(any_part(), 0..4))
            .prop_map(|(role, content)| json!({"role": role, "content": content})),
        (text, text)
            .prop_map(|(name, arguments)| json!({"role": "assistant", "content": null, "reasoning_content": "because",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}]})),
        (text, text)
            .prop_map(|(name, content)| json!({"role": "tool", "name": name, "tool_call_id": "x", "content": content})),
    ]
}

fn any_body() -> impl Strategy<Value = Value> {
    let tools = prop::collection::vec(
        "[a-z]{1,8}".prop_map(|name| {
            json!({"type": "function", "function":
        {"name": name, "parameters": {"type": "object", "properties": {"y": {"type": "integer"}, "x": {}}}}})
        }),
        0..3,
    );
    (prop::collection::vec(any_message(), 1..6), tools)
        .prop_map(|(messages, tools)| json!({"model": "m", "messages": messages, "tools": tools, "n": 2}))
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn spelling_does_not_change_a_prompt(body in any_body()) {
        let other = respell(&body);
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
            prop_assert_eq!(one(endpoint, &body.to_string()), one(endpoint, &other));
        }
    }

    #[test]
    fn a_later_turn_extends_an_earlier_one(body in any_body(), more in prop::collection::vec(any_message(), 1..4)) {
        let earlier = one(Endpoint::ChatCompletions, &body.to_string());
        let mut longer = body;
        longer["messages"].as_array_mut().unwrap().extend(more);
        let later = one(Endpoint::ChatCompletions, &longer.to_string());
        prop_assert!(later.starts_with(&earlier), "turn N+1 must begin with turn N");
        prop_assert!(later.len() > earlier.len());
    }

    #[test]
    fn text_cannot_pass_for_structure(
        left in prop::collection::vec((prop::sample::select(vec!["user", "a", ""]), "[uaser]{0,4}"), 0..4),
        right in prop::collection::vec((prop::sample::select(vec!["user", "a", ""]), "[uaser]{0,4}"), 0..4),
    ) {
        let messages = |list: &[(&str, String)]| -> Vec<Vec<u8>> {
            let list: Vec<_> = list.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
            all(Endpoint::ChatCompletions, &json!({"messages": list}).to_string())
        };
        prop_assert_eq!(messages(&left) == messages(&right), left == right);
    }

    #[test]
    fn blocks_of_equal_prompts_are_equal_and_of_salted_ones_disjoint(body in any_body()) {
        use crate::prefix::{BlockHasher, Chain, prompt_root};
        let chain = |text: &str, adapter: Option<&str>, salt: Option<&str>| -> Chain {
            let request = read(Endpoint::ChatCompletions, text.as_bytes()).unwrap();
            let prompt = &request.prompts[0];
            let root = prompt_root("pool", adapter, salt, prompt.is_tokens());
            let mut hasher = BlockHasher::new(root, 16.try_into().unwrap());
            prompt.canonical(&mut |piece| hasher.update(piece));
            hasher.finish()
        };
        let (text, other) = (body.to_string(), respell(&body));
        let plain = chain(&text, None, None);
        prop_assert_eq!(&plain, &chain(&other, None, None));
        prop_assert_eq!(plain.prompt_bytes, one(Endpoint::ChatCompletions, &text).len() as u64);
        for separate in [chain(&text, None, Some("s")), chain(&text, Some("s"), None)] {
            prop_assert_eq!(separate.blocks.len(), plain.blocks.len());
            prop_assert!(plain.blocks.iter().all(|block| !separate.blocks.contains(block)), "not one block is shared");
        }
        let mut longer = body;
        longer["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "and then? ".repeat(9)}));
        let extended = chain(&longer.to_string(), None, None);
        prop_assert!(extended.blocks.starts_with(&plain.blocks) && extended.blocks.len() > plain.blocks.len());
    }
}

#[test]
fn a_string_and_one_text_part_are_the_same_content() {
    let expected = chat(&json!([{"role": "user", "content": "Hello"}]));
    assert_eq!(expected, b"\xFFmuser\xFEHello");
    for content in [
        json!([{"type": "text", "text": "Hello"}]),
        json!([{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]),
        json!([{"text": "Hello"}]),
        json!(["Hello"]),
        json!({"type": "text", "text": "Hello"}),
        json!([{"type": "text", "text": ""}, {"type": "text", "text": "Hello"}]),
    ] {
        assert_eq!(chat(&json!([{"role": "user", "content": content}])), expected, "{content}");
    }
}

#[test]
fn one_conversation_is_the_same_prompt_at_every_api() {
    let expected = chat(&json!([{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}]));
    let messages = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"system":"Be terse."}"#;
    let blocks = r#"{"system":[{"type":"text","text":"Be terse.","cache_control":{}}],"messages":[{"role":"user","content":"Hi"}]}"#;
    let text = r#"{"input":"Hi","instructions":"Be terse."}"#;
    let items = r#"{"instructions":"Be terse.","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}]}"#;
    assert_eq!(one(Endpoint::Messages, messages), expected);
    assert_eq!(one(Endpoint::Messages, blocks), expected);
    assert_eq!(one(Endpoint::Responses, text), expected);
    assert_eq!(one(Endpoint::Responses, items), expected);
    let tokenize = r#"{"messages":[{"role":"system","content":"Be terse."},{"role":"user","content":"Hi"}]}"#;
    assert_eq!(one(Endpoint::Tokenize, tokenize), expected);
}

#[test]
fn parts_do_not_run_together() {
    let content = |content: Value| chat(&json!([{"role": "user", "content": content}]));
    let part = |text: &str| json!({"type": "text", "text": text});
    assert_ne!(content(json!([part("ab"), part("c")])), content(json!([part("a"), part("bc")])));
    assert_ne!(content(json!([part("ab"), part("c")])), content(json!("abc")));
    let thought = |thinking: &str, text: &str| {
        chat(&json!([{"role": "assistant", "reasoning_content": thinking, "content": text}]))
    };
    assert_ne!(thought("ab", "c"), thought("a", "bc"));
}

#[test]
fn an_image_takes_blocks_of_its_own_and_is_known_by_its_content() {
    let image = |url: &str, detail: &str| {
        chat(&json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, "detail": detail}},
            {"type": "text", "text": "What is it?"}]}]))
    };
    let seen = image("data:image/png;base64,AAAA", "low");
    assert!(seen.len() > MEDIA_BYTES, "an image weighs {MEDIA_BYTES} bytes");
    assert_eq!(seen, image("data:image/png;base64,AAAA", "high"));
    assert_ne!(seen, image("data:image/png;base64,AAAB", "low"));
    let escaped = r#"{"messages":[{"content":[{"image_url":{"url":"data:image\/png;base64,AAAA"},"type":"image_url"},
        {"text":"What is it?","type":"text"}],"role":"user"}]}"#;
    assert_eq!(one(Endpoint::ChatCompletions, escaped), seen);
    let flat = r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"},
        {"type":"input_text","text":"What is it?"}]}]}"#;
    assert_eq!(one(Endpoint::Responses, flat), seen);
    let body =
        json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}).to_string();
    assert!(read(Endpoint::ChatCompletions, body.as_bytes()).unwrap().prompts[0].has_media());
}

#[test]
fn every_kind_of_media_tells_two_contents_apart() {
    for part in [
        r#"{"type":"image_url","image_url":{"url":"@"}}"#,
        r#"{"type":"input_audio","input_audio":{"data":"@","format":"wav"}}"#,
        r#"{"type":"audio_url","audio_url":{"url":"@"}}"#,
        r#"{"type":"video_url","video_url":{"url":"@"}}"#,
        r#"{"type":"file","file":{"file_data":"@","filename":"f.pdf"}}"#,
        r#"{"type":"file","file":{"file_id":"@"}}"#,
        r#"{"type":"input_file","file_id":"@"}"#,
        r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"@"}}"#,
        r#"{"type":"document","source":{"type":"url","url":"@"}}"#,
        r#"{"type":"image_url","image_url":null,"uuid":"@"}"#,
        r#"{"type":"image_embeds","image_embeds":{"x":"@"}}"#,
    ] {
        let prompt = |content: &str| {
            let part = part.replace('@', content);
            one(Endpoint::ChatCompletions, &format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#))
        };
        assert_eq!(prompt("AAAA"), prompt("AAAA"), "{part}");
        assert_ne!(prompt("AAAA"), prompt("AAAB"), "{part}");
        assert!(prompt("AAAA").len() > MEDIA_BYTES, "{part}");
    }
}
