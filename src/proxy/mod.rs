//! The data path: one request from its header to its log line.
//!
//! [`Gateway`] is Pingora's `ProxyHttp`; its methods only delegate, one file a step: [`callers`] says who may call,
//! [`body`] holds the body, [`mod@plan`] says what the request asks of routing, [`waiting`] finds it a backend with room,
//! [`deferral`] lets it wait though there is room, [`alarms`] says what ends either, [`peer`] says how to connect,
//! [`attend`] sees to time limits, [`response`] watches the answer, [`hold`] keeps it back while it may be none,
//! [`reject`], [`reply`] and [`last_words`] make our own error replies, [`finish`] counts and logs, and [`reuse`] sees to
//! what becomes of the connection.

mod alarms;
mod attend;
mod blocks;
pub mod body;
mod callers;
mod context;
mod cork;
mod deferral;
mod event;
mod finish;
mod hedge;
mod hold;
mod intake;
mod keep_alive;
mod last_words;
mod limits;
mod linger;
mod matched;
mod models;
mod peer;
mod plan;
mod reject;
mod reply;
mod response;
mod retry;
mod reuse;
mod trace;
mod waiting;

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

pub(crate) use cork::uncorking;
pub use matched::Matched;
pub use plan::{Head, Plan, plan};
pub use reject::Reject;
pub use reuse::Application;

use crate::state::State;
use context::RequestContext;
use limits::{Lines, Rounds};

/// The proxy application.
pub struct Gateway {
    state: Arc<State>,
    /// Whether its callers need a key, if there are keys.
    requires_key: bool,
    /// The connections to backends.
    lines: Arc<Lines>,
    /// Who looks at the time limits of attempts.
    rounds: Arc<Rounds>,
}

// === impl Gateway ===

impl Gateway {
    /// Serves from this state; those who have a key of it, where one is required.
    pub fn new(state: Arc<State>, requires_key: bool) -> Self {
        Self { state, requires_key, lines: Arc::default(), rounds: Arc::default() }
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> Self::CTX {
        RequestContext::new(&self.state)
    }

    fn on_connection_reuse(&self, _session: &mut Session, ctx: &mut Self::CTX, context: Box<dyn Any + Send + Sync>) {
        ctx.slot = reuse::Slot::of(context);
    }

    // None: the default compresses responses, and a response's bytes are not ours to change.
    fn init_downstream_modules(&self, _modules: &mut pingora_core::modules::http::HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<()> {
        intake::admit(&self.state, session, ctx, self.requires_key)
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<bool> {
        intake::take(&self.state, session, ctx).await
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        let mut peer = peer::choose(&self.state, session, ctx).await?;
        attend::prepare(&self.state, &self.lines, &mut peer, ctx)?;
        hedge::arm(ctx, &mut peer);
        Ok(peer)
    }

    async fn connected_to_upstream(
        &self,
        session: &mut Session,
        is_reused: bool,
        _peer: &HttpPeer,
        descriptor: RawFd,
        _digest: Option<&Digest>,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        attend::begin(&self.lines, &self.rounds, session, is_reused, descriptor, ctx)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Self::CTX,
        error: Box<Error>,
    ) -> Box<Error> {
        retry::after_connect_failure(&self.state, ctx, error)
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        peer::frame(request, ctx)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        bytes: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        ctx.replay_body(bytes, end_of_stream);
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        header: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        hedge::settle(ctx);
        response::judge(&self.state, session, header, ctx)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        header: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        keep_alive::expect(session, header, ctx).await?;
        response::annotate(&self.state, session, header, ctx)
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        bytes: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<Option<Duration>> {
        hold::look(&self.state, session, bytes, end_of_stream, ctx)?;
        response::watch(&self.state, bytes.as_ref(), end_of_stream, ctx)?;
        if let Some(unstreamed) = &mut ctx.answer.unstreamed {
            unstreamed.convert(bytes, end_of_stream);
        }
        Ok(None)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut Self::CTX,
        is_reused: bool,
    ) -> Box<Error> {
        retry::after_exchange_failure(&self.state, session, ctx, error, is_reused)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Self::CTX) -> FailToProxy {
        reply::reply(session, error, ctx).await
    }

    // Each attempt and each failed request is logged once, by us, with its request id.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Self::CTX, _error: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Self::CTX,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Self::CTX) {
        finish::record(&self.state, session, error, ctx);
        reuse::keep(session, ctx).await;
    }
}
