//! `/v1/completions`.

use super::{Answer, END, FINGERPRINT};

fn head(answer: &Answer) -> String {
    let Answer { id, created, model, .. } = answer;
    format!(r#"data: {{"id":"cmpl-{id}","object":"text_completion","created":{created},"model":{model}"#)
}

pub(super) fn token(answer: &Answer, index: u32) -> String {
    let (head, piece) = (head(answer), answer.piece(index));
    let reason = if answer.is_last(index) { super::quote(answer.finish_reason()) } else { String::from("null") };
    format!(
        r#"{head},"choices":[{{"index":0,"text":{piece},"logprobs":null,"finish_reason":{reason},"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}]}}{END}"#
    )
}

pub(super) fn closing(answer: &Answer, events: &mut Vec<String>) {
    if answer.includes_usage {
        let (head, usage) = (head(answer), usage(answer, ""));
        events.push(format!(r#"{head},"choices":[],"usage":{{{usage}}},"system_fingerprint":"{FINGERPRINT}"}}{END}"#));
    }
}

fn usage(answer: &Answer, more: &str) -> String {
    let usage = answer.usage;
    format!(
        r#""prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}{more}}}"#,
        usage.prompt_tokens,
        usage.prompt_tokens + usage.output_tokens,
        usage.output_tokens,
        usage.cached_tokens
    )
}

pub(super) fn plain(answer: &Answer) -> String {
    let Answer { id, created, model, .. } = answer;
    let (text, reason) = (super::quote(&answer.text), answer.finish_reason());
    let usage = usage(answer, r#","created_cache_tokens":null,"multimodal_tokens":null"#);
    format!(
        concat!(
            r#"{{"id":"cmpl-{id}","object":"text_completion","created":{created},"model":{model},"choices":[{{"index":0,"#,
            r#""text":{text},"logprobs":null,"finish_reason":"{reason}","stop_reason":null,"token_ids":null,"#,
            r#""prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}],"service_tier":null,"#,
            r#""system_fingerprint":"{fingerprint}","usage":{{{usage},"completion_tokens_details":null}},"#,
            r#""kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#
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
