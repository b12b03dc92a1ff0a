//! `/v1/messages`, Anthropic's form as vLLM speaks it: ids with `chatcmpl-`, input tokens without the cached ones at the
//! end but with them at the start.

use super::{Answer, END};

fn event(name: &str, members: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\"{members}}}{END}")
}

fn stop_reason(answer: &Answer) -> &'static str {
    if answer.is_cut { "max_tokens" } else { "end_turn" }
}

pub(super) fn opening(answer: &Answer, events: &mut Vec<String>) {
    let Answer { id, model, .. } = answer;
    let prompt_tokens = answer.usage.prompt_tokens;
    events.push(event(
        "message_start",
        &format!(
            r#","message":{{"id":"chatcmpl-{id}","type":"message","role":"assistant","content":[],"model":{model},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{prompt_tokens},"output_tokens":0}}}}"#
        ),
    ));
    events.push(event("content_block_start", r#","content_block":{"type":"text","text":""},"index":0"#));
}

pub(super) fn token(answer: &Answer, index: u32) -> String {
    let piece = answer.piece(index);
    event("content_block_delta", &format!(r#","delta":{{"type":"text_delta","text":{piece}}},"index":0"#))
}

pub(super) fn closing(answer: &Answer, events: &mut Vec<String>) {
    events.push(event("content_block_stop", r#","index":0"#));
    let (reason, usage) = (stop_reason(answer), usage(answer));
    events.push(event(
        "message_delta",
        &format!(r#","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{{usage}}}"#),
    ));
    events.push(event("message_stop", ""));
}

fn usage(answer: &Answer) -> String {
    let usage = answer.usage;
    format!(
        r#""input_tokens":{},"output_tokens":{},"cache_creation_input_tokens":{},"cache_read_input_tokens":{}"#,
        usage.prompt_tokens.saturating_sub(usage.cached_tokens + usage.created_cache_tokens),
        usage.output_tokens,
        usage.created_cache_tokens,
        usage.cached_tokens
    )
}

pub(super) fn plain(answer: &Answer) -> String {
    let Answer { id, model, .. } = answer;
    let (text, reason, usage) = (super::quote(&answer.text), stop_reason(answer), usage(answer));
    format!(
        r#"{{"id":"chatcmpl-{id}","type":"message","role":"assistant","content":[{{"type":"text","text":{text}}}],"model":{model},"stop_reason":"{reason}","usage":{{{usage}}}}}"#
    )
}
