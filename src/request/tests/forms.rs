//! The forms of request, endpoint by endpoint.

use super::*;

fn ids(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

#[test]
fn paths_name_endpoints() {
    for (path, endpoint) in [
        ("/v1/chat/completions", Endpoint::ChatCompletions),
        ("/chat/completions", Endpoint::ChatCompletions),
        ("/completions", Endpoint::Completions),
        ("/embeddings", Endpoint::Embeddings),
        ("/v1/completions", Endpoint::Completions),
        ("/v1/responses", Endpoint::Responses),
        ("/v1/messages", Endpoint::Messages),
        ("/v1/messages/count_tokens", Endpoint::CountTokens),
        ("/v1/embeddings", Endpoint::Embeddings),
        ("/v2/rerank", Endpoint::Rerank),
        ("/rerank", Endpoint::Rerank),
        ("/score", Endpoint::Score),
        ("/generate", Endpoint::Generate),
        ("/tokenize", Endpoint::Tokenize),
        ("/v1/pooling", Endpoint::Pooling),
    ] {
        assert_eq!(Endpoint::of(path), Some(endpoint), "{path}");
    }
    for path in ["/v1/models", "/v1/responses/resp_1", "/v1/chat/completions/", "/", "", "/health"] {
        assert_eq!(Endpoint::of(path), None, "{path}");
    }
    let names: std::collections::HashSet<_> = Endpoint::ALL.iter().map(|endpoint| endpoint.as_str()).collect();
    assert_eq!(names.len(), Endpoint::ALL.len());
}

#[test]
fn settings_are_read_at_any_place() {
    let body = r#"{"stream":true,"messages":[{"role":"user","content":"x"}],"m\u006fdel":"a/b","n":3,"max_tokens":7,
        "max_completion_tokens":9,"stream_options":{"include_usage":true,"x":[1]},"cache_salt":"s\u00e9","lora_path":"l",
        "user":"u","metadata":{"user_id":"v"},"previous_response_id":"resp_1"}"#;
    let request = read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    assert_eq!(request.model.as_deref(), Some("a/b"));
    assert!(request.stream && request.include_usage && request.expects_usage());
    assert_eq!((request.choices, request.max_output_tokens), (3, Some(9)));
    assert_eq!(request.cache_salt.as_deref(), Some("sé"));
    assert_eq!(request.adapter.as_deref(), Some("l"));
    assert_eq!(request.session_key.as_deref(), Some("u"));
    assert_eq!(request.previous_response_id.as_deref(), Some("resp_1"));
    assert!(matches!(request.adapter, Some(Cow::Borrowed(_))), "what has no escape is not copied");
}

#[test]
fn the_session_key_is_the_most_telling_one() {
    let key = |endpoint, body: &'static str| read(endpoint, body.as_bytes()).unwrap().session_key;
    let both = r#"{"user":"u","prompt_cache_key":"k"}"#;
    assert_eq!(key(Endpoint::ChatCompletions, both).as_deref(), Some("k"));
    let metadata = r#"{"metadata":{"user_id":"v"}}"#;
    assert_eq!(key(Endpoint::Messages, metadata).as_deref(), Some("v"));
    assert_eq!(key(Endpoint::ChatCompletions, metadata), None, "only Anthropic gives this field that meaning");
    assert_eq!(key(Endpoint::ChatCompletions, r#"{"user":""}"#), None);
}

#[test]
fn settings_of_other_types_are_as_absent() {
    let body = r#"{"model":5,"stream":"yes","n":"two","max_tokens":1.5,"cache_salt":null,"stream_options":[true],
        "lora_path":["a","b"],"user":{},"metadata":"x","sampling_params":3}"#;
    for endpoint in Endpoint::ALL {
        let request = read(endpoint, body.as_bytes()).unwrap();
        assert!(request.model.is_none() && !request.stream && !request.include_usage && request.prompts.is_empty());
        assert_eq!((request.choices, request.max_output_tokens), (1, None));
        assert!(request.cache_salt.is_none() && request.adapter.is_none() && request.session_key.is_none());
    }
}

#[test]
fn of_equal_keys_the_last_counts() {
    let body = r#"{"model":"a","messages":[{"role":"user","content":"x"}],"messages":[{"role":"user","role":"tool",
        "content":[{"type":"text","text":"a"}],"content":"z"}],"model":"b","stream":true,"stream":false}"#;
    let request = read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    assert_eq!((request.model.as_deref(), request.stream), (Some("b"), false));
    assert_eq!(bytes_of(&request.prompts[0]), chat(&json!([{"role": "tool", "content": "z"}])));
}

