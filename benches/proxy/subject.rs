//! The proxies that are measured: how each is started, and when it is ready.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::canned::Canned;
use crate::client::Client;
use crate::configs;
use crate::cores::Cores;
use crate::fleet::Fleet;
use crate::process::{CpuTime, PART, Process};
use crate::routers::Router;
use crate::workload::Workload;

/// The program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_warmgate");

/// How long a proxy may take until it serves.
const START_TIME: Duration = Duration::from_secs(60);

/// How long one look may take whether it does.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Which proxy it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    PassThrough,
    Assumed,
    Exact,
    Nginx,
    Haproxy,
    /// One of those that are published for the same purpose.
    Router(Router),
}

/// What all of them are started with.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) fleet: Fleet,
    pub(crate) cores: Cores,
    /// For files of the proxies.
    pub(crate) folder: PathBuf,
    /// The folder of the tokenizer.
    pub(crate) model: PathBuf,
}

/// A running proxy; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    /// From its start to its first good answer.
    pub(crate) ready_after: Duration,
    admin: SocketAddr,
    process: Process,
}

// === impl Kind ===

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::PassThrough,
        Self::Assumed,
        Self::Exact,
        Self::Nginx,
        Self::Haproxy,
        Self::Router(Router::Sglang),
        Self::Router(Router::Smg),
        Self::Router(Router::Vllm),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PassThrough => "pass-through",
            Self::Assumed => "warmgate",
            Self::Exact => "warmgate, exact",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Router(router) => router.name(),
        }
    }

    /// The name for the command line.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::PassThrough => "pass-through",
            Self::Assumed => "warmgate",
            Self::Exact => "exact",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Router(router) => router.name(),
        }
    }

    /// Whether it is there to be run.
    pub(crate) fn is_installed(self) -> bool {
        let runs = |program, flag| {
            let mut command = Command::new(program);
            command.arg(flag).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        match self {
            Self::Nginx => runs("nginx", "-v"),
            Self::Haproxy => runs("haproxy", "-v"),
            Self::Router(router) => router.version().is_some(),
            _ => true,
        }
    }

    /// Whether it can pass these on. Routers pass on only what they know, and not the header that says which answer is
    /// wanted.
    pub(crate) fn takes(self, workload: &Workload) -> bool {
        !matches!(self, Self::Router(_)) || (workload.is_chat() && workload.answer == Canned::Plain)
    }
}

// === impl Subject ===

impl Subject {
    /// Starts it and waits until it serves.
    pub(crate) async fn start(kind: Kind, setting: &Setting) -> io::Result<Self> {
        let [address, admin] = free_addresses()?;
        Self::run(kind, setting, command(kind, setting, address, admin)?, address, admin).await
    }

    /// The same, run by another program.
    pub(crate) async fn start_under(kind: Kind, setting: &Setting, mut other: Command) -> io::Result<Self> {
        let [address, admin] = free_addresses()?;
        let command = command(kind, setting, address, admin)?;
        other.arg(command.get_program()).args(command.get_args());
        Self::run(kind, setting, other, address, admin).await
    }

    async fn run(
        kind: Kind,
        setting: &Setting,
        mut command: Command,
        address: SocketAddr,
        admin: SocketAddr,
    ) -> io::Result<Self> {
        let started = Instant::now();
        let process = Process::start(&mut command)?;
        let mut subject = Self { kind, address, ready_after: Duration::ZERO, admin, process };
        let request = first_request(kind);
        subject.until(started, "it does not serve", async |subject| answers(subject.address, &request).await).await?;
        subject.ready_after = started.elapsed();
        setting.cores.assign(&subject.process)?;
        if kind == Kind::Exact {
            subject.until(started, "its locality is not exact", async |subject| subject.is_exact().await).await?;
        }
        Ok(subject)
    }

