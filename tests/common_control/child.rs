//! The proxy as a process of its own, for signals, exit codes and what it prints.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::client::get;
use super::{LIMIT, eventually, proxy};

/// What a stream of the process has said so far, by lines.
type Lines = Arc<Mutex<Vec<String>>>;

/// A running `warmgate run`; killed when dropped.
pub struct Process {
    child: Child,
    stderr: Lines,
    stdout: Lines,
    pub addresses: Vec<SocketAddr>,
    pub admin: SocketAddr,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stderr: String,
}

// === impl Process ===

impl Process {
    /// Starts it with the configuration in `file`, and waits until it listens.
    pub async fn start(file: &Path) -> Self {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_warmgate")), file).await
    }

    /// The same by another path of the program.
    pub async fn start_program(program: &Path, file: &Path) -> Self {
        let mut child = command(program, file).spawn().unwrap();
        let stderr = collect(child.stderr.take().unwrap());
        let stdout = collect(child.stdout.take().unwrap());
        let admin = Arc::clone(&stderr);
        eventually("the process listens", async || {
            let is_up = admin.lock().iter().any(|line| line.contains("admin on http://"));
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the process ended: {ended:?} {:?}", admin.lock());
            is_up
        })
        .await;
        let after = |line: &String, mark: &str| Some(line.split_once(mark)?.1.trim().parse().expect("an address"));
        let addresses = stderr.lock().iter().filter_map(|line| after(line, "listening on ")).collect();
        let admin = stderr.lock().iter().find_map(|line| after(line, "admin on http://")).unwrap();
        Self { child, stderr, stdout, addresses, admin }
    }

    /// Starts it and waits until /readyz says so.
    pub async fn ready(file: &Path) -> Self {
        let process = Self::start(file).await;
        eventually("the process is ready", async || get(process.admin, "/readyz").await.status == 200).await;
        process
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets the log begin anew.
    pub fn forget_log(&self) {
        self.stderr.lock().clear();
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; the time that took.
    pub async fn ended(&mut self) -> (ExitStatus, Duration) {
        let started = Instant::now();
        eventually("the process ends", async || self.child.try_wait().unwrap().is_some()).await;
        (self.child.try_wait().unwrap().unwrap(), started.elapsed())
    }

    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().clone()
    }

    pub fn stdout(&self) -> Vec<String> {
        self.stdout.lock().clone()
    }

    /// How many lines of its log hold `part`.
    pub fn logged(&self, part: &str) -> usize {
        self.stderr.lock().iter().filter(|line| line.contains(part)).count()
    }

    pub async fn until_logged(&self, part: &str) {
        eventually(&format!("the log says {part:?}"), async || self.logged(part) > 0).await;
    }

    pub async fn until_state(&self, name: &str, state: &str) {
        eventually(&format!("{name} is {state}"), async || {
            proxy::backend(self.admin, name).await["state"].as_str().unwrap_or("absent") == state
        })
        .await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs it with a configuration that it should not start with.
pub async fn fails_to_start(file: &Path) -> Ended {
    let mut child = command(Path::new(env!("CARGO_BIN_EXE_warmgate")), file).spawn().unwrap();
    let stderr = collect(child.stderr.take().unwrap());
    let started = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if started.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("it started, or hangs: {:?}", stderr.lock());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // The pipe closes with the process; its reader may need a moment.
    eventually("the output is read", async || Arc::strong_count(&stderr) == 1).await;
    Ended { code, stderr: stderr.lock().join("\n") }
}

fn command(program: &Path, file: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--config"]).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for from_systemd in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"] {
        command.env_remove(from_systemd);
    }
    command
}

fn collect(stream: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let held = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            held.lock().push(line);
        }
    });
    lines
}
