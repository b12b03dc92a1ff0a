//! The schema: every key with its kind, range and default, and what has to hold between keys.
//!
//! A function per section asks its [`Section`] for each key once. In each, all keys are read before a missing one makes
//! it give up, so that one mistake does not hide another. Where a value is wrong its default stands in: the
//! configuration is dropped then, and only the problems leave this file.

use super::apart::is_rotated_with;
use super::auth;
use super::exact;
use super::problem::Found;
use super::queue;
use super::reader::{Key, Place, Reader, Section};
use super::timing::{self, timeouts};
use super::tls;
use super::tree::Item;
use super::upgrade::upgrade;
use super::values as kind;
use super::{
    AccessLog, Admin, AdminPage, Backend, BlockTrace, Choice, Config, Ejection, Engine, Health, Limits, Listener,
    Locality, Logging, Metrics, Policy, Pool, Protocol, Retry, Server, Timeouts, UpstreamTls,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::Duration;

/// Most listeners: what one process hands to its successor.
const MAX_LISTENERS: usize = 32;
/// Most pools, models of a pool and backends of a pool: bounds on labels of metrics and on the work of a decision.
const MAX_POOLS: usize = 256;
const MAX_MODELS: usize = 1024;
const MAX_BACKENDS: usize = 1024;
/// Most connections: more than a machine has file descriptors for.
const MAX_CONNECTIONS: u32 = 1_000_000;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The configuration a file's tree says, and everything that is wrong with it: with a problem, it is not to be used but
/// for finding more of them. An error if the tree says none at all.
pub(super) fn read(tree: &Item) -> Result<(Config, Found), Found> {
    let mut reader = Reader::default();
    let config = reader.root(tree, root);
    let (problems, _) = reader.finish();
    match config {
        Some(config) => Ok((config, problems)),
        None => Err(problems),
    }
}

/// Every key of the schema.
pub(super) fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let mut reader = Reader::listing();
        reader.nothing(root);
        reader.finish().1
    });
    &KEYS
}

/// The paths of the keys of this name.
pub(super) fn keys_named(name: &str) -> Vec<&'static str> {
    keys().iter().map(|key| key.path.as_str()).filter(|path| path.rsplit('.').next() == Some(name)).collect()
}

fn root(file: &mut Section<'_, '_>) -> Config {
    let mut addresses = Vec::new();
    let listeners = file.sections("listeners", (1, MAX_LISTENERS), "- address: 127.0.0.1:8080", |section| {
        listener(section, &mut addresses)
    });
    let (admin_place, admin) = file.section("admin", |section| (section.place_of("address"), admin(section)));
    addresses.push((admin_place, admin.address));
    overlapping(file, &addresses);
    Config {
        listeners,
        admin,
        auth: file.section("auth", auth::auth),
        server: file.section("server", server),
        limits: file.section("limits", limits),
        locality: file.section("locality", locality),
        retry: file.section("retry", retry),
        logging: file.section("logging", logging),
        pools: file.sections("pools", (1, MAX_POOLS), "- name: llama", pool),
    }
}

fn listener(section: &mut Section<'_, '_>, addresses: &mut Vec<(Place, SocketAddr)>) -> Option<Listener> {
    let address = section.required("address", kind::address());
    let tls = section.optional_section("tls", tls::listener);
    let is_h2c = section.value("h2c", kind::flag(), false);
    let requires_key = section.value("requires_key", kind::flag(), true);
    let address = address?;
    addresses.push((section.place_of("address"), address));
    let protocol = match (section.has("tls"), is_h2c) {
        (true, true) => {
            section.reject("h2c", "expected false beside `tls`, which offers HTTP/2 anyway; or a listener of its own");
            return None;
        }
        (true, false) => Protocol::Tls(tls?),
        (false, true) => Protocol::H2c,
        (false, false) => Protocol::Http,
    };
    Some(Listener { address, protocol, requires_key })
}

/// Two sockets cannot have one address, nor one port where either takes every interface.
fn overlapping(file: &mut Section<'_, '_>, addresses: &[(Place, SocketAddr)]) {
    for (at, (place, address)) in addresses.iter().enumerate() {
        if let Some((first, _)) = addresses[..at].iter().find(|(_, first)| overlap(*first, *address)) {
            let right = format!("overlaps {} on line {}; expected another port", first.path, first.position.line);
            file.problem(place, Some(format!("`{address}`")), right);
        }
    }
}

