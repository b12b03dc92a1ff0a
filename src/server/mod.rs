//! The composition root: from a configuration to a running process, and from a stop to its end.

mod door;
mod heritage;
pub mod listen;
mod program;
mod retire;
mod run;
mod signals;
mod upgrade;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pingora_core::apps::{HttpServerOptions, ServerApp};
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::http::v2::server::default_h2_options;
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use run::{RunError, run};
pub use upgrade::UpgradeError;

pub use crate::handover::HandoverError;

pub(crate) use run::with_causes;

use crate::admin::{Admin, CallerCounts, Certificates, Events, Gauges, Shadows};
use crate::config::{Config, Protocol};
use crate::control::{self, Handle, TokenizerError};
use crate::handover::{Duplicate, Listening, Role};
use crate::proxy::Gateway;
use crate::state::{LogError, State};
use crate::tls::{self, Endpoint};
use crate::{time, without_stalling};
use door::Door;
use heritage::Heritage;
use listen::{Listener, Staff};
use workers::Workers;

/// How long an HTTP/2 connection without a stream is kept.
const H2_IDLE_TIME: Duration = Duration::from_secs(300);

/// What a client may send ahead on an HTTP/2 stream and on a connection, bytes. At the protocol's 64 KiB a 16 MiB prompt
/// takes 256 round trips.
const H2_STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const H2_CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// How long whoever has connected just before the listeners closed has to say what for.
const FIRST_REQUEST_TIME: Duration = Duration::from_millis(250);

/// How long connections that were made before the process began wait for the first probes: as long as a probe may take, by
/// default.
const FIRST_PROBES_TIME: Duration = Duration::from_secs(2);
const FIRST_PROBES_PAUSE: Duration = Duration::from_millis(5);

