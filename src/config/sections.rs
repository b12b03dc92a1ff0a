//! The checked sections of the configuration. Each key's default and range are those of `file`, repeated in
//! `conf/example.yaml`, where a test compares them with it.

mod auth;
mod exact;
mod queue;
mod timing;
mod tls;
mod upgrade;

pub use auth::{Auth, Key, KeyLimits};
pub use exact::{EventEndpoint, KvEvents, Secret, Tokenizer};
pub use queue::{Hedging, MaxInFlight, Queue};
pub use timing::{Drain, Timeouts};
pub use tls::{CertificateFiles, ClientCertificates, Tls, TlsVersion, UpstreamTls, Verify};
pub(super) use tls::{ClientsShow, MAX_CERTIFICATES};
pub use upgrade::Upgrade;

use super::url::BackendUrl;
use http::HeaderName;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// A value that the file gives by name.
pub trait Choice: Copy + PartialEq + 'static {
    /// Every name with its value.
    const NAMES: &'static [(&'static str, Self)];

    /// The name as the file spells it, for logs and metrics.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

/// An address where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Where to listen. Port 0 lets the system choose one.
    pub address: SocketAddr,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Whether callers need a key here, if there are keys; true.
    pub requires_key: bool,
}

/// What a listener speaks. HTTP/2 without TLS has listeners of its own: telling it from HTTP/1.1 by its first bytes
/// would make short first requests wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 (no `tls`, no `h2c`).
    Http,
    /// HTTP/1.1 and HTTP/2 over TLS (`tls`).
    Tls(Tls),
    /// HTTP/2 without TLS (`h2c: true`).
    H2c,
}

/// The operators' listener: metrics, readiness, drain, reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where to listen; 127.0.0.1:9090. Other machines can reach it only with a token.
    pub address: SocketAddr,
    /// What operators have to send as a bearer token: the content of a file; `None`, in the file none.
    pub token: Option<Secret>,
    /// What is shown without it; /healthz and /readyz.
    pub open_pages: Vec<AdminPage>,
}

/// A page of the operators' listener that changes nothing and may be open to all who reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminPage {
    /// Whether the process lives.
    Healthz,
    /// Whether it can serve.
    Readyz,
    /// Everything counted, by the names of pools, backends and callers.
    Metrics,
}

/// The process and its client connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Worker threads, 1 to 1024; `None`, in the file 0, is one per core.
    pub threads: Option<NonZeroU32>,
    /// How long a client's connection may stay open between requests; 60 s, 1 s to 1 h.
    pub keepalive_timeout: Duration,
    /// Bytes of a request's header lines; 64 KiB, 4 KiB to 1 MiB.
    pub max_header_bytes: u64,
    /// How long requests are still accepted after a stop, with /readyz at 503; 5 s, 0 to 5 min.
    pub drain_delay: Duration,
    /// How long in-flight requests may then go on; 300 s, 0 to 24 h.
    pub drain_timeout: Duration,
    /// How long a client may take to accept a part of its response; 60 s, 1 s to 1 h.
    pub write_timeout: Duration,
    /// Whether responses carry the `x-warmgate-*` headers; true.
    pub response_headers: bool,
    /// What happens when another process takes over.
    pub upgrade: Upgrade,
}

/// What requests may take up while they wait for a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one request's body; 64 MiB, 1 KiB to 4 GiB.
    pub max_body_bytes: u64,
    /// Bytes of all buffered bodies together; 1 GiB, 1 MiB to 1024 GiB, at least `max_body_bytes`.
    pub max_buffered_bytes: u64,
    /// How long a request waits for room among them before it is rejected; 5 s, 0 to 1 min.
    pub buffer_wait: Duration,
    /// How long a request's header may take from its first byte, the first one from the connection's start; 10 s, 100 ms
    /// to 1 min.
    pub header_timeout: Duration,
    /// How long reading one body may take; 60 s, 1 s to 1 h.
    pub body_timeout: Duration,
    /// Connections of clients at a time, over all listeners; 16384, 1 to 1000000.
    pub max_connections: NonZeroU32,
    /// The same from one address (of IPv6, from one network of 64 bits); 4096, 1 to 1000000.
    pub max_connections_per_address: NonZeroU32,
}