fn overlap(left: SocketAddr, right: SocketAddr) -> bool {
    let takes = |left: SocketAddr, right: SocketAddr| {
        // `[::]` takes IPv4 as well, as Linux has it by default.
        left.ip().is_unspecified() && (left.is_ipv6() || right.is_ipv4())
    };
    let same_port = left.port() == right.port() && left.port() != 0;
    same_port && (left.ip() == right.ip() || takes(left, right) || takes(right, left))
}

fn admin(section: &mut Section<'_, '_>) -> Admin {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 9090));
    let address = section.value("address", kind::address(), local);
    let token = section.value("token_file", kind::secret_file_or_none(), None);
    let open_pages = section.values("open_paths", AdminPage::NAMES.len(), kind::choice());
    if !address.ip().is_loopback() && token.is_none() {
        section
            .reject("address", "reachable from other machines; expected 127.0.0.1:PORT, or a `token_file` beside it");
    }
    let open_pages = match open_pages {
        Some(given) => given.into_iter().map(|(_, page)| page).collect(),
        None => vec![AdminPage::Healthz, AdminPage::Readyz],
    };
    Admin { address, token, open_pages }
}

fn server(section: &mut Section<'_, '_>) -> Server {
    Server {
        threads: section.value("threads", kind::whole(0, 1024).map(NonZeroU32::new), None),
        keepalive_timeout: section.value("keepalive_timeout", kind::duration(secs(1), HOUR), MINUTE),
        max_header_bytes: section.value("max_header_bytes", kind::size(4 * KIB, MIB), 64 * KIB),
        drain_delay: section.value("drain_delay", kind::duration(Duration::ZERO, 5 * MINUTE), secs(5)),
        drain_timeout: section.value("drain_timeout", kind::duration(Duration::ZERO, DAY), secs(300)),
        write_timeout: section.value("write_timeout", kind::duration(secs(1), HOUR), MINUTE),
        response_headers: section.value("response_headers", kind::flag(), true),
        upgrade: section.section("upgrade", upgrade),
    }
}

fn limits(section: &mut Section<'_, '_>) -> Limits {
    let limits = Limits {
        max_body_bytes: section.value("max_body_bytes", kind::size(KIB, 4 * GIB), 64 * MIB),
        max_buffered_bytes: section.value("max_buffered_bytes", kind::size(MIB, 1024 * GIB), GIB),
        buffer_wait: section.value("buffer_wait", kind::duration(Duration::ZERO, MINUTE), secs(5)),
        header_timeout: section.value("header_timeout", kind::duration(millis(100), MINUTE), secs(10)),
        body_timeout: section.value("body_timeout", kind::duration(secs(1), HOUR), MINUTE),
        max_connections: section.value("max_connections", kind::count(MAX_CONNECTIONS), at_least_one(16_384)),
        max_connections_per_address: section.value(
            "max_connections_per_address",
            kind::count(MAX_CONNECTIONS),
            at_least_one(4_096),
        ),
    };
    if limits.max_buffered_bytes < limits.max_body_bytes {
        section.reject("max_buffered_bytes", "expected at least max_body_bytes, or the largest body never fits");
    }
    limits
}

fn locality(section: &mut Section<'_, '_>) -> Locality {
    Locality {
        max_bytes: section.value("max_bytes", kind::size(MIB, 1024 * GIB), 512 * MIB),
        bytes_per_token: section.value("bytes_per_token", kind::number(0.5, 32.0), 4.0),
        max_event_bytes: section.value("max_event_bytes", kind::size(MIB, 1024 * GIB), GIB),
    }
}

fn retry(section: &mut Section<'_, '_>) -> Retry {
    let statuses = match section.values("statuses", 3, kind::retried_status()) {
        Some(given) => {
            for (place, status) in &given {
                section.claim(place, "retry.statuses", &status.to_string());
            }
            let mut statuses: Vec<u16> = given.into_iter().map(|(_, status)| status).collect();
            statuses.sort_unstable();
            statuses
        }
        None => vec![502, 503, 504],
    };
    Retry {
        max_attempts: section.value("max_attempts", kind::count(10), at_least_one(3)),
        budget: section.value("budget", kind::number(0.0, 1.0), 0.2),
        statuses,
    }
}

