//! One connection: request after request, until either side has had enough.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v1::server::HttpSession;
use tokio::net::TcpStream;

use super::exchange;
use super::reply;
use super::socket::{ResetSwitch, Socket};
use crate::sim::fault::Order;
use crate::sim::shared::Shared;

/// What to do with a connection after a response.
#[derive(Debug)]
pub(super) enum After {
    /// Read the next request, if both sides agree to.
    Reuse,
    /// The response came before the end of the request: read on for a while, so that it is not lost to a reset.
    Linger,
    /// Reset the connection.
    Reset,
    /// Close it and then bring a fault about.
    Inject(Order),
}

/// How long a body may pause, and how long a client may refuse to read.
const IO_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to read on behind an early response.
const LINGER: Duration = Duration::from_secs(2);

/// Serves the connection to its end.
pub(super) async fn serve(tcp: TcpStream, shared: Arc<Shared>) {
    if let Err(error) = tcp.set_nodelay(true) {
        log::debug!("tokens may arrive late: {error}");
    }
    let reset = ResetSwitch::default();
    let mut gate = shared.gate();
    let mut stream: Stream = Box::new(Socket::new(tcp, reset.clone()));
    let mut pipelined = None;
    loop {
        let mut session = HttpSession::new(stream);
        session.set_pipelining_enabled(true);
        session.set_write_timeout(Some(IO_TIMEOUT));
        session.set_read_timeout(Some(shared.options.idle_timeout));
        if let Some(prefix) = pipelined {
            session.set_pipelined_prefix(prefix);
        }
        let read = tokio::select! {
            read = session.read_request() => read,
            // A closed gate closes idle connections.
            Ok(_) = gate.wait_for(|gate| !gate.is_open) => return,
        };
        match read {
            Ok(Some(_)) => session.set_read_timeout(Some(IO_TIMEOUT)),
            Ok(None) => return,
            Err(error) => return refuse(&mut session, &error).await,
        }
        let after = match exchange::handle(&mut session, &shared).await {
            Ok(after) => after,
            Err(error) => return log::debug!("a connection ended: {error}"),
        };
        match after {
            After::Reuse => match session.reuse().await {
                Ok(Some(reusable)) => (stream, pipelined) = reusable.into_parts(),
                _ => return,
            },
            After::Linger => return linger(session).await,
            After::Reset => return reset.arm(),
            After::Inject(order) => {
                drop(session);
                if let Err(error) = shared.inject(order) {
                    log::debug!("a fault was refused: {error}");
                }
                return;
            }
        }
    }
}

/// Answers what is not HTTP, if that was what came.
async fn refuse(session: &mut HttpSession, error: &pingora_core::Error) {
    if *error.etype() == pingora_core::ErrorType::InvalidHTTPHeader
        && let Err(error) = reply::invalid_http(session).await
    {
        log::debug!("a connection ended: {error}");
    }
}

async fn linger(mut session: HttpSession) {
    session.shutdown().await;
    let rest = async { while let Ok(Some(_)) = session.read_body_bytes().await {} };
    if tokio::time::timeout(LINGER, rest).await.is_err() {
        log::debug!("a client went on sending after its answer");
    }
}
