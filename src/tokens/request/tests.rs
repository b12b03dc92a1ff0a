//! What templates get of requests, and which requests are left alone.

use std::time::SystemTime;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::config;
use crate::tokens::cache::TextCache;
use crate::tokens::template::ContentFormat;
use crate::tokens::testing::with_template;

/// Reads a body twice, the second time with what the first left in the cache.
fn read(endpoint: Endpoint, body: &[u8]) -> Result<Plan, NotTokenized> {
    let cache = TextCache::new(1 << 20);
    let (plan, again) = (super::read(endpoint, body, &cache), super::read(endpoint, body, &cache));
    assert_eq!(format!("{plan:?}"), format!("{again:?}"));
    again
}

fn chat(endpoint: Endpoint, body: &Value) -> Chat {
    let mut plan = read(endpoint, body.to_string().as_bytes()).unwrap();
    match plan.prompts.pop() {
        Some(PlannedPrompt::Chat(chat)) => *chat,
        other => panic!("no chat: {other:?}"),
    }
}

/// The messages as a template for plain texts gets them.
fn messages(endpoint: Endpoint, body: &Value) -> Value {
    let messages = chat(endpoint, body).messages(ContentFormat::String, false, false).unwrap();
    serde_json::to_value(minijinja::Value::from(messages)).unwrap()
}

fn refused(endpoint: Endpoint, body: Value) -> NotTokenized {
    read(endpoint, body.to_string().as_bytes()).map(|plan| panic!("it is read: {plan:?}")).unwrap_err()
}

/// A conversation of each kind of message, with text enough to be kept.
fn long_messages() -> Vec<Value> {
    let text = "thing ".repeat(60);
    let arguments = json!({"a": text}).to_string();
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
    vec![
        json!({"role": "system", "content": text}),
        json!({"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": "more"}]}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c", "content": text}),
        json!({"role": "assistant", "content": text, "reasoning": text}),
        json!({"role": "user", "content": format!("{text}\u{e9}\"\n")}),
    ]
}

#[test]
fn a_conversation_that_goes_on_is_read_as_if_it_were_new() {
    let (kept, none) = (TextCache::new(1 << 20), TextCache::new(0));
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "thing ".repeat(60)}}]);
    let messages = long_messages();
    for turn in 1..=messages.len() {
        let body = json!({"messages": messages[..turn], "tools": tools}).to_string();
        let read = |cache| {
            let mut plan = super::read(Endpoint::ChatCompletions, body.as_bytes(), cache).unwrap();
            let Some(PlannedPrompt::Chat(chat)) = plan.prompts.pop() else { panic!("a chat") };
            let formed = [ContentFormat::String, ContentFormat::Parts].map(|format| chat.messages(format, true, false));
            format!("{chat:?} {formed:?}")
        };
        assert_eq!(read(&kept), read(&none));
        let last = messages[turn - 1].to_string();
        assert_eq!(kept.message(last.as_bytes()).map(|(_, len)| len), Some(last.len()), "it is kept");
    }
    assert!(kept.message(tools[0].to_string().as_bytes()).is_some(), "and so are tools");
    assert_eq!(none.bytes(), 0);
}

#[test]
fn what_stands_behind_a_kept_message_is_looked_at_as_ever() {
    let message = long_messages()[0].to_string();
    let cache = TextCache::new(1 << 20);
    let read = |behind: &str| {
        let body = format!(r#"{{"messages": [{message}{behind}"#);
        super::read(Endpoint::ChatCompletions, body.as_bytes(), &cache).map(drop)
    };
    assert_eq!(read("]}"), Ok(()));
    for behind in ["", "x]}", "]", "}]}", ",]}", "]}}", "]} x"] {
        assert_eq!(read(behind), Err(NotTokenized::Form("JSON")), "{behind}");
    }
}

#[test]
fn parts_are_one_text_or_a_list_as_the_template_wants() {
    let body = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""},
        {"type": "text", "text": "b"}]}, {"role": "tool", "content": [{"type": "text", "text": "c"}], "tool_call_id": "1"},
        {"role": "assistant", "content": null}]});
    let expected = json!([{"role": "user", "content": "a\nb"}, {"role": "tool", "content": "c", "tool_call_id": "1"},
        {"role": "assistant", "content": ""}]);
    assert_eq!(messages(Endpoint::ChatCompletions, &body), expected);
    let parts = chat(Endpoint::ChatCompletions, &body).messages(ContentFormat::Parts, false, false).unwrap();
    let parts = serde_json::to_value(minijinja::Value::from(parts)).unwrap();
    assert_eq!(parts[0]["content"].as_array().unwrap().len(), 3);
    assert_eq!((&parts[1]["content"], &parts[2]["content"]), (&json!("c"), &json!([])));
}

