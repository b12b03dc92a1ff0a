//! The proxy under test, in this process, from a configuration text.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use warmgate::server::Server;

use super::backend::Fleet;
use super::client;
use super::eventually;

/// A configuration in the making: defaults, but that health is probed rarely and no access log is written.
pub struct Setup {
    sections: Vec<String>,
    pools: String,
    access_log: String,
}

/// A running proxy; it ends with the test's runtime.
pub struct Proxy {
    pub server: Server,
    /// Speaks HTTP/1.1.
    pub http: SocketAddr,
    /// Speaks HTTP/2 without TLS.
    pub h2c: SocketAddr,
    pub admin: SocketAddr,
}

/// What a proxy still holds for requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Held {
    pub in_flight: f64,
    pub decoding: f64,
    pub pending: f64,
    pub requests: f64,
    pub body_bytes: f64,
}

// === impl Setup ===

impl Setup {
    /// One pool `p` for every model.
    pub fn of(fleet: &Fleet) -> Self {
        Self::new().pool("p", fleet, "")
    }

    /// No pool yet.
    pub fn new() -> Self {
        Self { sections: Vec::new(), pools: String::new(), access_log: "off".into() }
    }

    /// Adds a pool with these further keys, as YAML in one line: `policy: random, models: [a]`.
    pub fn pool(mut self, name: &str, fleet: &Fleet, keys: &str) -> Self {
        let backends: Vec<_> = fleet.addresses().iter().map(|address| format!("{{url: 'http://{address}'}}")).collect();
        let keys = if keys.is_empty() { String::new() } else { format!(", {keys}") };
        let backends = backends.join(", ");
        self.pools.push_str(&format!(
            "  - {{name: {name}, health: {{interval: 5m, timeout: 20s}}, backends: [{backends}]{keys}}}\n"
        ));
        self
    }

    /// Adds a section in one line: `limits`, `max_body_bytes: 1MiB`.
    pub fn section(mut self, name: &str, keys: &str) -> Self {
        self.sections.push(format!("{name}: {{{keys}}}\n"));
        self
    }

    pub fn access_log(mut self, path: &Path) -> Self {
        self.access_log = path.display().to_string();
        self
    }

    /// Starts the proxy and waits until every backend is healthy.
    pub async fn start(self) -> Proxy {
        let text = format!(
            "listeners:\n  - {{address: '127.0.0.1:0'}}\n  - {{address: '127.0.0.1:0', h2c: true}}\n\
             admin: {{address: '127.0.0.1:0'}}\nlogging: {{access_log: '{}', level: 'off'}}\n{}pools:\n{}",
            self.access_log,
            self.sections.concat(),
            self.pools,
        );
        let config = warmgate::config::parse(&text, "test").unwrap_or_else(|problems| panic!("{problems}\n{text}"));
        let server = Server::start(config, None).await.unwrap();
        let addresses = server.addresses();
        let proxy = Proxy { http: addresses[0], h2c: addresses[1], admin: server.admin_address(), server };
        eventually("every backend is healthy", || async {
            proxy.backends().await.iter().all(|backend| backend["state"] == "healthy")
        })
        .await;
        proxy
    }
}

// === impl Proxy ===

impl Proxy {
    /// What `/backends` says of each backend, pool after pool.
    pub async fn backends(&self) -> Vec<Value> {
        let report: Value = client::get(self.admin, "/backends").await.json();
        let pools = report["pools"].as_array().expect("/backends lists the pools");
        pools.iter().flat_map(|pool| pool["backends"].as_array().expect("a pool lists its backends")).cloned().collect()
    }

    /// The state of the backend with this name, as one word.
    pub async fn state_of(&self, name: &str) -> String {
        let backends = self.backends().await;
        let backend = backends.iter().find(|backend| backend["name"] == name).expect("the backend is known");
        backend["state"].as_str().unwrap().to_owned()
    }

    /// The sum of all series of the metric `warmgate_NAME` whose labels contain `labels`.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = client::get(self.admin, "/metrics").await.text();
        sum(&text, name, labels)
    }

    /// What is held for requests at the moment.
    pub async fn held(&self) -> Held {
        let text = client::get(self.admin, "/metrics").await.text();
        Held {
            in_flight: sum(&text, "in_flight_requests", ""),
            decoding: sum(&text, "decoding_requests", ""),
            pending: sum(&text, "pending_prefill_tokens", ""),
            requests: sum(&text, "requests_in_service", ""),
            body_bytes: sum(&text, "buffered_body_bytes", ""),
        }
    }

    /// Waits until nothing is held any more.
    pub async fn let_go(&self) {
        eventually("every counter is back at 0", || async { self.held().await == Held::default() }).await;
    }
}

fn sum(text: &str, name: &str, labels: &str) -> f64 {
    let name = format!("warmgate_{name}");
    let series = text.lines().filter(|line| {
        line.strip_prefix(&name).is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
    });
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}