    /// What it is called in tables; whether it is, at this moment, what it is meant to be.
    pub(crate) async fn name_now(&self) -> String {
        let is_less = self.kind == Kind::Exact && !self.is_exact().await;
        format!("{}{}", self.kind.name(), if is_less { " (trust lost)" } else { "" })
    }

    /// For errors of what was done with it.
    pub(crate) fn blamed(&self, error: &io::Error) -> io::Error {
        io::Error::other(format!("{}: {error}", self.kind.name()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn cpu_time(&self) -> io::Result<CpuTime> {
        self.process.cpu_time()
    }

    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        self.process.resident_bytes()
    }

    /// Whether locality is read from the events of all engines.
    async fn is_exact(&self) -> bool {
        let request = b"GET /backends HTTP/1.1\r\nhost: bench\r\n\r\n";
        let Ok(mut client) = Client::connect(self.admin).await else { return false };
        let Ok(answer) = client.exchange_whole(request).await else { return false };
        let report: Value = serde_json::from_slice(answer.body.as_deref().unwrap_or_default()).unwrap_or_default();
        let backends = report["pools"][0]["backends"].as_array().cloned().unwrap_or_default();
        !backends.is_empty() && backends.iter().all(|backend| backend["trust"] == "exact")
    }

    async fn until(&mut self, started: Instant, otherwise: &str, is_so: impl AsyncFn(&Self) -> bool) -> io::Result<()> {
        while !timeout(LOOK_TIME, is_so(self)).await.unwrap_or(false) {
            if self.process.has_ended() || started.elapsed() > START_TIME {
                return Err(io::Error::other(format!("{}: {otherwise}", self.kind.name())));
            }
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// What it has to have an answer to before it counts as ready.
fn first_request(kind: Kind) -> Vec<u8> {
    let get = Workload::get();
    let workload = if kind.takes(&get) { get } else { Workload::chats("first", 2 * 1024, 1, Canned::Plain) };
    let mut request = Vec::new();
    workload.write(0, false, &mut request);
    request
}

async fn answers(address: SocketAddr, request: &[u8]) -> bool {
    let Ok(mut client) = Client::connect(address).await else { return false };
    client.exchange(request).await.is_ok_and(|answer| answer.status() == 200)
}

/// What starts it, its files written.
fn command(kind: Kind, setting: &Setting, listen: SocketAddr, admin: SocketAddr) -> io::Result<Command> {
    let Setting { fleet, cores: Cores { count: threads, .. }, folder, model } = setting;
    let engines = &fleet.engines;
    let file = |name: &str, text: String| -> io::Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, text)?;
        Ok(path)
    };
    let gateway = |path: &Path| {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--config"]).arg(path);
        command
    };
    Ok(match kind {
        Kind::PassThrough => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([PART, "pass-through", &listen.to_string(), &threads.to_string()]);
            command.args(engines.iter().map(|engine| engine.address.to_string()));
            command
        }
        Kind::Assumed => gateway(&file("warmgate.yaml", configs::warmgate(listen, admin, engines))?),
        Kind::Exact => gateway(&file("exact.yaml", configs::warmgate_exact(listen, admin, engines, model))?),
        Kind::Nginx => {
            let path = file("nginx.conf", configs::nginx(listen, engines, *threads, folder))?;
            let mut command = Command::new("nginx");
            command.arg("-e").arg(folder.join("nginx-error.log")).arg("-p").arg(folder).arg("-c").arg(path);
            command
        }
        Kind::Haproxy => {
            let path = file("haproxy.cfg", configs::haproxy(listen, engines, *threads))?;
            let mut command = Command::new("haproxy");
            command.args(["-db", "-f"]).arg(path);
            command
        }
        Kind::Router(router) => router.command(listen, admin, engines),
    })
}

/// Addresses that nobody has at the moment. Most proxies cannot say what port 0 became.
fn free_addresses<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    for (address, listener) in addresses.iter_mut().zip(listeners) {
        *address = listener?.local_addr()?;
    }
    Ok(addresses)
}