#[test]
fn calls_of_tools_have_objects_as_arguments() {
    let call = |arguments: Value| json!({"type": "function", "id": "1", "x": 1, "function": {"name": "f", "arguments": arguments}});
    let calls = json!([call(json!("{\"b\": 1, \"a\": 2}")), call(json!("")), call(json!("[1]")), call(json!(null))]);
    let body = json!({"messages": [{"role": "assistant", "tool_calls": calls, "reasoning_content": "hm"}]});
    let ours = &messages(Endpoint::ChatCompletions, &body)[0];
    let arguments: Vec<&Value> =
        ours["tool_calls"].as_array().unwrap().iter().map(|call| &call["function"]["arguments"]).collect();
    assert_eq!(arguments, [&json!({"b": 1, "a": 2}), &json!({}), &json!({}), &json!({})]);
    assert_eq!(ours["tool_calls"][0].as_object().unwrap().len(), 3, "members that the engine does not know are gone");
    assert_eq!((&ours["reasoning"], &ours["reasoning_content"]), (&json!("hm"), &json!("hm")));
}

#[test]
fn a_developer_is_the_system_where_the_template_knows_none() {
    let body = json!({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "developer", "content": "c"}]});
    let expected = json!([{"role": "system", "content": "a\n\nc"}, {"role": "user", "content": "b"}]);
    assert_eq!(messages(Endpoint::ChatCompletions, &body), expected);
    let known = chat(Endpoint::ChatCompletions, &body).messages(ContentFormat::String, true, false).unwrap();
    assert_eq!(known.len(), 3);
}

