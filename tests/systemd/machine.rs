//! A real systemd as PID 1 of its own namespaces, booted in well under a second; `machine.sh` does the mounting.
//!
//! Invariants: nothing outside the namespaces changes, and everything started ends when the [`Machine`] is dropped.
//! The supervisor ends the machine when its standard input closes, so that holds after a panic or a killed test too.
//! Every wait is bounded by [`LIMIT`].

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails. Long, because the machine that runs the tests may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The unit under test, as systemd names it.
const UNIT: &str = "warmgate.service";

/// Exit code by which `machine.sh` says that this system does not permit namespaces.
const NOT_PERMITTED: i32 = 77;

/// A booted systemd; dropping it ends it with all its processes.
pub(crate) struct Machine {
    supervisor: Child,
    /// Process id of the machine's PID 1, as seen from here.
    pid_1: u32,
}

/// Where the unit is: systemd's `ActiveState`, the main process and how often it was restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnitState {
    /// `active`, `activating`, `reloading`, `deactivating`, `inactive` or `failed`.
    pub(crate) active: String,
    /// Why it last stopped: `success`, `exit-code`, `watchdog`, ...
    pub(crate) result: String,
    /// Process id inside the machine; 0 when there is none.
    pub(crate) main_pid: u32,
    /// Automatic restarts since the start.
    pub(crate) restarts: u32,
}

// === impl Machine ===

impl Machine {
    /// Boots systemd with `binary` as `/usr/local/bin/warmgate`, or gives the reason why this system cannot.
    ///
    /// # Panics
    /// When namespaces are permitted and the boot fails all the same: that is a failed test, not a missing permission.
    pub(crate) fn boot(binary: &Path) -> Result<Self, String> {
        prerequisites()?;
        let mut supervisor = spawn_supervisor(binary);
        let Some(pid_1) = first_line(&mut supervisor) else {
            let status = supervisor.wait().expect("the supervisor was started above");
            let mut reason = String::new();
            let stderr = supervisor.stderr.as_mut().expect("stderr is piped");
            stderr.read_to_string(&mut reason).expect("the supervisor writes text");
            assert_eq!(status.code(), Some(NOT_PERMITTED), "the machine did not start: {reason}");
            return Err(format!("namespaces are not permitted here: {}", reason.trim()));
        };
        let machine = Self { supervisor, pid_1: pid_1.parse().expect("machine.sh prints a process id") };
        eventually("systemd is up", || {
            let output = machine.run(&["systemctl", "is-system-running"]);
            matches!(text(&output.stdout).trim(), "running" | "degraded").then_some(())
        });
        Ok(machine)
    }

    /// Writes a file inside the machine, world-readable, with its directories.
    pub(crate) fn write(&self, path: &str, contents: &str) {
        let path = self.outer_path(path);
        let directory = path.parent().expect("paths in the machine are absolute");
        std::fs::create_dir_all(directory).expect("the directory can be made");
        std::fs::write(&path, contents).expect("the file can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("we own the file");
    }

    /// Runs a command inside the machine.
    pub(crate) fn run(&self, command: &[&str]) -> Output {
        Command::new("timeout")
            .args(["--kill-after=1", &LIMIT.as_secs().to_string()])
            .args(["nsenter", "--target", &self.pid_1.to_string()])
            .args(["--pid", "--mount", "--cgroup", "--uts", "--ipc", "--wd=/", "env"])
            .arg("SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/system")
            .args(command)
            .stdin(Stdio::null())
            .output()
            .expect("timeout and nsenter are installed")
    }

    /// Runs `systemctl VERB... warmgate.service` and says whether it succeeded.
    pub(crate) fn systemctl(&self, verb: &[&str]) -> bool {
        let command: Vec<&str> = ["systemctl"].iter().chain(verb).copied().chain([UNIT]).collect();
        self.run(&command).status.success()
    }

    /// Sends a signal to the unit's main process.
    pub(crate) fn signal(&self, name: &str) {
        let sent = self.systemctl(&["kill", "--kill-who=main", &format!("--signal={name}")]);
        assert!(sent, "systemd could not send {name} to the main process");
    }

    /// What systemd says about the unit now.
    pub(crate) fn state(&self) -> UnitState {
        let properties = "--property=ActiveState,Result,MainPID,NRestarts";
        let shown = self.run(&["systemctl", "show", properties, UNIT]);
        let shown = text(&shown.stdout);
        let value = |name: &str| {
            let found = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("systemctl shows no {name}: {shown}"))
        };
        UnitState {
            active: value("ActiveState").to_owned(),
            result: value("Result").to_owned(),
            main_pid: value("MainPID").parse().expect("MainPID is a number"),
            restarts: value("NRestarts").parse().expect("NRestarts is a number"),
        }
    }