/// The locality index.
#[derive(Debug, Clone, PartialEq)]
pub struct Locality {
    /// Bytes of the whole index; 512 MiB, 1 MiB to 1024 GiB.
    pub max_bytes: u64,
    /// Prompt bytes that make a token, until learned from `usage`; 4.0, 0.5 to 32.
    pub bytes_per_token: f64,
    /// Bytes for what KV events tell, besides; 1 GiB, 1 MiB to 1024 GiB.
    pub max_event_bytes: u64,
}

/// Second attempts at another backend, before any byte of a response.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Attempts of one request, the first included; 3, 1 to 10. A stale pooled connection is repeated once besides.
    pub max_attempts: NonZeroU32,
    /// Retries as a share of requests; 0.2, 0 to 1.
    pub budget: f64,
    /// Response statuses that are retried, ascending; some of 502, 503 and 504, by default all.
    pub statuses: Vec<u16>,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// Least serious message logged; info.
    pub level: log::LevelFilter,
    /// Where the line of each request goes; stdout.
    pub access_log: AccessLog,
    /// Where the block trace goes; none, in the file no such section, records nothing.
    pub block_trace: Option<BlockTrace>,
}

/// The recording of lengths and salted block ids of the requests served, for `warmgate simulate --trace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockTrace {
    /// The newest file, by its absolute path; older ones have `.1`, `.2`, ... behind it.
    pub file: PathBuf,
    /// Bytes of one file; 64 MiB, 1 MiB to 64 GiB.
    pub max_bytes: u64,
    /// Files kept; 4, 1 to 1000.
    pub files: NonZeroU32,
}

/// Where access-log lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLog {
    /// Standard output (`stdout`).
    Stdout,
    /// Standard error (`stderr`).
    Stderr,
    /// Nowhere (`off`).
    Off,
    /// The end of this file, by its absolute path.
    File(PathBuf),
}

/// Backends that serve the same models.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Its name in logs and metrics; unique, 1 to 64 of `A-Za-z0-9_.-`.
    pub name: String,
    /// The `model` values of its requests; empty for the one pool that takes all others.
    pub models: Vec<String>,
    /// What runs at the backends; generic.
    pub engine: Engine,
    /// How a backend is chosen; cost.
    pub policy: Policy,
    /// Whether what other policies would have got is counted; true.
    pub shadow: bool,
    /// The request header that names a session, before the keys in bodies; `None`, in the file none.
    pub session_header: Option<HeaderName>,
    /// Load above which the warmest backend is passed over, as a multiple of the mean; 2.0, 1 to 100.
    /// For `locality_first` and `consistent_hash`.
    pub overload_factor: f64,
    /// How the price of a prompt token grows with the tokens before it (K of work(u, n)); 0.0, 0 to 0.01.
    pub quadratic_cost: f64,
    /// Tokens of a block, until the engine reports its own; 16, 1 to 8192.
    pub block_tokens: NonZeroU32,
    /// Tokens of KV cache of one backend, until the engine reports its own; 400000, 1 to 1000000000, at least
    /// `block_tokens`.
    pub kv_tokens: NonZeroU32,
    /// The key that the backends want to hear, with requests and from this program itself (probes, scrapes and the
    /// like): the content of a file; `None`, in the file none.
    pub api_key: Option<Secret>,
    /// Whether requests keep the credentials that their callers sent, in place of `api_key`; false.
    pub forward_credentials: bool,
    /// How prompts become token ids; none, in the file no such section, cuts them by bytes.
    pub tokenizer: Option<Tokenizer>,
    /// How its backends with https urls are spoken to, unless they say otherwise.
    pub tls: UpstreamTls,
    /// What its engines tell of their caches.
    pub kv_events: KvEvents,
    /// Probes.
    pub health: Health,
    /// Scrapes.
    pub metrics: Metrics,
    /// Exclusion because real requests failed.
    pub ejection: Ejection,
    /// Requests in flight at one backend; auto, or 1 to 1000000, or none.
    pub max_in_flight: MaxInFlight,
    /// Prefill pending at one backend, by the time that it takes; 5 s, 10 ms to 1 h, or none.
    pub max_pending_prefill: Option<Duration>,
    /// What waits when all backends have that.
    pub queue: Queue,
    /// Second attempts beside the first.
    pub hedging: Hedging,
    /// Limits of a request's time.
    pub timeouts: Timeouts,
    /// Whether the header of a streamed answer waits for what comes first; true.
    pub hold_header: bool,
    /// How a backend leaves.
    pub drain: Drain,
    /// How long an idle upstream connection is kept; 4 s, 100 ms to 1 h. Engines on uvicorn close theirs after 5 s.
    pub keepalive_idle: Duration,
    /// The backends; possibly none yet.
    pub backends: Vec<Backend>,
}

