//! `/v1/chat/completions`.

use super::{Answer, END, FINGERPRINT};

fn head(answer: &Answer) -> String {
    let Answer { id, created, model, .. } = answer;
    format!(r#"data: {{"id":"chatcmpl-{id}","object":"chat.completion.chunk","created":{created},"model":{model}"#)
}

pub(super) fn opening(answer: &Answer, events: &mut Vec<String>) {
    let head = head(answer);
    events.push(format!(
        r#"{head},"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null}}{END}"#
    ));
}

pub(super) fn token(answer: &Answer, index: u32) -> String {
    let (head, piece) = (head(answer), answer.piece(index));
    let start =
        format!(r#"{head},"choices":[{{"index":0,"delta":{{"content":{piece}}},"logprobs":null,"finish_reason":"#);
    if !answer.is_last(index) {
        return format!(r#"{start}null,"token_ids":null}}]}}{END}"#);
    }
    let reason = answer.finish_reason();
    // The last chunk names the build, whichever chunk that is.
    let build = if answer.includes_usage { String::new() } else { format!(r#","system_fingerprint":"{FINGERPRINT}""#) };
    format!(r#"{start}"{reason}","stop_reason":null,"token_ids":null}}]{build}}}{END}"#)
}

pub(super) fn closing(answer: &Answer, events: &mut Vec<String>) {
    if answer.includes_usage {
        let (head, usage) = (head(answer), usage(answer, ""));
        events.push(format!(r#"{head},"choices":[],"usage":{{{usage}}},"system_fingerprint":"{FINGERPRINT}"}}{END}"#));
    }
}

/// The members of `usage`; `more` goes into the details.
fn usage(answer: &Answer, more: &str) -> String {
    let usage = answer.usage;
    format!(
        r#""prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":{}{more}}}"#,
        usage.prompt_tokens,
        usage.prompt_tokens + usage.output_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.created_cache_tokens
    )
}

pub(super) fn plain(answer: &Answer) -> String {
    let Answer { id, created, model, .. } = answer;
    let (text, reason) = (super::quote(&answer.text), answer.finish_reason());
    let usage = usage(answer, r#","multimodal_tokens":null"#);
    format!(
        concat!(
            r#"{{"id":"chatcmpl-{id}","object":"chat.completion","created":{created},"model":{model},"choices":[{{"index":0,"#,
            r#""message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"#,
            r#""function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"{reason}","stop_reason":null,"#,
            r#""token_ids":null,"routed_experts":null}}],"service_tier":null,"system_fingerprint":"{fingerprint}","#,
            r#""usage":{{{usage},"completion_tokens_details":null}},"prompt_logprobs":null,"prompt_token_ids":null,"#,
            r#""prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
        ),
        id = id,
        created = created,
        model = model,
        text = text,
        reason = reason,
        fingerprint = FINGERPRINT,
        usage = usage
    )
}
