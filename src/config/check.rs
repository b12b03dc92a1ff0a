//! What `warmgate check` says of a configuration that is right: its size, and what is worth a second look.

use super::problem::counted;
use super::{Backend, BackendUrl, Config, Host, Listener, Pool, Protocol, Scheme, Secret, Verify};
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
        if let Protocol::Tls(tls) = &listener.protocol {
            let keys = tls.certificates.iter().map(|files| &files.key).filter(|key| others_can_read(key));
            notes.extend(keys.map(|key| format!("listeners[{at}].tls: {}", open_key(key))));
        }
    }
    if !config.admin.address.ip().is_loopback() {
        let address = config.admin.address;
        notes.push(format!("admin.address: the token goes to {address} in the clear: keep that network to operators"));
    }
    if config.auth.keys_file.is_some() && config.auth.keys.is_empty() {
        notes.push("auth.keys_file: it has no keys, so nobody can call".to_owned());
    }
    notes.extend(open_secrets(config));
    config.pools.iter().for_each(|pool| notes.extend(pool_notes(pool, &config.listeners)));
    if config.pools.iter().all(|pool| !pool.models.is_empty()) {
        notes.push(
            "pools: a request for a model that no pool lists gets 404, as every pool lists its models".to_owned(),
        );
    }
    notes
}

/// Files of keys and tokens that every user of this machine can read.
pub fn open_secrets(config: &Config) -> Vec<String> {
    let keys = config.auth.keys_file.as_deref().map(|path| ("auth.keys_file".to_owned(), path));
    let token = config.admin.token.as_ref().and_then(Secret::file).map(|path| ("admin.token_file".to_owned(), path));
    let pools = config.pools.iter().filter_map(|pool| {
        let path = pool.api_key.as_ref()?.file()?;
        Some((format!("pool {}: api_key_file", pool.name), path))
    });
    let files = keys.into_iter().chain(token).chain(pools).filter(|(_, path)| others_can_read(path));
    files.map(|(key, path)| format!("{key}: every user can read {}; chmod 640 or 600 it", path.display())).collect()
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
        notes.extend(tls_notes(backend).map(|note| format!("pool {}: {}: {note}", pool.name, backend.name)));
        if listeners.iter().any(|listener| is_same_place(listener, &backend.url)) {
            notes.push(format!("pool {}: {} is a listener of warmgate itself: a loop", pool.name, backend.url));
        }
    }
    notes
}

fn tls_notes(backend: &Backend) -> impl Iterator<Item = String> {
    let unchecked = match backend.tls.verify {
        _ if backend.url.scheme == Scheme::Http => None,
        Verify::Full => None,
        Verify::InsecureAnyName => Some("tls.verify: any backend with a certificate of its CA can stand in for it"),
        Verify::InsecureAnything => Some("tls.verify: whoever answers there is believed, and reads all prompts"),
    };
    let client = backend.tls.client.as_ref().filter(|files| others_can_read(&files.key));
    let key = client.map(|files| format!("tls.client_key: {}", open_key(&files.key)));
    unchecked.map(str::to_owned).into_iter().chain(key)
}

fn open_key(path: &Path) -> String {
    format!("every user can read {}; chmod 640 or 600 it", path.display())
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
