//! What follows a failed attempt: another, or the end.
//!
//! An attempt may be repeated only while it is open whether its answer goes downstream. Connect failures and stale pooled
//! connections are always repeated; resets, the configured statuses, limits of time and answers that the engine gave up as
//! far as the retry budget allows. Nothing goes
//! beyond `max_attempts`, and a backend is not tried twice; but a stale pooled connection, which says nothing of the
//! backend, is repeated once besides.

use pingora_core::{Error, ErrorSource, ErrorType};

use super::context::RequestContext;
use super::reject::Reject;
use super::{attend, peer};
use crate::client::is_ours;
use crate::metrics::RetryCause;
use crate::pool::{FailureKind, TimeLimit};
use crate::state::State;
use crate::time;

/// No connection to the chosen backend.
pub(super) fn after_connect_failure(state: &State, ctx: &mut RequestContext, mut error: Box<Error>) -> Box<Error> {
    log_attempt(ctx, "no connection", &error);
    if !is_ours(&error) {
        record_failure(ctx, FailureKind::Connect);
    }
    let limit = attend::met(&error, ctx);
    if let Some(limit) = limit {
        attend::note(state, limit, ctx);
    }
    let is_retry = limit != Some(TimeLimit::Total) && may_follow(state, ctx, RetryCause::Connect);
    error.set_retry(is_retry);
    error
}

/// The exchange failed on an established connection.
pub(super) fn after_exchange_failure(
    state: &State,
    ctx: &mut RequestContext,
    mut error: Box<Error>,
    is_reused: bool,
) -> Box<Error> {
    // Decided already, by the status or by what came first. The error itself must not be asked before it was told: Pingora
    // leaves those of pooled connections open, and panics.
    if std::mem::take(&mut ctx.answer.is_dropped) {
        error.set_retry(true);
        return error;
    }
    error.set_retry(false);
    if matches!(ctx.reject, Some(Reject::BackendKey { .. })) {
        // We have ended it ourselves, over an answer that is not passed on.
        log_attempt(ctx, "refused the key", &error);
        return error;
    }
    if *error.esource() == ErrorSource::Downstream || ctx.reject.is_some() {
        return error;
    }
    let is_settled = ctx.is_settled();
    if let Some(limit) = attend::met(&error, ctx) {
        log::info!("request {}: attempt {} met timeouts.{}", ctx.request_id, ctx.attempts, limit.name());
        attend::note(state, limit, ctx);
        if limit != TimeLimit::Total {
            record_failure(ctx, if limit.is_silence() { FailureKind::Silent } else { FailureKind::Reset });
        }
        let is_retry = !is_settled && limit != TimeLimit::Total && may_follow(state, ctx, RetryCause::TimeLimit);
        error.set_retry(is_retry);
        return error;
    }
    // One that has begun to answer was none.
    let has_answered = ctx.answer.status.is_some();
    if is_reused && !is_settled && !has_answered && !ctx.was_stale && is_stale(&error) {
        log_attempt(ctx, "stale pooled connection", &error);
        ctx.was_stale = true;
        state.metrics.retried(&ctx.labels(), RetryCause::StaleConnection);
        error.set_retry(true);
        return error;
    }
    log_attempt(ctx, "failed", &error);
    record_failure(ctx, FailureKind::Reset);
    let is_retry = !is_settled && may_follow(state, ctx, RetryCause::Reset);
    error.set_retry(is_retry);
    error
}

/// Whether a response of this status is dropped in favour of another attempt.
pub(super) fn on_status(state: &State, ctx: &mut RequestContext, status: u16) -> bool {
    let is_configured = state.config.load().retry.statuses.contains(&status);
    is_configured && may_follow(state, ctx, RetryCause::Status)
}

/// Whether an answer that the engine gave up is dropped in favour of another attempt.
pub(super) fn on_abort(state: &State, ctx: &mut RequestContext) -> bool {
    may_follow(state, ctx, RetryCause::Aborted)
}

/// A pooled connection that the backend had closed, or closed just then.
fn is_stale(error: &Error) -> bool {
    matches!(
        error.etype(),
        ErrorType::ConnectionClosed | ErrorType::WriteError | ErrorType::ReadError | ErrorType::H2Error
    )
}

/// Takes what another attempt needs (a place, the budget), and notes this one as tried.
fn may_follow(state: &State, ctx: &mut RequestContext, cause: RetryCause) -> bool {
    let Some(route) = &ctx.route else { return false };
    let Some(attempt) = &ctx.attempt else { return false };
    let (pool, labels) = (route.pool(), ctx.labels());
    ctx.tried.push(attempt.index);
    let most = state.config.load().retry.max_attempts.get() + u32::from(ctx.was_stale);
    if ctx.attempts >= most || !peer::is_another(route, &ctx.tried, cause == RetryCause::Connect) {
        return false;
    }
    if cause != RetryCause::Connect && !pool.pool.retry_budget().try_spend(&pool.retry, time::now()) {
        state.metrics.retry_denied(&labels.pool);
        return false;
    }
    state.metrics.retried(&labels, cause);
    true
}

/// Tells the backend's ejection that an attempt failed.
pub(super) fn record_failure(ctx: &mut RequestContext, kind: FailureKind) {
    let (Some(route), Some(attempt)) = (&ctx.route, &mut ctx.attempt) else { return };
    let permit = attempt.probe.take();
    let now = time::now();
    let settings = &route.pool().ejection;
    if let Some(transition) = attempt.backend.ejection().record_failure(permit, kind, settings, now) {
        transition.log(attempt.backend.name(), now);
    }
}

/// Tells the backend's ejection that an attempt was answered.
pub(super) fn record_success(ctx: &mut RequestContext) {
    let Some(attempt) = &mut ctx.attempt else { return };
    let permit = attempt.probe.take();
    let now = time::now();
    if let Some(transition) = attempt.backend.ejection().record_success(permit, now) {
        transition.log(attempt.backend.name(), now);
    }
}

fn log_attempt(ctx: &RequestContext, what: &str, error: &Error) {
    let backend = ctx.attempt.as_ref().map_or("-", |attempt| attempt.backend.name());
    log::info!("request {}: attempt {} at {backend}: {what}: {}", ctx.request_id, ctx.attempts, error.etype().as_str());
}
