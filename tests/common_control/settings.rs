//! Configurations for tests: everything quick, one pool unless said otherwise.

use std::fmt;
use std::net::SocketAddr;

use super::engine::Engine;

/// A configuration with one pool, as YAML by `to_string`. Sections are YAML flow mappings.
#[derive(Debug, Clone)]
pub struct Settings {
    pub listeners: String,
    pub admin: String,
    pub auth: String,
    pub server: String,
    pub locality: String,
    pub retry: String,
    pub logging: String,
    /// Engine, policy, and what else a pool has on one line.
    pub pool: String,
    pub health: String,
    pub metrics: String,
    pub ejection: String,
    pub timeouts: String,
    /// Tests that look at streams before their first token want to see the header.
    pub hold_header: bool,
    /// At once, so that what was removed is gone.
    pub drain: String,
    pub backends: Vec<(String, SocketAddr)>,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// More pools, each a line `- {...}`.
    pub more_pools: Vec<String>,
}

impl Settings {
    /// Quick probes, no metrics, ejections that last until the test ends, round-robin.
    pub fn new<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> Self {
        let backends = engines.into_iter().map(|engine| (engine.name().to_owned(), engine.address())).collect();
        Self {
            listeners: "[{address: '127.0.0.1:0'}]".into(),
            admin: "{address: '127.0.0.1:0'}".into(),
            auth: "{}".into(),
            server: "{drain_delay: 100ms, drain_timeout: 60s}".into(),
            locality: "{max_bytes: 16MiB}".into(),
            retry: "{max_attempts: 3, budget: 1.0}".into(),
            logging: "{access_log: 'off'}".into(),
            pool: "engine: generic, policy: round_robin".into(),
            health: "{interval: 100ms, timeout: 5s, rise: 1, fall: 3}".into(),
            metrics: "{enabled: false}".into(),
            ejection: "{failures: 3, base: 1h, max: 1h, stuck_after: 1h}".into(),
            timeouts: "{connect: 5s}".into(),
            hold_header: false,
            drain: "{deadline: 0s}".into(),
            backends,
            scheme: "http",
            more_pools: Vec::new(),
        }
    }

    /// For an engine with metrics, scraped often; the policy is `cost`.
    pub fn scraped<'a>(kind: &str, engines: impl IntoIterator<Item = &'a Engine>) -> Self {
        let pool = format!("engine: {kind}, policy: cost");
        let metrics = "{interval: 100ms, timeout: 5s, stale_after: 1s}".to_owned();
        let health = "{path: /health, interval: 100ms, timeout: 5s, rise: 1, fall: 3}".to_owned();
        Self { pool, metrics, health, ..Self::new(engines) }
    }

    /// With this key of the pool's line in place of what it is: `policy: cost`.
    pub fn policy(mut self, policy: &str) -> Self {
        let at = self.pool.find("policy:").expect("every pool line here names its policy");
        self.pool.truncate(at);
        self.pool.push_str(&format!("policy: {policy}"));
        self
    }

    /// Without the backend of this name.
    pub fn without(mut self, name: &str) -> Self {
        self.backends.retain(|(held, _)| held != name);
        self
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "listeners: {}", self.listeners)?;
        writeln!(f, "admin: {}", self.admin)?;
        writeln!(f, "auth: {}", self.auth)?;
        writeln!(f, "server: {}", self.server)?;
        writeln!(f, "locality: {}", self.locality)?;
        writeln!(f, "retry: {}", self.retry)?;
        writeln!(f, "logging: {}", self.logging)?;
        writeln!(f, "pools:")?;
        let backends: Vec<String> = self
            .backends
            .iter()
            .map(|(name, at)| format!("{{name: '{name}', url: '{}://{at}'}}", self.scheme))
            .collect();
        write!(f, "  - {{name: main, {}, health: {}, metrics: {}", self.pool, self.health, self.metrics)?;
        write!(f, ", ejection: {}, timeouts: {}", self.ejection, self.timeouts)?;
        write!(f, ", hold_header: {}, drain: {}", self.hold_header, self.drain)?;
        writeln!(f, ", backends: [{}]}}", backends.join(", "))?;
        for pool in &self.more_pools {
            writeln!(f, "  {pool}")?;
        }
        Ok(())
    }
}