fn logging(section: &mut Section<'_, '_>) -> Logging {
    let access_log = section.value("access_log", kind::access_log(), AccessLog::Stdout);
    let block_trace = section.optional_section("block_trace", |trace| block_trace(trace, &access_log));
    Logging { level: section.value("level", kind::choice(), log::LevelFilter::Info), access_log, block_trace }
}

fn block_trace(section: &mut Section<'_, '_>, access_log: &AccessLog) -> Option<BlockTrace> {
    let file = section.required("file", kind::file_path());
    let max_bytes = section.value("max_bytes", kind::size(MIB, 64 * GIB), 64 * MIB);
    let files = section.value("files", kind::count(1000), at_least_one(4));
    let file = file?;
    if matches!(access_log, AccessLog::File(log) if is_rotated_with(log, &file)) {
        let right =
            "expected another file than the access log's, also for older ones, which have .1, .2, ... behind it";
        section.reject("file", right);
    }
    Some(BlockTrace { file, max_bytes, files })
}

fn pool(section: &mut Section<'_, '_>) -> Option<Pool> {
    let name = section.required("name", kind::word(64, "_.-"));
    if let Some(name) = &name {
        section.claim(&section.place_of("name"), "pool name", name);
    }
    let models = models(section);
    let (max_in_flight, max_pending_prefill) = queue::limits(section);
    let engine = section.value("engine", kind::choice(), Engine::Generic);
    let tls = section.optional_section("tls", |tls| tls::upstream(tls, &UpstreamTls::default())).unwrap_or_default();
    let pool = Pool {
        models,
        engine,
        policy: section.value("policy", kind::choice(), Policy::Cost),
        shadow: section.value("shadow", kind::flag(), true),
        session_header: section.value("session_header", kind::header_or_none(), None),
        overload_factor: section.value("overload_factor", kind::number(1.0, 100.0), 2.0),
        quadratic_cost: section.value("quadratic_cost", kind::number(0.0, 0.01), 0.0),
        block_tokens: section.value("block_tokens", kind::count(8192), at_least_one(16)),
        kv_tokens: section.value("kv_tokens", kind::count(1_000_000_000), at_least_one(400_000)),
        api_key: section.value("api_key_file", kind::secret_file_or_none(), None),
        forward_credentials: section.value("forward_credentials", kind::flag(), false),
        tokenizer: section.optional_section("tokenizer", exact::tokenizer),
        kv_events: section.section("kv_events", exact::kv_events),
        health: section.section("health", |section| health(section, engine)),
        metrics: section.section("metrics", |section| metrics(section, engine)),
        ejection: section.section("ejection", ejection),
        max_in_flight,
        max_pending_prefill,
        queue: section.section("queue", queue::queue),
        hedging: section.section("hedging", queue::hedging),
        timeouts: section.section("timeouts", timeouts),
        hold_header: section.value("hold_header", kind::flag(), true),
        drain: section.section("drain", timing::drain),
        keepalive_idle: section.value("keepalive_idle", kind::duration(millis(100), HOUR), secs(4)),
        backends: backends(section, &tls),
        tls,
        name: name.unwrap_or_default(),
    };
    if pool.kv_tokens < pool.block_tokens {
        section.reject("kv_tokens", "expected at least block_tokens, or no block fits");
    }
    Some(pool)
}

fn models(section: &mut Section<'_, '_>) -> Vec<String> {
    let given = section.values("models", MAX_MODELS, kind::model()).unwrap_or_default();
    for (place, model) in &given {
        section.claim(place, "model", model);
    }
    // An item that could not be read still shows that models were meant.
    if section.is_empty_list("models") {
        let place = section.place_of("models");
        if let Some(first) = section.first_holder(&place, "pool without models", "") {
            let first = first.path.trim_end_matches(".models").to_owned();
            let right = format!("{first} takes every other model already; expected models, e.g. [llama-3-8b]");
            section.reject("models", right);
        }
    }
    given.into_iter().map(|(_, model)| model).collect()
}

