//! What `warmgate check` says of a configuration that is right: its size, and what is worth a second look.

use super::problem::counted;
use super::{BackendUrl, Config, Host, Listener, Pool, Protocol};
use std::path::Path;

/// One line that `origin` is good, and a line for each of [`notes`].
pub fn render(origin: &str, config: &Config) -> String {
    let backends = config.pools.iter().map(|pool| pool.backends.len()).sum();
    let mut text = format!(
        "{origin}: ok: {}, {}, {}",
        counted(config.listeners.len(), "listener"),
        counted(config.pools.len(), "pool"),
        counted(backends, "backend")
    );
    for note in notes(config) {
        text.push_str(&format!("\n{origin}: note: {note}"));
    }
    text
}

/// What is allowed but may not be meant. Looks at the files that the configuration names.
pub fn notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for (at, listener) in config.listeners.iter().enumerate() {
        if listener.address.port() == 0 {
            notes.push(format!("listeners[{at}].address: port 0: the system chooses another one at each start"));
        }
        if let Protocol::Tls(tls) = &listener.protocol
            && others_can_read(&tls.key)
        {
            let path = tls.key.display();
            notes.push(format!("listeners[{at}].tls.key: every user can read {path}; chmod 640 or 600 it"));
        }
    }
    if !config.admin.address.ip().is_loopback() {
        let address = config.admin.address;
        notes.push(format!("admin.address: whoever reaches {address} can drain and reload: it asks for no password"));
    }
    config.pools.iter().for_each(|pool| notes.extend(pool_notes(pool, &config.listeners)));
    if config.pools.iter().all(|pool| !pool.models.is_empty()) {
        notes.push(
            "pools: a request for a model that no pool lists gets 404, as every pool lists its models".to_owned(),
        );
    }
    notes
}

fn pool_notes(pool: &Pool, listeners: &[Listener]) -> Vec<String> {
    let mut notes = Vec::new();
    if pool.backends.is_empty() {
        notes.push(format!("pool {}: no backends: its requests get 503 until a reload adds one", pool.name));
    }
    if pool.kv_events.enabled && pool.tokenizer.is_none() {
        notes.push(format!(
            "pool {}: kv_events without a tokenizer: only prompts of token ids can be looked up in them",
            pool.name
        ));
    }
    if pool.queue.keep_alive.is_some_and(|interval| interval >= pool.queue.max_wait) {
        notes.push(format!(
            "pool {}: queue.keep_alive is not shorter than queue.max_wait, so nothing waits for long enough",
            pool.name
        ));
    }
    if pool.hedging.after.is_some() && pool.backends.len() < 2 {
        notes.push(format!("pool {}: hedging needs a second backend", pool.name));
    }
    if pool.health.timeout > pool.health.interval {
        notes.push(format!(
            "pool {}: health.timeout is longer than health.interval, so probes may come late",
            pool.name
        ));
    }
    for backend in &pool.backends {
        if listeners.iter().any(|listener| is_same_place(listener, &backend.url)) {
            notes.push(format!("pool {}: {} is a listener of warmgate itself: a loop", pool.name, backend.url));
        }
    }
    notes
}

fn is_same_place(listener: &Listener, url: &BackendUrl) -> bool {
    let ip = listener.address.ip();
    let same_host = match url.host {
        Host::Ip(host) => host == ip || (ip.is_unspecified() && host.is_loopback()),
        Host::Name(_) => url.host.is_loopback() && (ip.is_loopback() || ip.is_unspecified()),
    };
    same_host && url.port.get() == listener.address.port()
}

#[cfg(unix)]
fn others_can_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    const READABLE_BY_OTHERS: u32 = 0o004;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & READABLE_BY_OTHERS != 0)
}

#[cfg(not(unix))]
fn others_can_read(_path: &Path) -> bool {
    false
}
