//! The proxy in this process, with its configuration file in a scratch directory.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warmgate::server::Server;

use super::client::{Reply, ask, get, post_chat};
use super::engine::Engine;
use super::settings::Settings;
use super::{Scratch, eventually, logs};

/// A running proxy; dropping it ends its listeners.
pub struct Proxy {
    server: Server,
    file: PathBuf,
    scratch: Scratch,
}

// === impl Proxy ===

impl Proxy {
    /// Starts with these settings, whatever the backends' state.
    pub async fn start(settings: &Settings) -> Self {
        let scratch = Scratch::new();
        let file = scratch.file("warmgate.yaml", settings.to_string());
        Self::start_with(scratch, file).await
    }

    /// Starts with a file that is there already.
    pub async fn start_with(scratch: Scratch, file: PathBuf) -> Self {
        logs::collect();
        let config = warmgate::config::load(&file).unwrap_or_else(|problems| panic!("{problems}"));
        let server = Server::start(config, Some(file.clone())).await.unwrap();
        Self { server, file, scratch }
    }

    /// Starts and waits until every one of `engines` is healthy.
    pub async fn with(settings: &Settings, engines: &[&Engine]) -> Self {
        let proxy = Self::start(settings).await;
        for engine in engines {
            proxy.until_state(engine.name(), "healthy").await;
        }
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        self.server.addresses()
    }

    pub fn admin(&self) -> SocketAddr {
        self.server.admin_address()
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// A chat request over a connection of its own.
    pub async fn chat(&self, body: &Value) -> Reply {
        post_chat(self.address(), body).await
    }

    /// GET /backends, the part of this backend; null if it is not there.
    pub async fn backend(&self, name: &str) -> Value {
        backend(self.admin(), name).await
    }

    pub async fn state(&self, name: &str) -> String {
        self.backend(name).await["state"].as_str().unwrap_or("absent").to_owned()
    }

    pub async fn until_state(&self, name: &str, state: &str) {
        eventually(&format!("{name} is {state}"), async || self.state(name).await == state).await;
    }

    /// What /explain says of this backend for `body`.
    pub async fn explained(&self, body: &Value, name: &str) -> Value {
        let explanation = ask(self.admin(), "POST", "/explain", &body.to_string()).await.json();
        let backends = explanation["backends"].as_array().expect("an explanation has backends");
        backends.iter().find(|backend| backend["name"] == name).cloned().unwrap_or_default()
    }

    /// Prompt tokens of `body` that are believed cached there.
    pub async fn matched_tokens(&self, body: &Value, name: &str) -> u64 {
        self.explained(body, name).await["matched_tokens"].as_u64().unwrap_or(0)
    }

    /// The value of the one series that starts like this; none if there is none.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let text = get(self.admin(), "/metrics").await.body;
        text.lines().find(|line| line.starts_with(series))?.rsplit(' ').next()?.parse().ok()
    }

    /// Puts other settings in the file, without a moment in which it is half written.
    pub fn rewrite(&self, settings: &Settings) {
        let next = self.scratch.file("next", settings.to_string());
        std::fs::rename(next, &self.file).unwrap();
    }

    /// POST /reload.
    pub async fn reload(&self) -> Reply {
        ask(self.admin(), "POST", "/reload", "").await
    }

    /// Puts other settings in force. Which of the file's watcher and the command applies them is left open.
    pub async fn apply(&self, settings: &Settings) {
        self.rewrite(settings);
        let reply = self.reload().await;
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
}

/// GET /backends at `admin`, the part of this backend.
pub async fn backend(admin: SocketAddr, name: &str) -> Value {
    let report = get(admin, "/backends").await.json();
    let pools = report["pools"].as_array().expect("a report has pools");
    let mut backends = pools.iter().filter_map(|pool| pool["backends"].as_array()).flatten();
    backends.find(|backend| backend["name"] == name).cloned().unwrap_or_default()
}