    /// Waits until the unit's state satisfies `condition`.
    pub(crate) fn await_state(&self, what: &str, condition: impl Fn(&UnitState) -> bool) -> UnitState {
        eventually(what, || Some(self.state()).filter(&condition))
    }

    /// Everything in the journal about the unit, what systemd says of it as well as what it printed.
    pub(crate) fn journal(&self) -> String {
        text(&self.run(&["journalctl", "--no-pager", "--output=cat", "--unit", UNIT]).stdout)
    }

    /// Makes systemd log each notification of the unit, for [`Machine::notifications`].
    pub(crate) fn log_notifications(&self) {
        assert!(self.run(&["systemctl", "log-level", "debug"]).status.success(), "the log level can be changed");
    }

    /// The logged notifications that carry `assignment`, such as `READY=1`, oldest first.
    pub(crate) fn notifications(&self, assignment: &str) -> Vec<String> {
        let is_one = |line: &&str| {
            let (_, tags) = line.split_once("Got notification message from PID").unwrap_or_default();
            tags.split(['(', ')', ',', ' ']).any(|tag| tag == assignment)
        };
        self.journal().lines().filter(is_one).map(str::to_owned).collect()
    }

    /// The path by which a file of the machine is reached from here.
    fn outer_path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid_1))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- journal of {UNIT}\n{}---", self.journal());
        }
        drop(self.supervisor.stdin.take());
        // It kills the control group and removes it; there is nothing to be done about a failure here.
        let _ = self.supervisor.wait();
    }
}

/// Checks what can be checked before anything is started.
fn prerequisites() -> Result<(), String> {
    let own = std::fs::metadata("/proc/self").map_err(|error| format!("no /proc: {error}"))?;
    if own.uid() != 0 {
        return Err("not root".to_owned());
    }
    if !Path::new("/usr/lib/systemd/systemd").exists() {
        return Err("systemd is not installed".to_owned());
    }
    for tool in ["unshare", "nsenter", "timeout", "journalctl"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(format!("{tool} is not installed"));
        }
    }
    let tried = Command::new("unshare").args(["--mount", "true"]).output().map_err(|error| error.to_string())?;
    if !tried.status.success() {
        return Err(format!("namespaces are not permitted here: {}", text(&tried.stderr).trim()));
    }
    Ok(())
}

fn spawn_supervisor(binary: &Path) -> Child {
    /// Tells the machines of one process apart; only uniqueness matters, so `Relaxed` will do.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let script = include_str!("machine.sh");
    Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "machine", "supervise"])
        .env("MACHINE_SCRIPT", script)
        .env("MACHINE_NAME", format!("warmgate-test-{}-{number}", std::process::id()))
        .env("MACHINE_BINARY", binary)
        // Out of reach of a terminal's Ctrl-C: the supervisor has to outlive the test to clean up.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare is installed")
}

/// The first line on standard output, or `None` when it closes or nothing comes in time.
fn first_line(supervisor: &mut Child) -> Option<String> {
    let stdout = supervisor.stdout.take().expect("stdout is piped");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let line = BufReader::new(stdout).lines().next();
        // Nobody waits any more after the limit.
        let _ = sender.send(line.and_then(Result::ok));
    });
    let line = receiver.recv_timeout(LIMIT).ok().flatten();
    if line.is_none() {
        drop(supervisor.stdin.take());
    }
    line
}

// === waiting ===

/// Polls until `attempt` gives a value.
///
/// # Panics
/// After [`LIMIT`].
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "after {LIMIT:?} it still does not hold that {what}");
        // Not a wait for time to pass: it only spares the processor between two looks at the condition.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Says on the terminal that a test did not run; the test harness would keep ordinary output to itself.
pub(crate) fn skipped(test: &str, reason: &str) {
    let mut line = String::new();
    writeln!(line, "SKIPPED {test}: {reason}").expect("a string takes any text");
    // A closed terminal is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Output of a program as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
