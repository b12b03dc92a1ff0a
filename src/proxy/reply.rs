//! Sends our own error reply where a request failed, if nothing was sent yet and anyone is left to read it.

use pingora_core::{Error, ErrorSource, ErrorType};
use pingora_proxy::{FailToProxy, Session};

use super::body;
use super::context::RequestContext;
use super::keep_alive;
use super::reject::Reject;

/// Replies to a request that failed, if nothing was sent yet, and says how it stands.
pub(super) async fn reply(session: &mut Session, error: &Error, ctx: &mut RequestContext) -> FailToProxy {
    let is_started = ctx.has_begun(session);
    let is_early = ctx.route.is_none();
    if ctx.reject.is_none() && !is_gone(error) && !is_started {
        ctx.reject = Some(reject_for(error, ctx));
    }
    let Some(reject) = ctx.reject.as_ref().filter(|_| !is_started) else {
        return FailToProxy { error_code: 0, can_reuse_downstream: false };
    };
    if !is_early {
        // Pingora closes the connection after a failed exchange; the reply says so.
        session.set_keepalive(None);
    }
    let body_is_unread = !session.is_body_done();
    if body_is_unread {
        session.set_keepalive(None);
    }
    let sent = match ctx.is_opened {
        true => session.downstream_session.write_response_body(keep_alive::event_of(reject, ctx), true).await,
        false => send(session, reject, &ctx.request_id).await,
    };
    if let Err(error) = sent {
        log::debug!("request {}: the error reply was not delivered: {}", ctx.request_id, error.etype().as_str());
    }
    if body_is_unread {
        body::drain(&mut session.downstream_session).await;
    }
    FailToProxy { error_code: reject.status().as_u16(), can_reuse_downstream: is_early && !body_is_unread }
}

async fn send(session: &mut Session, reject: &Reject, request_id: &str) -> pingora_core::Result<()> {
    let body = reject.body();
    let header = reject.header(body.len(), request_id)?;
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
    match (error.esource(), error.etype()) {
        (ErrorSource::Downstream, _) => Reject::BadRequest,
        (ErrorSource::Upstream, ErrorType::ReadTimedout | ErrorType::WriteTimedout) => Reject::UpstreamTimeout,
        (ErrorSource::Upstream, _) => Reject::UpstreamFailed { attempts: ctx.attempts },
        _ => Reject::Internal,
    }
}