#[test]
fn plain_prompts_come_alone_in_lists_and_as_ids() {
    let prompts = |prompt: &str| all(Endpoint::Completions, &format!(r#"{{"prompt":{prompt}}}"#));
    assert_eq!(prompts(r#""a\nb""#), [br"a\nb"], "as the body has it");
    assert_eq!(prompts(r#""\u0061\u000A\/b""#), [br"a\n/b"], "in the one spelling");
    assert_eq!(prompts(r#"["a","b"]"#), [b"a", b"b"]);
    assert_eq!(prompts("[1, 70000]"), [ids(&[1, 70_000])]);
    assert_eq!(prompts("[[1,2],[3]]"), [ids(&[1, 2]), ids(&[3])]);
    for nothing in ["null", "[]", "[[]]", "{}", "[1,-2]", "[1.5]", "[4294967296]", "[1,\"\\u0000\",[null]]"] {
        let found = prompts(nothing);
        assert!(found.iter().all(|prompt| prompt == b"\0" || prompt == &ids(&[1])), "{nothing} gave {found:?}");
    }
    assert_eq!(all(Endpoint::Embeddings, r#"{"input":["a","b"]}"#), [b"a", b"b"]);
    assert_eq!(all(Endpoint::Embeddings, r#"{"input":[5]}"#), [ids(&[5])]);
    assert_eq!(all(Endpoint::Tokenize, r#"{"prompt":"a"}"#), [b"a"]);
    assert_eq!(all(Endpoint::Pooling, r#"{"input":"a"}"#), [b"a"]);
}

#[test]
fn token_ids_say_that_they_are() {
    let many: Vec<u32> = (0..1000).collect();
    let body = json!({"prompt": many}).to_string();
    let request = read(Endpoint::Completions, body.as_bytes()).unwrap();
    let prompt = &request.prompts[0];
    assert!(prompt.is_tokens());
    assert_eq!((prompt.token_count(), prompt.token_ids()), (Some(1000), Some(many.as_slice())));
    assert_eq!(bytes_of(prompt), ids(&many));
    assert_eq!(read(Endpoint::Completions, br#"{"prompt":"a"}"#).unwrap().prompts[0].token_count(), None);
}

#[test]
fn a_batch_is_kept_up_to_its_bound_and_counted_beyond() {
    let body = json!({"prompt": vec!["abcdef"; MAX_PROMPTS + 3]}).to_string();
    let request = read(Endpoint::Completions, body.as_bytes()).unwrap();
    assert_eq!((request.prompts.len(), request.more_prompts, request.more_prompt_bytes), (MAX_PROMPTS, 3, 24));
}

#[test]
fn a_conversation_is_kept_up_to_its_bound_and_counted_beyond() {
    let message = r#"{"role":"user","content":"x"}"#;
    let body = format!(r#"{{"messages":[{}]}}"#, vec![message; MAX_SEGMENTS].join(","));
    let request = read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    let prompt = &request.prompts[0];
    assert_eq!(bytes_of(prompt).len(), MAX_SEGMENTS / 2 * "\u{0}muserxx".len());
    assert_eq!(prompt.more_bytes(), (MAX_SEGMENTS / 2 * message.len()) as u64);
}

#[test]
fn sglang_generate_takes_text_or_ids_and_media() {
    let generate = |body: &'static str| all(Endpoint::Generate, body);
    assert_eq!(generate(r#"{"text":"a","input_ids":null}"#), [b"a"]);
    assert_eq!(generate(r#"{"text":["a","b"]}"#), [b"a", b"b"]);
    assert_eq!(generate(r#"{"text":null,"input_ids":[[1],[2]]}"#), [ids(&[1]), ids(&[2])]);
    let seen = generate(r#"{"text":"a","image_data":"AAAA"}"#);
    assert_eq!(seen[0].len(), 1 + MEDIA_BYTES + 1, "an image stands before the text");
    assert_ne!(seen, generate(r#"{"text":"a","image_data":["AAAB"]}"#));
    assert!(generate(r#"{"input_ids":[1],"image_data":"AAAA"}"#).is_empty(), "ids have no place for an image");
    let request =
        read(Endpoint::Generate, br#"{"sampling_params":{"max_new_tokens":5,"n":2},"lora_path":"l","stream":true}"#);
    let request = request.unwrap();
    assert_eq!((request.max_output_tokens, request.choices, request.stream), (Some(5), 2, true));
}

#[test]
fn pairs_make_a_prompt_each() {
    let query = |text: &str| [b"\xFFq\xFE".as_slice(), text.as_bytes(), b"\xFFd\xFE"].concat();
    let rerank = all(Endpoint::Rerank, r#"{"documents":["x","y"],"query":"q"}"#);
    assert_eq!(rerank, [[query("q"), b"x".to_vec()].concat(), [query("q"), b"y".to_vec()].concat()]);
    assert_eq!(all(Endpoint::Score, r#"{"text_1":"q","text_2":["x","y"]}"#), rerank);
    assert_eq!(all(Endpoint::Score, r#"{"text_1":["q","q"],"text_2":["x","y"]}"#), rerank);
    assert_eq!(all(Endpoint::Score, r#"{"queries":"q","documents":["x","y"]}"#), rerank);
    assert!(all(Endpoint::Rerank, r#"{"query":"q"}"#).is_empty());
    assert_eq!(all(Endpoint::Rerank, r#"{"query":"q","documents":[{"text":"x"},{"text":"y"}]}"#).len(), 2);
}

#[test]
fn tools_come_first_and_in_any_spelling() {
    let prompt = |tools: &str| {
        one(Endpoint::ChatCompletions, &format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":{tools}}}"#))
    };
    let tools = r#"[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":[true,null]}}}]"#;
    let seen = prompt(tools);
    assert!(seen.starts_with(b"\xFFT\xFE[{"), "{}", String::from_utf8_lossy(&seen));
    assert!(seen.ends_with(b"\xFFmuser\xFEx"));
    let other = r#"[ {"function": {"parameters":{"b":[true, null],"a":2,"a":1},"n\u0061me":"f"}, "type":"function",
        "cache_control":{"type":"ephemeral"}} ]"#;
    assert_eq!(prompt(other), seen);
    let parameter =
        r#"[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":[true,null],"cache_control":1}}}]"#;
    assert_ne!(prompt(parameter), seen, "deeper, cache_control is the tool's own");
    for nothing in ["null", "[]", "[ ]", "{}"] {
        assert_eq!(prompt(nothing), chat(&json!([{"role": "user", "content": "x"}])), "{nothing}");
    }
}

#[test]
fn what_the_template_gets_counts_and_sampling_does_not() {
    let prompt = |more: &str| {
        one(Endpoint::ChatCompletions, &format!(r#"{{"messages":[{{"role":"user","content":"x"}}]{more}}}"#))
    };
    let plain = prompt("");
    for more in [
        r#","temperature":0.5,"tool_choice":"auto","response_format":{"type":"json_object"},"seed":1,"stop":["a"]"#,
        r#","chat_template_kwargs":{},"documents":null"#,
    ] {
        assert_eq!(prompt(more), plain, "{more}");
    }
    let mut seen = vec![plain];
    for more in [
        r#","chat_template_kwargs":{"enable_thinking":false}"#,
        r#","documents":[{"text":"a"}]"#,
        r#","functions":[{"name":"f"}]"#,
        r#","tools":[{"name":"f"}]"#,
        r#","chat_template":"{{x}}""#,
    ] {
        assert!(!seen.contains(&prompt(more)), "{more}");
        seen.push(prompt(more));
    }
}

#[test]
fn calls_and_results_are_told_from_text() {
    let call = |id: &str, arguments: &str| {
        chat(&json!([{"role": "assistant", "content": null,
            "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]}]))
    };
    assert_eq!(call("1", "{}"), b"\xFFmassistant\xFE\xFFcf\xFE{}");
    assert_eq!(call("1", "{}"), call("2", "{}"), "ids of calls do not reach most templates");
    assert_ne!(call("1", "{}"), call("1", "{ }"), "arguments are text that the model wrote");

    let messages = |content: Value| {
        one(Endpoint::Messages, &json!({"messages": [{"role": "user", "content": content}]}).to_string())
    };
    let result = |content: Value| messages(json!([{"type": "tool_result", "tool_use_id": "1", "content": content}]));
    assert_eq!(result(json!("42")), b"\xFFmuser\xFE\xFFr\xFE42");
    assert_eq!(result(json!("42")), result(json!([{"type": "text", "text": "42"}])));
    assert_ne!(result(json!("42")), messages(json!("42")));
    let image = json!([{"type": "image", "source": {"type": "base64", "data": "AAAA"}}]);
    assert!(result(image).len() > MEDIA_BYTES);
    let use_ = |input: Value| messages(json!([{"type": "tool_use", "id": "1", "name": "f", "input": input}]));
    assert_ne!(use_(json!({"a": 1})), use_(json!({"a": 2})));
}

#[test]
fn responses_items_are_read_by_type() {
    let item = |item: Value| one(Endpoint::Responses, &json!({ "input": [item] }).to_string());
    assert_eq!(item(json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"})), b"\xFFcf\xFE{}");
    assert_eq!(item(json!({"type": "function_call_output", "output": "42", "call_id": "c"})), b"\xFFr\xFE42");
    assert_eq!(
        item(json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]})),
        b"\xFFt\xFEhm"
    );
    assert_ne!(item(json!({"type": "item_reference", "id": "a"})), item(json!({"type": "item_reference", "id": "b"})));
    assert_eq!(item(json!({"role": "user", "content": "Hi"})), one(Endpoint::Responses, r#"{"input":"Hi"}"#));
}
