//! `/v1/responses`. Its first two events come before any token: a first data event is not a first token here.

use super::{Answer, END};

/// The index of the first token's event: two in the prelude and two in the opening come before it.
const FIRST_TOKEN: u64 = 4;

fn event(name: &str, members: &str, sequence: u64) -> String {
    format!(r#"event: {name}{NEWLINE}data: {{{members},"sequence_number":{sequence},"type":"{name}"}}{END}"#)
}

const NEWLINE: &str = "\n";

pub(super) fn prelude(answer: &Answer, events: &mut Vec<String>) {
    let response = response(answer, "in_progress");
    for (sequence, name) in ["response.created", "response.in_progress"].into_iter().enumerate() {
        events.push(event(name, &format!(r#""response":{response}"#), sequence as u64));
    }
}

pub(super) fn opening(answer: &Answer, events: &mut Vec<String>) {
    let id = &answer.id;
    events.push(event(
        "response.output_item.added",
        &format!(
            r#""item":{{"id":"msg_{id}","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null}},"output_index":0"#
        ),
        2,
    ));
    events.push(event(
        "response.content_part.added",
        &format!(
            r#""content_index":0,"item_id":"msg_{id}","output_index":0,"part":{{"annotations":[],"text":"","type":"output_text","logprobs":[]}}"#
        ),
        3,
    ));
}

pub(super) fn token(answer: &Answer, index: u32) -> String {
    let (id, piece) = (&answer.id, answer.piece(index));
    event(
        "response.output_text.delta",
        &format!(r#""content_index":0,"delta":{piece},"item_id":"msg_{id}","logprobs":[],"output_index":0"#),
        FIRST_TOKEN + u64::from(index),
    )
}

pub(super) fn closing(answer: &Answer, events: &mut Vec<String>) {
    let (id, text, sequence) = (&answer.id, super::quote(&answer.text), FIRST_TOKEN + answer.usage.output_tokens);
    let place = format!(r#""content_index":0,"item_id":"msg_{id}""#);
    events.push(event(
        "response.output_text.done",
        &format!(r#"{place},"logprobs":[],"output_index":0,"text":{text}"#),
        sequence,
    ));
    let part = part(answer);
    events.push(event(
        "response.content_part.done",
        &format!(r#"{place},"output_index":0,"part":{part}"#),
        sequence + 1,
    ));
    let item = item(answer);
    events.push(event("response.output_item.done", &format!(r#""item":{item},"output_index":0"#), sequence + 2));
    let response = plain(answer);
    events.push(event("response.completed", &format!(r#""response":{response}"#), sequence + 3));
}

fn part(answer: &Answer) -> String {
    let text = super::quote(&answer.text);
    format!(r#"{{"annotations":[],"text":{text},"type":"output_text","logprobs":null}}"#)
}

fn item(answer: &Answer) -> String {
    let (id, part) = (&answer.id, part(answer));
    format!(
        r#"{{"id":"msg_{id}","content":[{part}],"role":"assistant","status":"completed","type":"message","phase":null}}"#
    )
}

pub(super) fn plain(answer: &Answer) -> String {
    response(answer, if answer.is_cut { "incomplete" } else { "completed" })
}

fn response(answer: &Answer, status: &str) -> String {
    let Answer { id, created, model, .. } = answer;
    let is_over = status != "in_progress";
    let reason = if status == "incomplete" { r#"{"reason":"max_output_tokens"}"# } else { "null" };
    let output = if is_over { item(answer) } else { String::new() };
    let usage = if is_over { usage(answer) } else { String::from("null") };
    let limit = answer.usage.output_tokens;
    format!(
        concat!(
            r#"{{"id":"resp_{id}","created_at":{created},"incomplete_details":{reason},"instructions":null,"metadata":null,"#,
            r#""model":{model},"object":"response","output":[{output}],"parallel_tool_calls":true,"temperature":0.0,"#,
            r#""tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":{limit},"#,
            r#""max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","#,
            r#""status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null,"#,
            r#""presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"#,
            r#""input_messages":null,"output_messages":null}}"#
        ),
        id = id,
        created = created,
        reason = reason,
        model = model,
        output = output,
        limit = limit,
        status = status,
        usage = usage
    )
}

fn usage(answer: &Answer) -> String {
    let usage = answer.usage;
    format!(
        concat!(
            r#"{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":{written},"#,
            r#""input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":{output},"#,
            r#""output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"#,
            r#""tool_output_tokens_per_turn":[]}},"total_tokens":{total}}}"#
        ),
        input = usage.prompt_tokens,
        cached = usage.cached_tokens,
        written = usage.created_cache_tokens,
        output = usage.output_tokens,
        total = usage.prompt_tokens + usage.output_tokens
    )
}
