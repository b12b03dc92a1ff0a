//! The operators' listener: metrics, readiness, what is known of backends, drain and reload.

mod access;
mod backends;
mod callers;
mod certificates;
mod events;
mod explain;
mod gauges;
mod shadows;

use std::sync::Arc;

use async_trait::async_trait;
use http::{Method, Response, StatusCode, Version, header};
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use serde::Serialize;

use crate::config;
use crate::control::{DrainOrder, Ended, Handle, Reloaded};
use crate::downstream;
use crate::proxy::Reject;
use crate::proxy::body::{self, BodyLimits};
use crate::request::decoded;
use crate::state::State;
use crate::time;

pub use callers::CallerCounts;
pub use certificates::Certificates;
pub use events::Events;
pub use gauges::Gauges;
pub use shadows::Shadows;

const INDEX: &str = "\
GET  /metrics                  everything as Prometheus metrics
GET  /healthz                  200 while the process lives
GET  /readyz                   200 while every pool has a backend that can serve; else, and while draining, 503
GET  /backends                 what is known of each backend, as JSON
POST /explain[?path=PATH]      what would be decided for the request in the body, as JSON; &caller=LABEL: of this caller
POST /reload                   read the configuration file again
POST /backends/NAME/drain[?deadline=5m]   give a backend nothing new; its conversations may go on until then
POST /backends/NAME/undrain    give it requests again
";

/// The admin application.
pub struct Admin {
    state: Arc<State>,
    control: Handle,
}

#[derive(Serialize)]
struct Outcome<'a> {
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

type Reply = Response<Vec<u8>>;

// === impl Admin ===

impl Admin {
    /// Tells of `state`; commands go to `control`.
    pub fn new(state: Arc<State>, control: Handle) -> Self {
        Self { state, control }
    }

    async fn answer(&self, method: &Method, path: &str, query: Option<&str>, session: &mut ServerSession) -> Reply {
        if let Some(fault) = downstream::fault(session) {
            session.set_keepalive(None);
            let reject = Reject::malformed(fault, &self.state.config.load());
            return failed(reject.status(), fault.explained());
        }
        if session.req_header().version < Version::HTTP_11 {
            // Who does not know of kept connections waits for the end of this one.
            session.set_keepalive(None);
        }
        let path = &*decoded(path);
        if !access::is_allowed(&self.state.config.load().admin, path, &session.req_header().headers) {
            // What it sends besides is not answered, and a connection that closes over it could be reset before the reply.
            session.set_keepalive(None);
            body::drain(session).await;
            return access::refused();
        }
        if path != "/explain" {
            body::pass_over(session).await;
        }
        match method_of(path) {
            None => return failed(StatusCode::NOT_FOUND, "there is no such page; GET / lists what there is"),
            // Pingora leaves the body of an answer to HEAD away.
            Some(Method::GET) if method == Method::HEAD => {}
            Some(right) if right != method => return wrong_method(&right),
            Some(_) => {}
        }
        match path {
            "/" => text(StatusCode::OK, INDEX),
            "/metrics" => metrics(&self.state),
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => readiness(&self.state),
            "/backends" => json(StatusCode::OK, &backends::report(&self.state, time::now())),
            "/explain" => self.explain(query, session).await,
            "/reload" => self.reload().await,
            _ => self.drain(path, query).await,
        }
    }

    async fn reload(&self) -> Reply {
        match self.control.reload().await {
            Ok(Ok(Reloaded::Applied)) => done("applied"),
            Ok(Ok(Reloaded::Unchanged)) => done("unchanged"),
            Ok(Err(refused)) => failed(StatusCode::UNPROCESSABLE_ENTITY, &refused.to_string()),
            Err(Ended) => failed(StatusCode::SERVICE_UNAVAILABLE, &Ended.to_string()),
        }
    }

    async fn drain(&self, path: &str, query: Option<&str>) -> Reply {
        let Some((name, is_drain)) = drain_command(path) else {
            return failed(StatusCode::NOT_FOUND, "there is no such command; GET / lists what there is");
        };
        let order = match drain_order(is_drain, query) {
            Ok(order) => order,
            Err(problem) => return failed(StatusCode::BAD_REQUEST, &problem),
        };
        match self.control.drain(name, order).await {
            Ok(0) => failed(StatusCode::NOT_FOUND, &format!("no backend is named {name:?}; GET /backends lists them")),
            Ok(_) => done(if is_drain { "draining" } else { "not draining" }),
            Err(Ended) => failed(StatusCode::SERVICE_UNAVAILABLE, &Ended.to_string()),
        }
    }

