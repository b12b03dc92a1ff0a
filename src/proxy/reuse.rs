//! Goes on with a client's connection behind an exchange that failed, where the client has a whole answer all the same: a
//! stream whose header said that the connection is kept, and which we have ended with an error event.
//!
//! Pingora drops the session of a failed exchange and the connection with it, whatever `can_reuse_downstream` says, and a
//! request that the client has sent by then is lost. Its last call before that is the one that logs. There the session is
//! taken away from it and finished as Pingora finishes those that went well, so that what was read ahead, and the limits of
//! the connection, are kept; [`Application`] gives the connection back to Pingora as if it had never been dropped.

use std::any::Any;
use std::io::Cursor;
use std::mem;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::server::ShutdownWatch;
use pingora_proxy::{HttpProxy, Session};

use super::Gateway;
use super::context::RequestContext;

/// What Pingora serves connections with: its proxy, which drops no connection that can go on.
pub struct Application(Arc<HttpProxy<Gateway>>);

/// Where a request leaves its connection, if Pingora would drop it. One for each request: it does not outlive the loop that
/// looks into it.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot(Arc<Mutex<Option<ReusedHttpStream>>>);

/// Takes the connection of `session` away from Pingora, which is about to drop it, if the answer is whole for its client:
/// it goes on, or is closed where its header said so.
pub(super) async fn keep(session: &mut Session, ctx: &RequestContext) {
    let Some(slot) = ctx.slot.as_ref().filter(|_| ctx.answer.is_made_whole) else { return };
    let settings = HttpPersistentSettings::for_session(session);
    let nobody = ServerSession::new_http1(Box::new(Cursor::new(Vec::new())));
    let taken = mem::replace(&mut *session.downstream_session, nobody);
    match taken.finish().await {
        Ok(Some(stream)) => *slot.0.lock() = Some(ReusedHttpStream::from_reusable_stream(stream, settings)),
        Ok(None) => {}
        Err(error) => {
            log::debug!("request {}: its connection cannot go on: {}", ctx.request_id, error.etype().as_str())
        }
    }
}

// === impl Application ===

impl Application {
    /// Serves with `proxy`.
    pub fn new(proxy: HttpProxy<Gateway>) -> Self {
        Self(Arc::new(proxy))
    }
}

#[async_trait]
impl HttpServerApp for Application {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let slot = Slot::default();
        // Over HTTP/2, where requests have no connection of their own, nothing is set and nothing comes of it.
        session.set_connection_user_context(Some(Box::new(slot.clone())));
        let reused = self.0.process_new_http(session, shutdown).await;
        let kept = slot.0.lock().take();
        kept.or(reused)
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.0.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.0.server_options()
    }

    async fn http_cleanup(&self) {
        self.0.http_cleanup().await;
    }
}

// === impl Slot ===

impl Slot {
    /// The one that came with a connection.
    pub(super) fn of(context: Box<dyn Any + Send + Sync>) -> Option<Self> {
        context.downcast().ok().map(|slot| *slot)
    }
}