/// The engines that are known by their metrics and probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Anything that speaks the OpenAI API.
    Generic,
}

/// The ways to choose a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The lowest predicted cost.
    Cost,
    /// The warmest backend unless overloaded.
    LocalityFirst,
    /// By the prefix alone.
    PrefixAffinity,
    /// By the prefix, with bounded load.
    ConsistentHash,
    /// The fewest in-flight.
    LeastRequest,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// Each in turn.
    RoundRobin,
    /// Any.
    Random,
}

/// Active probes of each backend of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// What is asked for; `auto` in the file is /health, for sglang /ready (its /health makes a token).
    pub path: String,
    /// Between probes; 2 s, 100 ms to 5 min.
    pub interval: Duration,
    /// For one probe; 2 s, 10 ms to 1 min.
    pub timeout: Duration,
    /// Successes that make a backend healthy; 1, 1 to 100.
    pub rise: NonZeroU32,
    /// Failures that make it unhealthy; 3, 1 to 100.
    pub fall: NonZeroU32,
}

/// Scrapes of each backend's own metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Whether to; `auto` in the file is true but for `generic`, whose metrics are not known.
    pub enabled: bool,
    /// What is asked for; /metrics.
    pub path: String,
    /// Between scrapes; 1 s, 100 ms to 5 min.
    pub interval: Duration,
    /// For one scrape; 1 s, 10 ms to 1 min.
    pub timeout: Duration,
    /// Age from which a value is not used; 10 s, 100 ms to 1 h, longer than `interval`.
    pub stale_after: Duration,
}

/// Exclusion of a backend because real requests failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row that eject; 5, 1 to 1000. A refused or broken connection counts as two, as does an answer that was
    /// given up, or silence beyond a limit.
    pub failures: NonZeroU32,
    /// How long the first ejection lasts; each next one twice as long. 5 s, 100 ms to 1 h.
    pub base: Duration,
    /// The longest ejection; 60 s, 100 ms to 24 h, at least `base`.
    pub max: Duration,
    /// No token for this long while requests are held counts as failed; 60 s, 1 s to 1 h.
    pub stuck_after: Duration,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Where it is reached; unique in its pool. Two pools may share one, for models that one engine serves.
    pub url: BackendUrl,
    /// Its name in logs, metrics and admin paths; unique in its pool, by default `HOST:PORT` of `url`.
    pub name: String,
    /// The data-parallel rank of the engine that it is, if the engine has several.
    pub rank: Option<u32>,
    /// Where it publishes KV events; `None`, in the file no such section, asks the engine.
    pub kv_events: Option<EventEndpoint>,
    /// How it is spoken to if its url is https; as the pool's `tls` where it has no such section of its own.
    pub tls: UpstreamTls,
}

// === impl Listener ===

impl Listener {
    /// What cannot change about it while its socket is open: its address, and which protocol is spoken there.
    pub fn place(&self) -> (SocketAddr, std::mem::Discriminant<Protocol>) {
        (self.address, std::mem::discriminant(&self.protocol))
    }
}

// === impl Choice ===

impl Choice for Engine {
    const NAMES: &'static [(&'static str, Self)] =
        &[("vllm", Self::Vllm), ("sglang", Self::Sglang), ("generic", Self::Generic)];
}

impl Choice for AdminPage {
    const NAMES: &'static [(&'static str, Self)] =
        &[("/healthz", Self::Healthz), ("/readyz", Self::Readyz), ("/metrics", Self::Metrics)];
}

impl Choice for Policy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("cost", Self::Cost),
        ("locality_first", Self::LocalityFirst),
        ("prefix_affinity", Self::PrefixAffinity),
        ("consistent_hash", Self::ConsistentHash),
        ("least_request", Self::LeastRequest),
        ("power_of_two", Self::PowerOfTwo),
        ("round_robin", Self::RoundRobin),
        ("random", Self::Random),
    ];
}

impl Choice for log::LevelFilter {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}