fn health(section: &mut Section<'_, '_>, engine: Engine) -> Health {
    let usual = match engine {
        Engine::Sglang => "/ready",
        Engine::Vllm | Engine::Generic => "/health",
    };
    Health {
        path: section.value("path", kind::http_path_or_auto(), None).unwrap_or_else(|| usual.to_owned()),
        interval: section.value("interval", kind::duration(millis(100), 5 * MINUTE), secs(2)),
        timeout: section.value("timeout", kind::duration(millis(10), MINUTE), secs(2)),
        rise: section.value("rise", kind::count(100), at_least_one(1)),
        fall: section.value("fall", kind::count(100), at_least_one(3)),
    }
}

fn metrics(section: &mut Section<'_, '_>, engine: Engine) -> Metrics {
    let usual = engine != Engine::Generic;
    let metrics = Metrics {
        enabled: section.value("enabled", kind::flag_or_auto(), None).unwrap_or(usual),
        path: section.value("path", kind::http_path(), "/metrics".to_owned()),
        interval: section.value("interval", kind::duration(millis(100), 5 * MINUTE), secs(1)),
        timeout: section.value("timeout", kind::duration(millis(10), MINUTE), secs(1)),
        stale_after: section.value("stale_after", kind::duration(millis(100), HOUR), secs(10)),
    };
    if metrics.stale_after <= metrics.interval {
        section.reject("stale_after", "expected longer than interval, or every value is stale before the next");
    }
    metrics
}

fn ejection(section: &mut Section<'_, '_>) -> Ejection {
    let ejection = Ejection {
        failures: section.value("failures", kind::count(1000), at_least_one(5)),
        base: section.value("base", kind::duration(millis(100), HOUR), secs(5)),
        max: section.value("max", kind::duration(millis(100), DAY), MINUTE),
        stuck_after: section.value("stuck_after", kind::duration(secs(1), HOUR), MINUTE),
    };
    if ejection.max < ejection.base {
        section.reject("max", "expected at least base");
    }
    ejection
}

fn backends(pool: &mut Section<'_, '_>, usual_tls: &UpstreamTls) -> Vec<Backend> {
    let scope = pool.path().to_owned();
    let backends = pool.sections("backends", (0, MAX_BACKENDS), "- url: http://10.0.0.7:8000", |section| {
        let url = section.required("url", kind::url());
        let name = section.optional("name", kind::word(256, "_.:[]-"));
        let ranks = exact::ranks(section);
        let kv_events = section.optional_section("kv_events", |events| exact::event_endpoint(events, ranks));
        let tls = tls::of_backend(section, url.as_ref(), usual_tls);
        let url = url?;
        let is_first = section.claim(&section.place_of("url"), &format!("{scope} url"), &url.to_string());
        // A repeated url without a name repeats the name as well, which is not worth a second problem.
        let claims_name = is_first || name.is_some();
        let backend = Backend { name: name.unwrap_or_else(|| url.authority()), url, rank: None, kv_events, tls };
        let backends = exact::by_rank(backend, ranks);
        for events in backends.iter().filter_map(|backend| backend.kv_events.as_ref()) {
            section.claim(&section.place_of("kv_events"), &format!("{scope} kv_events.endpoint"), &events.endpoint);
        }
        for backend in backends.iter().filter(|_| claims_name) {
            section.claim(&section.place_of("name"), &format!("{scope} name"), &backend.name);
        }
        Some(backends)
    });
    backends.into_iter().flatten().collect()
}

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A default count.
pub(super) const fn at_least_one(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("defaults are written above zero")
}

// === impl Default: a section that the file leaves out ===

macro_rules! default_of_nothing {
    ($($section:ident by $read:ident),+) => {
        $(impl Default for $section {
            fn default() -> Self {
                Reader::default().nothing($read)
            }
        })+
    };
}

default_of_nothing! {
    Admin by admin, Server by server, Limits by limits, Locality by locality, Retry by retry, Logging by logging,
    Ejection by ejection, Timeouts by timeouts
}
