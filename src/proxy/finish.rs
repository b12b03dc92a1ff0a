//! The end of a request, however it ended: learn from it, count it, write its line.

use pingora_core::{Error, ErrorSource};
use pingora_proxy::Session;

use super::context::RequestContext;
use crate::access_log::Line;
use crate::metrics::{Reason, RequestRecord, TokenRecord};
use crate::request::Usage;
use crate::state::State;
use crate::time;

/// The status in log and metrics for a client that left before its answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Counts and logs a request that has ended.
pub(super) fn record(state: &State, session: &Session, error: Option<&Error>, ctx: &mut RequestContext) {
    let now = time::now();
    let (status, reason) = outcome(session, error, ctx);
    let usage = ctx.answer.reader.as_ref().and_then(|reader| reader.usage());
    learn(ctx, usage);
    let labels = ctx.labels();
    let received = ctx.route.as_ref().map_or(ctx.started, |route| route.received);
    let ttft = ctx.answer.first_token.filter(|_| ctx.answer.is_stream).map(|first| first.since(received).as_secs_f64());
    let duration = now.since(ctx.started).as_secs_f64();
    let record = RequestRecord {
        labels: labels.clone(),
        status,
        reason,
        ttft_seconds: ttft,
        duration_seconds: duration,
        attempts: ctx.attempts,
    };
    state.metrics.request_ended(&record);
    if let Some(tokens) = tokens(ctx, usage) {
        state.metrics.tokens(&labels, tokens);
    }
    state.access_log.load().write(&line(session, ctx, usage, &record));
    if let Some(attempt) = ctx.attempt.take() {
        attempt.in_flight.finish(now);
    }
}

/// Status and reason. What we decided comes first, then what the error says, then what was delivered.
fn outcome(session: &Session, error: Option<&Error>, ctx: &RequestContext) -> (u16, Reason) {
    let written = session.response_written().map(|header| header.status.as_u16()).filter(|&status| status >= 200);
    if let Some(reject) = &ctx.reject {
        return (reject.status().as_u16(), reject.reason());
    }
    match (error, written) {
        (Some(error), _) if *error.esource() == ErrorSource::Downstream => {
            (written.unwrap_or(CLIENT_CLOSED_REQUEST), Reason::ClientGone)
        }
        (Some(_), Some(status)) => (status, Reason::Truncated),
        (Some(_), None) | (None, None) => (500, Reason::Internal),
        (None, Some(status)) if ctx.answer.is_local => (status, Reason::Local),
        (None, Some(status)) => (status, Reason::Served),
    }
}

/// Bytes per token, from what the engine counted.
fn learn(ctx: &RequestContext, usage: Option<Usage>) {
    let (Some(route), Some(usage)) = (&ctx.route, usage) else { return };
    if let Some(sample) = route.plan.sample(usage.prompt_tokens) {
        route.pool().pool.scale().observe(sample);
    }
}

fn tokens(ctx: &RequestContext, usage: Option<Usage>) -> Option<TokenRecord> {
    let (route, attempt) = ctx.route.as_ref().zip(ctx.attempt.as_ref())?;
    if route.plan.prompt_tokens == 0 || !ctx.answer.is_success {
        return None;
    }
    Some(TokenRecord {
        prompt: route.plan.prompt_tokens,
        predicted_cached: attempt.matched_tokens,
        actual: usage.and_then(|usage| Some((usage.prompt_tokens, usage.cached_tokens?))),
    })
}

fn line<'a>(
    session: &'a Session,
    ctx: &'a RequestContext,
    usage: Option<Usage>,
    record: &'a RequestRecord,
) -> Line<'a> {
    let header = session.req_header();
    let route = ctx.route.as_ref();
    let plan = route.map(|route| &route.plan);
    Line {
        time: humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(),
        request_id: &ctx.request_id,
        client: session.client_addr().and_then(|address| address.as_inet().copied()),
        method: header.method.as_str(),
        path: header.uri.path(),
        model: plan.and_then(|plan| plan.model.as_deref()),
        pool: &record.labels.pool,
        backend: &record.labels.backend,
        status: record.status,
        reason: record.reason.as_str(),
        attempts: record.attempts,
        stream: ctx.answer.is_stream,
        request_bytes: ctx.request_bytes,
        response_bytes: session.body_bytes_sent() as u64,
        prompt_tokens: plan.map(|plan| plan.prompt_tokens).filter(|&tokens| tokens > 0),
        predicted_cached_tokens: ctx.attempt.as_ref().map(|attempt| attempt.matched_tokens),
        reported_prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        reported_cached_tokens: usage.and_then(|usage| usage.cached_tokens),
        output_tokens: usage.map(|usage| usage.output_tokens),
        decision_micros: route.map(|route| route.decision_micros),
        ttft_millis: record.ttft_seconds.map(|seconds| seconds * 1e3),
        duration_millis: record.duration_seconds * 1e3,
    }
}