    async fn explain(&self, query: Option<&str>, session: &mut ServerSession) -> Reply {
        let limits = BodyLimits::of(&self.state.config.load().limits);
        let body = match body::read(session, &limits, &self.state.bodies).await {
            Ok(body) => body,
            Err(error) => return rejected(&error.into()),
        };
        let path = decoded(asked(query, "path").unwrap_or("/v1/chat/completions"));
        if !path.starts_with('/') {
            let detail = format!("`path` is {path:?}; expected one that begins with /, e.g. /v1/completions");
            return failed(StatusCode::BAD_REQUEST, &detail);
        }
        let callers = self.state.callers.load();
        let caller = match asked(query, "caller") {
            Some(label) => match callers.named(&decoded(label)) {
                Some(caller) => Some(caller),
                None => return failed(StatusCode::NOT_FOUND, "no caller has this label"),
            },
            None => None,
        };
        match explain::explain(&self.state, &path, &body.bytes(), caller, time::now()).await {
            Ok(explanation) => json(StatusCode::OK, &explanation),
            Err(reject) => rejected(&reject),
        }
    }
}

fn rejected(reject: &Reject) -> Reply {
    reply(reject.status(), "application/json", reject.body().to_vec())
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Reply {
        let header = session.req_header();
        let (method, uri) = (header.method.clone(), header.uri.clone());
        self.answer(&method, uri.path(), uri.query(), session).await
    }
}

/// The one method that makes sense for a path; none for a path that is not there.
fn method_of(path: &str) -> Option<Method> {
    match path {
        "/" | "/metrics" | "/healthz" | "/readyz" | "/backends" => Some(Method::GET),
        "/explain" | "/reload" => Some(Method::POST),
        _ => drain_command(path).map(|_| Method::POST),
    }
}

/// The backend named in the path, and whether it shall drain.
fn drain_command(path: &str) -> Option<(&str, bool)> {
    let (name, command) = path.strip_prefix("/backends/")?.rsplit_once('/')?;
    match command {
        "drain" => Some((name, true)),
        "undrain" => Some((name, false)),
        _ => None,
    }
}

/// What is asked for, with the deadline that the query may name.
fn drain_order(is_drain: bool, query: Option<&str>) -> Result<DrainOrder, String> {
    let given = query.filter(|query| !query.is_empty());
    match (is_drain, given, given.and_then(|query| query.strip_prefix("deadline="))) {
        (false, None, _) => Ok(DrainOrder::Undrain),
        (true, None, _) => Ok(DrainOrder::Drain(None)),
        (true, Some(_), Some(time)) => match config::drain_deadline(time) {
            Ok(time) => Ok(DrainOrder::Drain(Some(time))),
            Err(right) => Err(format!("deadline: found {time:?}; {right}")),
        },
        (true, Some(query), None) => Err(format!("found {query:?}; expected deadline=TIME, e.g. deadline=5m")),
        (false, Some(query), _) => Err(format!("found {query:?}; expected nothing behind the path")),
    }
}

/// What is asked about: the value of `name` in the query.
fn asked<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn metrics(state: &State) -> Reply {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    reply(StatusCode::OK, kind, state.metrics.render().into_bytes())
}

fn readiness(state: &State) -> Reply {
    if state.lifecycle.is_draining() {
        return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    let now = time::now();
    let snapshot = state.snapshot.load();
    let waiting: Vec<&str> =
        snapshot.pools().iter().filter(|pool| !pool.can_serve(now)).map(|pool| &**pool.pool.name()).collect();
    if waiting.is_empty() {
        return text(StatusCode::OK, "ready\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, &format!("no backend can serve in: {}\n", waiting.join(", ")))
}

fn done(outcome: &str) -> Reply {
    json(StatusCode::OK, &Outcome { outcome, detail: None })
}

fn failed(status: StatusCode, detail: &str) -> Reply {
    json(status, &Outcome { outcome: "refused", detail: Some(detail.to_owned()) })
}

fn wrong_method(right: &Method) -> Reply {
    let mut reply = failed(StatusCode::METHOD_NOT_ALLOWED, &format!("this takes {right}; GET / lists what there is"));
    if let Ok(right) = header::HeaderValue::from_str(right.as_str()) {
        reply.headers_mut().insert(header::ALLOW, right);
    }
    reply
}

fn text(status: StatusCode, text: &str) -> Reply {
    reply(status, "text/plain; charset=utf-8", text.as_bytes().to_vec())
}

fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match serde_json::to_vec_pretty(value) {
        Ok(mut body) => {
            body.push(b'\n');
            reply(status, "application/json", body)
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn reply(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Reply {
    let length = body.len();
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    reply.headers_mut().insert(header::CONTENT_LENGTH, header::HeaderValue::from(length));
    reply
}
