//! The data path: one request from its header to its log line.
//!
//! [`Gateway`] is Pingora's `ProxyHttp`; its methods only delegate, one file a step: [`callers`] says who may call,
//! [`body`] holds the body, [`mod@plan`] says what the request asks of routing. Then the [`exchange`] begins: [`waiting`] finds
//! a backend with room, [`deferral`] lets the request wait though there is room, [`alarms`] says what ends either, [`peer`]
//! says how to connect, [`connections`] has the connection, [`forward`] says what is sent, [`attend`] sees to time limits,
//! [`response`] watches the answer, [`hold`] keeps it back while it may be none. [`reject`], [`reply`] and [`last_words`] make
//! our own error replies, and [`finish`] counts and logs.

mod alarms;
mod attend;
mod blocks;
pub mod body;
mod callers;
mod connections;
mod context;
mod deferral;
mod event;
mod exchange;
mod finish;
mod forward;
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
mod trace;
mod waiting;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;
use pingora_core::connectors::TransportConnector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};

pub use matched::Matched;
pub use plan::{Head, Plan, plan};
pub use reject::Reject;

use crate::state::State;
use connections::Connections;
use context::RequestContext;
use limits::Rounds;

/// The proxy application.
pub struct Gateway {
    state: Arc<State>,
    /// Whether its callers need a key, if there are keys.
    requires_key: bool,
    /// The connections to backends.
    connections: Arc<Connections>,
    /// Who looks at the time limits of attempts.
    rounds: Arc<Rounds>,
}

// === impl Gateway ===

impl Gateway {
    /// Serves from this state; those who have a key of it, where one is required. Connects by `connector`.
    pub fn new(state: Arc<State>, requires_key: bool, connector: Arc<TransportConnector>) -> Self {
        let connections = Arc::new(Connections::new(connector));
        Self { state, requires_key, connections, rounds: Arc::default() }
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    // In a box: it would be a part of Pingora's state of a connection, which is moved for each request.
    type CTX = Box<RequestContext>;

    fn new_ctx(&self) -> Self::CTX {
        Box::new(RequestContext::new(&self.state))
    }

    // None: the default compresses responses, and a response's bytes are not ours to change.
    fn init_downstream_modules(&self, _modules: &mut pingora_core::modules::http::HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<()> {
        intake::admit(&self.state, session, ctx, self.requires_key)
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Self::CTX) -> Result<bool> {
        if !intake::take(&self.state, session, ctx).await? {
            exchange::serve(self, session, ctx).await?;
        }
        Ok(true)
    }

    // Every request has been answered before Pingora would ask.
    async fn upstream_peer(&self, _session: &mut Session, _ctx: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        Err(Error::new_in(ErrorType::InternalError))
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Self::CTX) -> FailToProxy {
        reply::reply(session, error, ctx).await
    }

    // Each attempt and each failed request is logged once, by us, with its request id.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Self::CTX, _error: &Error) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Self::CTX) {
        finish::record(&self.state, session, error, ctx);
    }
}
