//! One request and its response: finds out what is asked for, lets the faults strike, answers.

use std::sync::Arc;

use pingora_core::Result;
use pingora_core::protocols::http::v1::server::HttpSession;

use super::body::{self, Body, Stopped};
use super::connection::After;
use super::generation;
use super::reply::{Marks, Reply};
use crate::sim::answer;
use crate::sim::endpoint::Endpoint;
use crate::sim::exposition;
use crate::sim::fault::{Fault, Order};
use crate::sim::process::{InFlight, Outcome, Process, Received};
use crate::sim::shared::Shared;
use crate::sim::state::EngineState;

/// A request on its way through the engine.
pub(super) struct Exchange<'a> {
    pub(super) session: &'a mut HttpSession,
    pub(super) shared: &'a Arc<Shared>,
    pub(super) process: Arc<Process>,
    pub(super) marks: Marks<'a>,
}

/// Answers the request whose header the session has read.
pub(super) async fn handle(session: &mut HttpSession, shared: &Arc<Shared>) -> Result<After> {
    let header = session.req_header();
    let (method, path) = (header.method.as_str().to_owned(), header.uri.path().to_owned());
    let process = shared.process();
    let marks = Marks { engine: &shared.options.name, generation: process.generation, body: None };
    let exchange = Exchange { session, shared, process, marks };
    if !exchange.is_allowed(&path) {
        return exchange.plain(Reply::unauthorized()).await;
    }
    match (Endpoint::from_path(&path), method.as_str()) {
        (Some(endpoint), "POST") => exchange.prompt(endpoint).await,
        (Some(_), _) => exchange.plain(Reply::wrong_method("POST")).await,
        (None, _) => exchange.page(&method, &path).await,
    }
}

// === impl Exchange ===

