//! Sends our own error reply where a request failed, if nothing was sent yet and anyone is left to read it.

use pingora_core::{Error, ErrorSource, ErrorType};
use pingora_proxy::{FailToProxy, Session};

use super::context::RequestContext;
use super::reject::Reject;
use super::{body, callers, event, last_words};

/// Replies to a request that failed, if nothing was sent yet, and says how it stands.
pub(super) async fn reply(session: &mut Session, error: &Error, ctx: &mut RequestContext) -> FailToProxy {
    let is_started = ctx.has_begun(session);
    if ctx.reject.is_none() && !is_gone(error) && !is_started {
        ctx.reject = Some(reject_for(error, ctx));
    }
    if is_started && !is_gone(error) && last_words::can_be_said(session, ctx) {
        let is_whole = is_delivered(last_words::say(session, ctx).await, ctx);
        return FailToProxy { error_code: 0, can_reuse_downstream: is_whole };
    }
    let Some(reject) = ctx.reject.as_ref().filter(|_| !is_started) else {
        return FailToProxy { error_code: 0, can_reuse_downstream: false };
    };
    let body_is_unread = !session.is_body_done();
    if body_is_unread {
        session.set_keepalive(None);
    }
    let is_delivered = is_delivered(send(session, reject, ctx).await, ctx);
    if body_is_unread {
        body::drain(&mut session.downstream_session).await;
    }
    let error_code = reject.status().as_u16();
    FailToProxy { error_code, can_reuse_downstream: is_delivered && !body_is_unread }
}

fn is_delivered(written: pingora_core::Result<()>, ctx: &RequestContext) -> bool {
    if let Err(error) = &written {
        log::debug!("request {}: the error was not delivered: {}", ctx.request_id, error.etype().as_str());
    }
    written.is_ok()
}

async fn send(session: &mut Session, reject: &Reject, ctx: &RequestContext) -> pingora_core::Result<()> {
    if ctx.is_opened {
        let event = event::of_reject(reject, ctx.endpoint());
        return session.downstream_session.write_response_body(event, true).await;
    }
    let body = reject.body();
    let mut header = reject.header(body.len(), &ctx.request_id)?;
    callers::annotate(&mut header, ctx.caller.as_ref())?;
    session.downstream_session.write_response_header(header).await?;
    session.downstream_session.write_response_body(body, true).await
}

/// Whether the client's side of the exchange broke: nobody is there to be told.
fn is_gone(error: &Error) -> bool {
    let is_protocol_fault = matches!(error.etype(), ErrorType::InvalidHTTPHeader | ErrorType::InvalidH2);
    *error.esource() == ErrorSource::Downstream && !is_protocol_fault
}

/// What a failure that we did not foresee means for the client.
fn reject_for(error: &Error, ctx: &RequestContext) -> Reject {
    match (error.esource(), ctx.answer.limit) {
        (ErrorSource::Downstream, _) => Reject::BadRequest,
        (_, Some(limit)) => Reject::TimedOut(limit),
        (ErrorSource::Upstream, None) => Reject::UpstreamFailed { attempts: ctx.attempts },
        _ => Reject::Internal,
    }
}