#[test]
fn anthropics_messages_become_those_of_a_chat() {
    let body = json!({"system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be"},
            {"type": "text", "text": " brief"}],
        "messages": [{"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "w", "input": {"city": "Oslo"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "and?"}]}]});
    let expected = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look.", "reasoning": "hm", "reasoning_content": "hm", "thinking": "hm", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "w", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "t1"}, {"role": "user", "content": "and?"}]);
    assert_eq!(messages(Endpoint::Messages, &body), expected);
}

#[test]
fn anthropics_system_messages_within_are_merged_if_the_template_needs_it() {
    let body =
        json!({"system": "a", "messages": [{"role": "user", "content": "b"}, {"role": "system", "content": "c"}]});
    let merged = chat(Endpoint::Messages, &body).messages(ContentFormat::String, false, true).unwrap();
    let merged = serde_json::to_value(minijinja::Value::from(merged)).unwrap();
    assert_eq!(merged, json!([{"role": "system", "content": "ac"}, {"role": "user", "content": "b"}]));
    assert_eq!(messages(Endpoint::Messages, &body).as_array().unwrap().len(), 3);
}

#[test]
fn items_of_responses_become_messages_of_a_chat() {
    let body = json!({"instructions": "be brief", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "w", "arguments": "{\"city\": \"Oslo\"}"},
        {"type": "function_call", "call_id": "c2", "name": "w", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"}]});
    let call = |id: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": "w", "arguments": arguments}});
    let expected = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look.", "reasoning": "hm", "reasoning_content": "hm", "thinking": "hm",
            "tool_calls": [call("c1", json!({"city": "Oslo"})), call("c2", json!({}))]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"}]);
    assert_eq!(messages(Endpoint::Responses, &body), expected);
    assert!(chat(Endpoint::Responses, &body).add_special_tokens, "other than in chat completions");
}

#[test]
fn tools_have_the_members_of_the_engines_type() {
    let body = json!({"messages": [], "tools": [{"type": "function", "function": {"parameters": {"type": "object"}, "name": "f"}}]});
    let chat_tools = serde_json::to_value(chat(Endpoint::ChatCompletions, &body).variable("tools").unwrap()).unwrap();
    let function = json!({"name": "f", "description": null, "parameters": {"type": "object"}});
    assert_eq!(chat_tools, json!([{"type": "function", "function": function}]));
    let body = json!({"messages": [], "tools": [{"name": "f", "input_schema": {}}]});
    let anthropic_tools = serde_json::to_value(chat(Endpoint::Messages, &body).variable("tools").unwrap()).unwrap();
    assert_eq!(anthropic_tools, chat_tools);
    let body = json!({"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}]});
    let tools = serde_json::to_value(chat(Endpoint::Responses, &body).variable("tools").unwrap()).unwrap();
    assert_eq!(tools[0]["function"]["strict"], json!(true));
}

#[test]
fn batches_are_read_up_to_a_bound() {
    let ids = |body: Value| read(Endpoint::Completions, body.to_string().as_bytes()).unwrap();
    let many: Vec<String> = (0..70).map(|number| number.to_string()).collect();
    let plan = ids(json!({"prompt": many}));
    assert_eq!((plan.prompts.len(), plan.more_prompts), (64, 6));
    assert!(matches!(&ids(json!({"prompt": [1, 2]})).prompts[..], [PlannedPrompt::Ids(ids)] if *ids == [1, 2]));
    assert_eq!(ids(json!({"prompt": [[1], [2]]})).prompts.len(), 2);
    let plan = read(Endpoint::Generate, br#"{"input_ids": [[1, 2], [3]]}"#).unwrap();
    assert_eq!(plan.prompts.len(), 2);
}

#[test]
fn what_cannot_be_known_is_left_alone() {
    let image = json!([{"type": "image_url", "image_url": {"url": "u"}}]);
    let message = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let with = |name: &str, value: Value| {
        let mut body = message(json!("a"));
        body[name] = value;
        body
    };
    let chat = Endpoint::ChatCompletions;
    assert_eq!(refused(chat, with("chat_template", json!("x"))), NotTokenized::RequestTemplate);
    assert_eq!(refused(chat, with("truncate_prompt_tokens", json!(1))), NotTokenized::Truncation);
    assert_eq!(
        refused(chat, with("chat_template_kwargs", json!({"tokenize": true}))),
        NotTokenized::Form("chat_template_kwargs")
    );
    assert_eq!(
        refused(chat, with("kv_transfer_params", json!({"prompt_token_ids": [1]}))),
        NotTokenized::Form("kv_transfer_params")
    );
    assert_eq!(refused(chat, with("continue_final_message", json!(true))), NotTokenized::Refused);
    assert_eq!(refused(chat, json!({"messages": "a"})), NotTokenized::Form("messages"));
    assert_eq!(
        refused(Endpoint::Responses, json!({"input": "a", "previous_response_id": "r"})),
        NotTokenized::Continued
    );
    assert_eq!(refused(Endpoint::Responses, json!({"input": "a", "truncation": "auto"})), NotTokenized::Truncation);
    assert_eq!(
        refused(Endpoint::Messages, json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
        NotTokenized::Media
    );
    assert_eq!(refused(Endpoint::Completions, json!({"prompt": "a", "suffix": "b"})), NotTokenized::Form("suffix"));
    assert_eq!(refused(Endpoint::Completions, json!({"prompt": []})), NotTokenized::Form("prompt"));
    assert_eq!(refused(Endpoint::Completions, json!({"prompt": [1, -1]})), NotTokenized::Form("prompt"));
    assert_eq!(refused(Endpoint::Rerank, json!({"query": "a"})), NotTokenized::Endpoint);
    assert_eq!(refused(Endpoint::Generate, json!({"text": "a", "image_data": "u"})), NotTokenized::Media);
    // What depends on the template's form of content is seen when the messages are made.
    let parts = read(chat, message(image).to_string().as_bytes()).unwrap();
    let [PlannedPrompt::Chat(parts)] = &parts.prompts[..] else { panic!("no chat") };
    assert_eq!(parts.messages(ContentFormat::String, false, false).unwrap_err(), NotTokenized::Media);
}

#[test]
fn numbers_that_would_be_printed_otherwise_are_left_alone() {
    let body =
        br#"{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"n": 123456789012345678901234}}"#;
    assert_eq!(read(Endpoint::ChatCompletions, body).unwrap_err(), NotTokenized::Form("JSON"));
}

/// Values like those in requests, and others in their places.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        any::<i32>().prop_map(|number| json!(number)),
        Just(json!(0.5)),
        prop::sample::select(vec![
            "user",
            "system",
            "assistant",
            "tool",
            "text",
            "function",
            "tool_use",
            "tool_result",
            "a",
            "é",
            "{}"
        ])
        .prop_map(|text| json!(text)),
    ];
    let name = prop::sample::select(vec![
        "messages",
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "arguments",
        "name",
        "id",
        "input",
        "prompt",
        "system",
        "tools",
        "parameters",
        "chat_template_kwargs",
        "documents",
        "call_id",
        "output",
        "reasoning",
        "status",
        "input_ids",
        "add_generation_prompt",
        "continue_final_message",
    ]);
    leaf.prop_recursive(5, 48, 6, move |inner| {
        let members = prop::collection::vec((name.clone(), inner.clone()), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::Array),
            members.prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

#[test]
fn no_body_panics() {
    let tokenizer = with_template(
        "{% for m in messages %}<|user|>{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}",
    );
    let mut runner = proptest::test_runner::TestRunner::new(config(1_000));
    let bodies = prop_oneof![
        4 => prop::collection::vec((prop::sample::select(vec!["messages", "input", "prompt", "system", "tools", "text"]), value()), 0..4)
            .prop_map(|members| {
                let members: serde_json::Map<String, Value> =
                    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                Value::Object(members).to_string().into_bytes()
            }),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ];
    let result = runner.run(&bodies, |body| {
        for endpoint in Endpoint::ALL {
            let _ = tokenizer.prompts(endpoint, &body, SystemTime::UNIX_EPOCH);
        }
        Ok(())
    });
    result.unwrap();
}
