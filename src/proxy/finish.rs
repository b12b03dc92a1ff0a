//! The end of a request, however it ended: learn from it, count it, write its line.

use http::StatusCode;
use pingora_core::{Error, ErrorSource};
use pingora_proxy::Session;

use super::context::RequestContext;
use super::{callers, trace};
use crate::access_log::Line;
use crate::metrics::{BackendLabels, Reason, RequestRecord, TokenRecord};
use crate::pool::TimeLimit;
use crate::request::Usage;
use crate::state::State;
use crate::time;

/// The status in log and metrics for a client that left before its answer.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Longest model name that is logged. Clients choose it, and must not fill the log with it.
const MAX_MODEL_BYTES: usize = 128;

/// Longest method that is logged; HTTP lets clients make up that as well.
const MAX_METHOD_BYTES: usize = 32;

/// The start of a text that a client made up, cut at a character.
pub(super) fn shortened(text: &str, most_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(most_bytes)]
}

/// Counts and logs a request that has ended.
pub(super) fn record(state: &State, session: &Session, error: Option<&Error>, ctx: &mut RequestContext) {
    let (status, reason) = outcome(session, error, ctx);
    conclude(state, ctx, status, reason, session.body_bytes_sent() as u64);
}

/// Counts and logs a request that the end of the process, or a fault of this program, cut off.
pub(super) fn record_cut(state: &State, ctx: &mut RequestContext) {
    let status = ctx.answer.status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE.as_u16());
    conclude(state, ctx, status, Reason::Cut, 0);
}

fn conclude(state: &State, ctx: &mut RequestContext, status: u16, reason: Reason, response_bytes: u64) {
    let now = time::now();
    ctx.is_recorded = true;
    let usage = ctx.answer.reader.as_ref().and_then(|reader| reader.usage());
    learn(ctx, usage);
    let labels = ctx.labels();
    judge(state, ctx, usage, &labels);
    let received = ctx.route.as_ref().map_or(ctx.started, |route| route.received);
    let ttft = ctx.answer.first_token.filter(|_| ctx.answer.is_stream).map(|first| first.since(received).as_secs_f64());
    let record = RequestRecord {
        labels: labels.clone(),
        status,
        reason,
        ttft_seconds: ttft,
        duration_seconds: now.since(ctx.started).as_secs_f64(),
        attempts: ctx.attempts,
    };
    state.metrics.request_ended(&record);
    if let Some(tokens) = tokens(ctx, usage) {
        state.metrics.tokens(&labels, tokens);
    }
    state.access_log.load().write(|| line(ctx, usage, &record, response_bytes));
    callers::settle(ctx, usage, now);
    trace::record(&state.recorder.load(), ctx, usage, reason);
    if let Some(attempt) = ctx.attempt.take() {
        attempt.in_flight.finish(now);
    }
    ctx.shadow = None;
}

/// Status and reason. What we decided comes first, then what the error says, then what was delivered.
fn outcome(session: &Session, error: Option<&Error>, ctx: &RequestContext) -> (u16, Reason) {
    let written = session.response_written().map(|header| header.status.as_u16()).filter(|&status| status >= 200);
    if let Some(reject) = &ctx.reject {
        // Where a stream had been opened its status was sent by then.
        return (written.unwrap_or(reject.status().as_u16()), reject.reason());
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

/// Trust in what was believed of the backend's cache, by the cached tokens that it reports.
fn judge(state: &State, ctx: &RequestContext, usage: Option<Usage>, labels: &BackendLabels) {
    let (Some(route), Some(attempt), Some(usage)) = (&ctx.route, &ctx.attempt, usage) else { return };
    if !ctx.answer.is_success {
        return;
    }
    let (pool, meter) = (route.pool(), attempt.backend.trust());
    match usage.cached_tokens {
        Some(reported) => state.trust_changed(labels, &meter.judge(attempt.prediction, reported)),
        None => meter.predicted(attempt.prediction),
    }
    let cached = usage.cached_tokens.unwrap_or(attempt.matched_tokens);
    let has_new_blocks = usage.prompt_tokens.saturating_sub(cached) >= u64::from(pool.block_tokens.get());
    let feeds = &pool.backends[attempt.index].feeds;
    if has_new_blocks && !feeds.is_empty() {
        let messages = feeds.iter().map(|view| view.feed.messages()).sum();
        let change = meter.answered(messages, pool.silent_after.get());
        state.trust_changed(labels, change.as_slice());
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

fn line<'a>(ctx: &'a RequestContext, usage: Option<Usage>, record: &'a RequestRecord, response_bytes: u64) -> Line<'a> {
    let route = ctx.route.as_ref();
    let plan = route.map(|route| &route.plan);
    Line {
        time: humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(),
        request_id: &ctx.request_id,
        client: ctx.seen.client,
        client_certificate: ctx.seen.client_certificate.as_deref(),
        caller: ctx.caller.as_ref().map(|caller| caller.label()),
        method: shortened(ctx.seen.method.as_str(), MAX_METHOD_BYTES),
        path: &ctx.seen.path,
        model: plan.and_then(|plan| plan.model.as_deref()).map(|model| shortened(model, MAX_MODEL_BYTES)),
        pool: &record.labels.pool,
        backend: &record.labels.backend,
        status: record.status,
        reason: record.reason.as_str(),
        limit: ctx.answer.limit.map(TimeLimit::name),
        attempts: record.attempts,
        stream: ctx.answer.is_stream,
        request_bytes: ctx.request_bytes,
        response_bytes,
        prompt_tokens: plan.map(|plan| plan.prompt_tokens).filter(|&tokens| tokens > 0),
        predicted_cached_tokens: ctx.attempt.as_ref().map(|attempt| attempt.matched_tokens),
        reported_prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        reported_cached_tokens: usage.and_then(|usage| usage.cached_tokens),
        output_tokens: usage.map(|usage| usage.output_tokens),
        queued_millis: ctx.queued.map(|time| time.as_secs_f64() * 1e3),
        decision_micros: route.map(|route| route.decision_micros),
        ttft_millis: record.ttft_seconds.map(|seconds| seconds * 1e3),
        duration_millis: record.duration_seconds * 1e3,
    }
}
