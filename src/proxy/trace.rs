//! The block trace's lines of a request: when it came, how long it was, and salted ids of its blocks.
//!
//! Requests that a backend served to their end are recorded, one line for each prompt, as engines take the prompts of a
//! batch for requests of their own. Of prompts that are counted by length only there is none, nor of requests that merely
//! count tokens.

use super::context::RequestContext;
use super::plan::Plan;
use crate::metrics::Reason;
use crate::request::{Endpoint, ResponseReader, Usage};
use crate::time::Moment;
use crate::trace::{MAX_INPUT_TOKENS, Recorder, TraceLine};

/// Records a request that has ended, if it is one of those.
pub(super) fn record(recorder: &Recorder, ctx: &RequestContext, usage: Option<Usage>, reason: Reason) {
    if !recorder.is_on() || reason != Reason::Served || !ctx.answer.is_success {
        return;
    }
    let Some((route, reader)) = ctx.route.as_ref().zip(ctx.answer.reader.as_ref()) else { return };
    if reader.has_error() || !makes_work(&route.plan) {
        return;
    }
    let timestamp = u64::try_from(ctx.started.since(Moment::ORIGIN).as_millis()).unwrap_or(u64::MAX);
    // A batch's counts are sums. Its prompts take equal parts of the answer.
    let (count, prompts) = (route.plan.prompt_count(), route.plan.prompts());
    let output_length = clamped(output_tokens(usage, reader) / count.max(1), u32::MAX);
    let reported = usage.filter(|_| count == 1).map(|usage| usage.prompt_tokens);
    for prompt in prompts {
        let input_length = clamped(reported.unwrap_or(prompt.tokens), MAX_INPUT_TOKENS);
        let hash_ids = recorder.salt().ids(&prompt.chain, prompt.block_tokens, input_length);
        recorder.write(TraceLine { timestamp, input_length, output_length, hash_ids });
    }
}

/// Whether an engine computes its prompt.
pub(super) fn makes_work(plan: &Plan) -> bool {
    !matches!(plan.endpoint, None | Some(Endpoint::CountTokens | Endpoint::Tokenize))
}

/// As reported; else the events of a stream, as engines send one for each token, give or take the first and the last.
pub(super) fn output_tokens(usage: Option<Usage>, reader: &ResponseReader) -> u64 {
    usage.map_or_else(|| reader.events(), |usage| usage.output_tokens)
}

/// A line's lengths are at least 1.
fn clamped(tokens: u64, most: u32) -> u32 {
    u32::try_from(tokens).unwrap_or(most).clamp(1, most)
}
