//! Overload: what waits when every backend is full, who goes first, who is refused and with what words.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and shows its figures"
)]

#[path = "../common/mod.rs"]
mod common;

mod callers;
mod deferral;
mod engine;
mod goodput;
mod hedging;
mod keep_alive;
mod limits;
mod order;
mod refusals;
mod waits;

use std::sync::Arc;

use common::backend::{Exchange, Fleet};
use common::client::{Client, Response};
use common::proxy::{Proxy, Setup};
use common::{chat, eventually, within};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

const CHAT: &str = "/v1/chat/completions";

/// Backends that answer a request for each permit that they are given, and the proxy before them.
struct Bench {
    fleet: Fleet,
    proxy: Proxy,
    answers: Arc<Semaphore>,
}

/// A request that was sent.
struct Asked(JoinHandle<Response>);

// === impl Bench ===

impl Bench {
    /// A pool of `backends` with these further keys.
    async fn start(backends: usize, keys: &str) -> Self {
        Self::start_with(Setup::new(), backends, keys).await
    }

    async fn start_with(setup: Setup, backends: usize, keys: &str) -> Self {
        let answers = Arc::new(Semaphore::new(0));
        let given = Arc::clone(&answers);
        let fleet = Fleet::start(backends, move |exchange: &mut Exchange| {
            let given = Arc::clone(&given);
            Box::pin(async move {
                let body = exchange.body().await?;
                given.acquire().await.unwrap().forget();
                exchange.respond(200, &String::from_utf8(body).unwrap()).await
            })
        })
        .await;
        let proxy = setup.pool("p", &fleet, keys).start().await;
        Self { fleet, proxy, answers }
    }

    /// Sends a chat request with these further header lines.
    fn ask(&self, text: &str, headers: &str) -> Asked {
        let (http, headers, body) = (self.proxy.http, headers.to_owned(), chat(text));
        Asked(tokio::spawn(async move {
            let mut client = Client::connect(http).await;
            client.send("POST", CHAT, &headers, &body).await;
            client.response("POST").await.unwrap()
        }))
    }

    /// The same once so many others wait.
    async fn ask_after(&self, waiting: usize, text: &str, headers: &str) -> Asked {
        self.until_waiting(waiting).await;
        self.ask(text, headers)
    }

    /// Sends a request to each backend, which keeps it.
    async fn fill(&self, backends: usize) -> Vec<Asked> {
        let before = self.fleet.received().len();
        let held = (0..backends).map(|number| self.ask(&format!("held {number}"), "")).collect();
        self.until_received(before + backends).await;
        held
    }

    async fn until_waiting(&self, requests: usize) {
        let what = format!("{requests} requests wait");
        eventually(&what, async || self.proxy.metric("queued_requests", "").await == requests as f64).await;
    }

    async fn until_nobody_looks(&self) {
        let snapshot = self.proxy.server.state().snapshot.load_full();
        let line = snapshot.pools()[0].pool.line();
        eventually("nobody looks for room", async || line.turn().is_none()).await;
    }

    async fn until_received(&self, requests: usize) {
        let what = format!("backends have {requests} requests");
        eventually(&what, async || self.fleet.received().len() == requests).await;
    }

    /// Lets backends answer so many requests.
    fn answer(&self, requests: usize) {
        self.answers.add_permits(requests);
    }
}

// === impl Asked ===

impl Asked {
    async fn answered(self) -> Response {
        within("the answer", self.0).await.unwrap()
    }

    async fn served(self) {
        let response = self.answered().await;
        assert_eq!(response.status, 200, "{}", response.text());
    }

    fn leave(self) {
        self.0.abort();
    }
}