impl Exchange<'_> {
    /// A request that carries a prompt.
    async fn prompt(mut self, endpoint: Endpoint) -> Result<After> {
        let in_flight = self.process.begin();
        let fault = match self.shared.is_stopping() {
            true => Some(Fault::Sigterm),
            false => self.shared.strike(|faults| faults.strike_request()),
        };
        match &fault {
            Some(Fault::ResetBeforeBody) => {
                in_flight.end(Outcome::Faulted);
                return Ok(After::Reset);
            }
            Some(Fault::Status { status, before_body: true }) => {
                self.send(asked_for(endpoint, *status)).await?;
                in_flight.end(Outcome::Faulted);
                return Ok(After::Linger);
            }
            _ => {}
        }
        let body = match body::read(self.session, self.shared, fault == Some(Fault::ResetMidUpload)).await {
            Ok(body) => body,
            Err(stopped) => return self.stopped(endpoint, stopped, in_flight).await,
        };
        self.record(&body);
        self.answer(endpoint, body, fault, in_flight).await
    }

    /// The body did not come to its end.
    async fn stopped(mut self, endpoint: Endpoint, stopped: Stopped, in_flight: InFlight) -> Result<After> {
        let reply = match stopped {
            Stopped::Gone(error) => return Err(error),
            Stopped::Halfway => {
                in_flight.end(Outcome::Faulted);
                return Ok(After::Reset);
            }
            Stopped::TooLarge => {
                Reply::error(endpoint, 413, "Request Entity Too Large", "The request body is too large.", None)
            }
            Stopped::NoRoom => busy(endpoint),
        };
        self.send(reply).await?;
        in_flight.end(Outcome::Rejected);
        Ok(After::Linger)
    }

    async fn answer(
        mut self,
        endpoint: Endpoint,
        body: Body,
        fault: Option<Fault>,
        mut in_flight: InFlight,
    ) -> Result<After> {
        match fault {
            Some(Fault::Status { status, .. }) => {
                self.send(asked_for(endpoint, status)).await?;
                in_flight.end(Outcome::Faulted);
                Ok(After::Reuse)
            }
            Some(Fault::Stall) => {
                in_flight.stall();
                self.hang().await
            }
            fault => generation::run(self, endpoint, &body, fault, in_flight).await,
        }
    }

    /// Whether the client may ask this: vLLM guards `/v1/...` only, this engine also what tells of KV events.
    fn is_allowed(&self, path: &str) -> bool {
        let Some(key) = &self.shared.options.api_key else { return true };
        let is_guarded = path.starts_with("/v1/") || self.tells_of_kv_events(path);
        !is_guarded || key.is_in(self.session.get_header_bytes("authorization"))
    }

    fn tells_of_kv_events(&self, path: &str) -> bool {
        self.shared.publisher().is_some_and(|publisher| publisher.sources_path() == path)
    }

    /// Everything that carries no prompt.
    async fn page(self, method: &str, path: &str) -> Result<After> {
        let allowed = match path {
            _ if self.tells_of_kv_events(path) => "GET",
            "/health" | "/ping" | "/metrics" | "/v1/models" | "/version" | "/sim/state" => "GET",
            "/sim/fault" => "POST, DELETE",
            _ => return self.plain(Reply::no_such_path()).await,
        };
        if !allowed.split(", ").any(|allowed| allowed == method) {
            return self.plain(Reply::wrong_method(allowed)).await;
        }
        match path {
            "/health" | "/ping" => self.health().await,
            "/metrics" => self.metrics().await,
            "/sim/fault" if method == "DELETE" => {
                self.shared.clear();
                self.plain(Reply::json(String::from("{}"))).await
            }
            "/sim/fault" => self.fault().await,
            "/sim/state" => {
                let state = EngineState::of(self.shared);
                let body = serde_json::to_string(&state).unwrap_or_default();
                self.plain(Reply::json(body)).await
            }
            "/kv_event_sources" | "/server_info" => {
                let sources = self.shared.publisher().map(|publisher| publisher.sources(&self.shared.options));
                self.plain(sources.map_or_else(Reply::no_such_path, Reply::json)).await
            }
            "/version" => self.plain(Reply::json(String::from(r#"{"version":"0.32.0"}"#))).await,
            _ => {
                let length = self.process.driver.limit_tokens();
                let body = answer::models(&self.shared.options.models, self.process.started_at as u64, length);
                self.plain(Reply::json(body)).await
            }
        }
    }

    async fn health(self) -> Result<After> {
        let status = match self.shared.strike(|faults| faults.strike_health()) {
            Some(Fault::HealthFail { status }) => status,
            _ => 200,
        };
        self.plain(Reply::empty(status)).await
    }

    async fn metrics(mut self) -> Result<After> {
        if self.shared.strike(|faults| faults.strike_metrics()).is_some() {
            return self.hang().await;
        }
        let options = &self.shared.options;
        let facts = exposition::Facts {
            report: &self.process.driver.report(),
            stalled: self.process.counts().stalled,
            started_at: self.process.started_at,
            model: options.models.first().map_or("", String::as_str),
            parameters: &options.parameters,
        };
        self.plain(Reply::metrics(exposition::write(&facts))).await
    }

    async fn fault(mut self) -> Result<After> {
        let Ok(body) = body::read(self.session, self.shared, false).await else {
            return Ok(After::Linger);
        };
        let order = Order::from_json(&String::from_utf8_lossy(&body.bytes)).and_then(|order| match order.fault {
            Fault::Refuse { for_ms: None } => Err(String::from("for_ms: needed, or nobody could clear it")),
            _ => Ok(order),
        });
        let order = match order {
            Ok(order) => order,
            Err(error) => {
                let error = Reply::error(Endpoint::Chat, 400, "Bad Request", &error, None);
                return self.plain(error).await;
            }
        };
        if matches!(order.fault, Fault::Refuse { .. } | Fault::Restart { .. }) {
            // These end connections: the answer has to go out first.
            self.send(Reply::json(String::from("{}"))).await?;
            return Ok(After::Inject(order));
        }
        let reply = match self.shared.inject(order) {
            Ok(()) => Reply::json(String::from("{}")),
            Err(error) => Reply::error(Endpoint::Chat, 429, "Too Many Requests", &error, None),
        };
        self.plain(reply).await
    }

    async fn plain(mut self, reply: Reply) -> Result<After> {
        // A body that nobody reads must not be taken for the next request.
        let after = if self.session.is_body_done() { After::Reuse } else { After::Linger };
        self.send(reply).await?;
        Ok(after)
    }

    pub(super) async fn send(&mut self, reply: Reply) -> Result<()> {
        reply.send(self.session, &self.marks).await
    }

    /// Says nothing until the client gives up.
    pub(super) async fn hang(&mut self) -> Result<After> {
        Err(gone(self.session).await)
    }

    fn record(&mut self, body: &Body) {
        self.marks.body = Some((body.bytes.len(), body.xxh3));
        let header = self.session.req_header();
        let headers = header
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        self.process.record(Received {
            target: String::from_utf8_lossy(header.raw_path()).into_owned(),
            headers: headers.collect(),
            body_bytes: body.bytes.len() as u64,
            body_xxh3: format!("{:016x}", body.xxh3),
        });
    }
}

/// Returns when the client has closed or reset the connection. A half-closed one counts as closed, as in vLLM.
pub(super) async fn gone(session: &mut HttpSession) -> Box<pingora_core::Error> {
    loop {
        if let Err(error) = session.read_body_or_idle(true).await {
            return error;
        }
    }
}

/// The queue, or the memory for bodies, is full.
pub(super) fn busy(endpoint: Endpoint) -> Reply {
    const MESSAGE: &str = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.";
    Reply::error(endpoint, 503, "Service Unavailable", MESSAGE, None)
}

fn asked_for(endpoint: Endpoint, status: u16) -> Reply {
    Reply::error(endpoint, status, "Simulated", "This error was asked for.", None)
}
