//! `/generate`, SGLang's own form: every event carries the whole text so far.

use super::{Answer, END};
use crate::sim::prompt::TOKEN_BYTES;

pub(super) fn token(answer: &Answer, index: u32) -> String {
    let (tokens, is_last) = (u64::from(index) + 1, answer.is_last(index));
    let end = (tokens as usize * TOKEN_BYTES).min(answer.text.len());
    let body = body(answer, &answer.text[..end], tokens, is_last);
    format!("data: {body}{END}")
}

pub(super) fn plain(answer: &Answer) -> String {
    body(answer, &answer.text, answer.usage.output_tokens, true)
}

fn body(answer: &Answer, text: &str, tokens: u64, is_last: bool) -> String {
    let (id, text, usage) = (&answer.id, super::quote(text), answer.usage);
    let reason = match (is_last, answer.is_cut) {
        (false, _) => String::from("null"),
        (true, true) => format!(r#"{{"type":"length","length":{tokens}}}"#),
        (true, false) => String::from(r#"{"type":"stop","matched":2}"#),
    };
    format!(
        r#"{{"text":{text},"meta_info":{{"id":"{id}","finish_reason":{reason},"prompt_tokens":{},"weight_version":"default","completion_tokens":{tokens},"cached_tokens":{}}}}}"#,
        usage.prompt_tokens, usage.cached_tokens
    )
}
