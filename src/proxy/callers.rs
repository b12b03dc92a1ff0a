//! Who calls: refuses those that may not, and charges the others.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::Result;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use super::context::RequestContext;
use super::plan::Plan;
use super::reject::Reject;
use super::trace::{makes_work, output_tokens};
use crate::auth::{Caller, Charge, Limited, Room, Spent, presented};
use crate::pool::PoolSnapshot;
use crate::request::{Usage, decoded};
use crate::state::State;
use crate::time::{self, Moment};

/// Finds out who sent the request and begins to charge it. Called before the body is read: strangers are to cost nothing.
pub(super) fn identify(state: &State, session: &Session, ctx: &mut RequestContext) -> Result<(), Reject> {
    let callers = state.callers.load();
    if !callers.is_required() {
        return Ok(());
    }
    let key = presented(&session.req_header().headers);
    let found = key.and_then(|key| callers.find(key));
    let found = found.ok_or(Reject::Unauthorized { has_key: key.is_some() })?;
    let caller = ctx.caller.insert(Arc::clone(found));
    ctx.charge = Some(caller.begin(time::now())?);
    let header = session.req_header();
    caller.permits_path(&header.method, &decoded(header.uri.path())).map_err(|denied| {
        caller.note_denied();
        Reject::Denied { denied, model: None }
    })
}

/// Whether the request, now that it was read, is one for its caller; charges its prompt.
pub(super) fn permit(ctx: &mut RequestContext, pool: &PoolSnapshot, plan: &Plan) -> Result<(), Reject> {
    let Some(charge) = &mut ctx.charge else { return Ok(()) };
    let caller = charge.caller();
    if let Err(denied) = caller.permits(plan.model.as_deref(), pool.pool.name()) {
        caller.note_denied();
        return Err(Reject::Denied { denied, model: plan.model.clone() });
    }
    if makes_work(plan) {
        charge.take_tokens(plan.prompt_tokens, time::now())?;
    }
    Ok(())
}

/// Charges what the backend that was chosen first will have to compute.
pub(super) fn charge_uncached(
    charge: &mut Option<Charge>,
    plan: &Plan,
    matched_tokens: u64,
    now: Moment,
) -> Result<(), Limited> {
    let Some(charge) = charge.as_mut().filter(|_| makes_work(plan)) else { return Ok(()) };
    charge.take_uncached(plan.prompt_tokens.saturating_sub(matched_tokens), now)
}

/// Ends the charge with what the request really used.
pub(super) fn settle(ctx: &mut RequestContext, usage: Option<Usage>, now: Moment) {
    let spent = spent(ctx, usage).unwrap_or_default();
    if let Some(mut charge) = ctx.charge.take() {
        charge.settle(spent, now);
    }
}

/// As the engine reports; else the estimates. None if no engine has worked on it: then what a client that left before
/// the answer's header has used is what was estimated, and what an engine refused is nothing.
fn spent(ctx: &RequestContext, usage: Option<Usage>) -> Option<Spent> {
    let (route, attempt) = ctx.route.as_ref().zip(ctx.attempt.as_ref())?;
    let is_unanswered = ctx.answer.status.is_none() && ctx.reject.is_none();
    if !(ctx.answer.is_success || is_unanswered) || !makes_work(&route.plan) {
        return None;
    }
    let prompt = usage.map_or(route.plan.prompt_tokens, |usage| usage.prompt_tokens);
    let cached = usage.and_then(|usage| usage.cached_tokens).unwrap_or(attempt.matched_tokens);
    let output = ctx.answer.reader.as_ref().map_or(0, |reader| output_tokens(usage, reader));
    Some(Spent { prompt, uncached: prompt.saturating_sub(cached), output })
}

/// Says what is left of the caller's limits, in the words of OpenAI's headers.
pub(super) fn annotate(header: &mut ResponseHeader, caller: Option<&Arc<Caller>>) -> Result<()> {
    let Some(caller) = caller else { return Ok(()) };
    let now = time::now();
    if let Some(room) = caller.request_room(now) {
        header.insert_header("x-ratelimit-limit-requests", room.allowed.get())?;
        header.insert_header("x-ratelimit-remaining-requests", room.left)?;
        header.insert_header("x-ratelimit-reset-requests", reset(room))?;
    }
    if let Some(room) = caller.token_room(now) {
        header.insert_header("x-ratelimit-limit-tokens", room.allowed.get())?;
        header.insert_header("x-ratelimit-remaining-tokens", room.left)?;
        header.insert_header("x-ratelimit-reset-tokens", reset(room))?;
    }
    Ok(())
}

/// Until nothing is used, as OpenAI writes it: `17ms`, `6s`, `1m30s`.
fn reset(room: Room) -> String {
    let millis = room.full_in.as_millis();
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let seconds = room.full_in.saturating_add(Duration::from_millis(999)).as_secs();
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn a_reset_reads_like_openais() {
        for (millis, expected) in [
            (0, "0ms"),
            (17, "17ms"),
            (999, "999ms"),
            (1001, "2s"),
            (59_000, "59s"),
            (60_000, "1m0s"),
            (90_001, "1m31s"),
        ] {
            let full_in = Duration::from_millis(millis);
            assert_eq!(reset(Room { allowed: NonZeroU32::MIN, left: 0, full_in }), expected);
        }
    }
}