/// How long connections have to close after the last request.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// Why the process did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}; {}", bind_advice(source))]
    Bind {
        /// The address, as configured.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Files of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Faults),
    /// The access log or the block trace cannot be opened.
    #[error("a log cannot be used; its folder has to exist, and this user has to be able to write there")]
    Log(#[from] LogError),
    /// A tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The process that this one was to take over from is gone, or has given it up.
    #[error("the process that was to be replaced does not wait any more")]
    Predecessor(#[source] io::Error),
    /// The system refused something else.
    #[error("cannot start")]
    System(#[source] io::Error),
}

/// A process that serves. It goes on until [`Server::stop`]; dropping it ends its listeners.
pub struct Server {
    state: Arc<State>,
    control: Handle,
    /// What each listener became, in the order of the configuration.
    addresses: Vec<SocketAddr>,
    admin: SocketAddr,
    apps: Vec<Arc<HttpProxy<Gateway>>>,
    stop_accepting: watch::Sender<bool>,
    listeners: JoinSet<()>,
    stop_admin: watch::Sender<bool>,
    /// Every listener's socket once more, for a process that takes over. Given up with the listeners.
    duplicates: Vec<Duplicate>,
    /// Who serves clients.
    _workers: Workers,
}

// === impl Server ===

impl Server {
    /// Binds every listener and starts to serve. `source` is the file that reloads read. Must be called on a Tokio
    /// runtime.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub async fn start(config: Config, source: Option<PathBuf>) -> Result<Self, StartError> {
        Self::start_with(config, source, &mut Heritage::default()).await
    }

    /// The same with what was there before this process.
    async fn start_with(config: Config, source: Option<PathBuf>, heritage: &mut Heritage) -> Result<Self, StartError> {
        let tls = Arc::new(tls::Store::start(&config)?);
        let (mut bound, mut duplicates) = (Vec::with_capacity(config.listeners.len()), Vec::new());
        for (at, listener) in config.listeners.iter().enumerate() {
            let is_h2c = listener.protocol == Protocol::H2c;
            let listening = Listening { role: Role::Clients, address: listener.address };
            let (socket, duplicate) = open(listening, tls.endpoint(at), heritage).await?;
            let socket = if is_h2c { socket.awaiting_preface() } else { socket };
            bound.push((socket, is_h2c, listener.requires_key));
            duplicates.push(duplicate);
        }
        let listening = Listening { role: Role::Operators, address: config.admin.address };
        let (admin, duplicate) = open(listening, None, heritage).await?;
        duplicates.push(duplicate);
        heritage.close_rest();
        let state = Arc::new(State::new(config)?);
        state.metrics.add_collector(Box::new(Gauges::new(Arc::clone(&state))));
        state.metrics.add_collector(Box::new(Events::new(Arc::clone(&state))));
        state.metrics.add_collector(Box::new(Shadows::new(Arc::clone(&state))));
        state.metrics.add_collector(Box::new(Certificates::new(Arc::clone(&tls))));
        state.metrics.add_collector(Box::new(CallerCounts::new(Arc::clone(&state))));
        let max_bytes = state.config.load().server.upgrade.max_state_bytes;
        let learned = || without_stalling(|| heritage.learned(max_bytes));
        let (control, _) = control::start_with(Arc::clone(&state), source, tls, learned)?;
        if heritage.may_have_waiting() {
            until_it_can_serve(&state).await;
        }
        let server = Self::serve(state, control, bound, admin).map_err(StartError::System)?;
        Ok(Self { duplicates, ..server })
    }

    fn serve(
        state: Arc<State>,
        control: Handle,
        bound: Vec<(Listener, bool, bool)>,
        admin: Listener,
    ) -> io::Result<Self> {
        let (stop_accepting, stop) = watch::channel(false);
        let (stop_admin, admin_stop) = watch::channel(false);
        let (mut listeners, mut addresses, mut apps) = (JoinSet::new(), Vec::new(), Vec::new());
        let workers = Workers::start(thread_count(&state.config.load()))?;
        // Making one reads the certificates that the system trusts.
        let connector = Arc::new(TransportConnector::new(None));
        for (listener, is_h2c, requires_key) in bound {
            addresses.push(listener.local_addr()?);
            let new = || Arc::new(application(&state, is_h2c, requires_key, &connector));
            let each: Vec<_> = (0..workers.count()).map(|_| new()).collect();
            apps.extend_from_slice(&each);
            let staff = Staff::Workers(workers.roster(), each);
            listeners.spawn(listener.serve(staff, Door::counted(&state), state.lifecycle.watch_drain(), stop.clone()));
        }
        let admin_address = admin.local_addr()?;
        let app = Arc::new(Admin::new(Arc::clone(&state), control.clone()));
        let door = Door::Open(Arc::clone(&state));
        listeners.spawn(admin.serve(Staff::Here(app), door, admin_stop.clone(), admin_stop));
        let (admin, duplicates, _workers) = (admin_address, Vec::new(), workers);
        Ok(Self { state, control, addresses, admin, apps, stop_accepting, listeners, stop_admin, duplicates, _workers })
    }

    /// Where clients connect, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// The shared state.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Commands to the control loop.
    pub fn control(&self) -> &Handle {
        &self.control
    }

    /// Winds down: fails readiness, goes on accepting for `drain_delay` so that whoever balances in front can follow,
    /// lets requests end for up to `drain_timeout`, and returns as soon as none is left. The requests that were cut.
    pub async fn stop(mut self) -> usize {
        let config = self.state.config.load_full();
        self.state.lifecycle.drain();
        sleep(config.server.drain_delay).await;
        self.duplicates.clear();
        self.stop_accepting.send_replace(true);
        let _ = timeout(FIRST_REQUEST_TIME, self.state.lifecycle.closed()).await;
        for app in &self.apps {
            // Kept connections that wait for their next request are closed.
            app.cleanup().await;
        }
        let idle = timeout(config.server.drain_timeout, self.state.lifecycle.idle()).await;
        self.stop_admin.send_replace(true);
        while self.listeners.join_next().await.is_some() {}
        // Who is left after that is told by the caller, in what it logs.
        if idle.is_ok() {
            // An HTTP/2 connection may not have sent yet what the last requests gave it. One that stays open for other
            // reasons is not waited for.
            let _ = timeout(CLOSING_TIME, self.state.lifecycle.closed()).await;
        }
        self.state.flush_logs();
        self.state.lifecycle.requests()
    }
}

/// Threads that serve clients: as many as configured, else one for each core.
fn thread_count(config: &Config) -> NonZeroUsize {
    let configured = config.server.threads.and_then(|threads| NonZeroUsize::try_from(threads).ok());
    configured.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
}

/// Waits, for a moment, for what `/readyz` waits for: connections that wait already would be refused a backend.
async fn until_it_can_serve(state: &State) {
    let can_serve = || state.snapshot.load().pools().iter().all(|pool| pool.can_serve(time::now()));
    let waiting = async {
        while !can_serve() {
            sleep(FIRST_PROBES_PAUSE).await;
        }
    };
    // A pool may have no backend that can serve. Its clients have to be told.
    let _ = timeout(FIRST_PROBES_TIME, waiting).await;
}

/// A listener, on a socket that is there already or on a new one; and the socket once more.
async fn open(
    listening: Listening,
    tls: Option<Arc<Endpoint>>,
    heritage: &mut Heritage,
) -> Result<(Listener, Duplicate), StartError> {
    let address = listening.address;
    let failed = |source| StartError::Bind { address, source };
    let listener = match heritage.take(listening) {
        Some(socket) => Listener::over(socket, tls),
        None => Listener::bind(address, tls).await,
    };
    let listener = listener.map_err(failed)?;
    let socket = listener.duplicate().map_err(StartError::System)?;
    Ok((listener, Duplicate { listening, socket }))
}

/// What to do about an address that cannot be listened on.
fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process has it (`ss -ltnp` shows which): stop that or choose another port",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: grant it or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has it: choose one that `ip address` lists",
        _ => "choose another address",
    }
}

fn application(
    state: &Arc<State>,
    is_h2c: bool,
    requires_key: bool,
    connector: &Arc<TransportConnector>,
) -> HttpProxy<Gateway> {
    let gateway = Gateway::new(Arc::clone(state), requires_key, Arc::clone(connector));
    let mut proxy = http_proxy(&Arc::new(ServerConf::default()), gateway);
    let mut options = HttpServerOptions::default();
    options.h2c = is_h2c;
    options.h2_idle_timeout = Some(H2_IDLE_TIME);
    proxy.server_options = Some(options);
    let mut h2 = default_h2_options();
    h2.initial_window_size(H2_STREAM_WINDOW_BYTES).initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES);
    proxy.h2_options = Some(h2);
    proxy
}
