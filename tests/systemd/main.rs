//! The committed systemd unit: checked by `systemd-analyze`, then run under a real systemd.
//!
//! Each test boots a machine of its own (`machine.rs`), installs the unit as `systemd/README.md` says and drives it
//! with `systemctl`. Where namespaces are not permitted the tests say so on the terminal and pass.

mod credentials;
mod fleet;
mod machine;
mod upgrade;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use fleet::{Backend, FIRST_EVENT, LAST_EVENT, chat, free_address, get, is_refused};
use machine::{Machine, eventually, skipped, text};

const CONFIG: &str = "/etc/warmgate/warmgate.yaml";

/// The unit running in a machine, in front of one backend.
struct Service {
    machine: Machine,
    listener: SocketAddr,
    admin: SocketAddr,
    backend: Backend,
}

// === impl Service ===

impl Service {
    /// Boots a machine with the unit installed and not yet started; `None`, with a message, where that is impossible.
    fn install(test: &str) -> Option<Self> {
        let machine = match Machine::boot(Path::new(env!("CARGO_BIN_EXE_warmgate"))) {
            Ok(machine) => machine,
            Err(reason) => {
                skipped(test, &reason);
                return None;
            }
        };
        machine.write("/etc/systemd/system/warmgate.service", &unit());
        let service = Self { machine, listener: free_address(), admin: free_address(), backend: Backend::start() };
        service.configure(&[service.backend.address()]);
        Some(service)
    }

    /// As [`Service::install`], then starts it and waits until it can serve.
    fn start(test: &str) -> Option<Self> {
        let service = Self::install(test)?;
        assert!(service.machine.systemctl(&["start"]), "`systemctl start` succeeds");
        service.await_ready();
        Some(service)
    }

    fn configure(&self, backends: &[SocketAddr]) {
        let Self { listener, admin, .. } = self;
        let backends: String = backends.iter().map(|backend| format!("      - url: http://{backend}\n")).collect();
        let yaml = format!(
            "listeners:\n  - address: {listener}\nadmin:\n  address: {admin}\n\
             pools:\n  - name: test\n    engine: generic\n    backends:\n{backends}"
        );
        self.machine.write(CONFIG, &yaml);
    }

    fn await_ready(&self) {
        eventually("the proxy is ready to serve", || get(self.admin, "/readyz").filter(|(status, _)| *status == 200));
    }

    /// Whether the running configuration has this backend.
    fn has_backend(&self, backend: SocketAddr) -> bool {
        let (status, body) = get(self.admin, "/backends").expect("the admin listener answers");
        assert_eq!(status, 200, "the backends can be listed");
        body.contains(&backend.to_string())
    }

    /// Waits for a new main process after `before` restarts, and for it to serve.
    fn await_restart(&self, old_pid: u32) {
        let state = self.machine.await_state("systemd has started it again", |state| {
            state.restarts == 1 && state.active == "active" && state.main_pid != 0
        });
        assert_ne!(state.main_pid, old_pid, "it is another process");
        self.await_ready();
    }
}

fn unit_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/warmgate.service")
}

fn unit() -> String {
    std::fs::read_to_string(unit_path()).expect("the unit is committed")
}

/// Whether `systemd-analyze` can be run; says so when not.
fn can_analyze(test: &str) -> bool {
    let found = Command::new("systemd-analyze").arg("--version").output().is_ok();
    if !found {
        skipped(test, "systemd-analyze is not installed");
    }
    found
}

// === the unit file ===

#[test]
fn the_units_are_valid() {
    if !can_analyze("the_units_are_valid") {
        return;
    }
    // `verify` wants the programs that a unit names to exist, so they are replaced by the one under test.
    let unit = unit().replace("/usr/local/bin/warmgate", env!("CARGO_BIN_EXE_warmgate"));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verify-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("cargo's directory for tests is writable");
    let path = directory.join("warmgate.service");
    std::fs::write(&path, unit).expect("the directory was made above");
    let socket = directory.join("warmgate.socket");
    std::fs::copy(unit_path().with_extension("socket"), &socket).expect("the socket unit is committed");
    let verify = Command::new("systemd-analyze").arg("verify").args([&path, &socket]).output();
    let output = verify.expect("it ran a moment ago");
    std::fs::remove_dir_all(&directory).expect("the directory was made above");
    assert!(output.status.success(), "systemd rejects the units: {}", text(&output.stderr));
    let complaints = text(&output.stderr);
    assert!(!complaints.contains("warmgate."), "systemd warns about the units: {complaints}");
}

#[test]
fn the_unit_is_confined() {
    if !can_analyze("the_unit_is_confined") {
        return;
    }
    // The threshold is in tenths: an exposure above 2.0 fails.
    let arguments = ["security", "--no-pager", "--offline=true", "--threshold=20"];
    let output = Command::new("systemd-analyze").args(arguments).arg(unit_path()).output();
    let output = output.expect("it ran a moment ago");
    let report = text(&output.stdout);
    assert!(report.contains("Overall exposure level"), "systemd-analyze rates the unit: {}", text(&output.stderr));
    assert!(output.status.success(), "the unit is exposed more than 2.0: {report}");
}

// === the unit under systemd ===

#[test]
fn it_is_active_once_it_has_said_that_it_is_ready() {
    let Some(service) = Service::install("it_is_active_once_it_has_said_that_it_is_ready") else { return };
    let Service { machine, .. } = &service;
    machine.log_notifications();
    assert!(machine.systemctl(&["start"]), "`systemctl start` succeeds");
    let state = machine.state();
    assert_eq!((state.active.as_str(), state.restarts), ("active", 0), "it runs at the first try");
    eventually("READY=1 is logged", || machine.notifications("READY=1").pop());
    service.await_ready();
    let uid = machine.run(&["stat", "--format=%u", &format!("/proc/{}", state.main_pid)]);
    assert_ne!(text(&uid.stdout).trim(), "0", "it does not run as root");
}

#[test]
fn an_invalid_configuration_does_not_start() {
    let Some(service) = Service::install("an_invalid_configuration_does_not_start") else { return };
    service.machine.write(CONFIG, "listeners: none\n");
    assert!(!service.machine.systemctl(&["start"]), "`systemctl start` fails");
    assert_eq!(service.machine.state().main_pid, 0, "nothing runs");
}

#[test]
fn reload_puts_a_new_configuration_in_effect() {
    let Some(service) = Service::start("reload_puts_a_new_configuration_in_effect") else { return };
    let Service { machine, .. } = &service;
    let before = machine.state();
    machine.log_notifications();
    // With the file as it was, it can only be the signal that the program answers, not a change that it noticed.
    assert!(machine.systemctl(&["reload"]), "`systemctl reload` succeeds");
    let reloading = eventually("RELOADING=1 is logged", || machine.notifications("RELOADING=1").pop());
    assert!(reloading.contains("MONOTONIC_USEC="), "systemd 253 and later want the time of it: {reloading}");
    eventually("READY=1 is logged", || machine.notifications("READY=1").pop());
    machine.await_state("it is active again", |state| *state == before);

    let added = Backend::start();
    assert!(!service.has_backend(added.address()), "the backend is not there yet");
    service.configure(&[service.backend.address(), added.address()]);
    assert!(machine.systemctl(&["reload"]), "`systemctl reload` succeeds");
    eventually("the new backend is in use", || service.has_backend(added.address()).then_some(()));
    machine.await_state("the same process is active again", |state| *state == before);
}

#[test]
fn an_invalid_configuration_is_refused_and_the_running_one_kept() {
    let test = "an_invalid_configuration_is_refused_and_the_running_one_kept";
    let Some(service) = Service::start(test) else { return };
    let Service { machine, backend, .. } = &service;
    let before = machine.state();
    let printed = || {
        let own = format!("_PID={}", before.main_pid);
        text(&machine.run(&["journalctl", "--no-pager", "--output=cat", &own]).stdout)
    };
    let earlier = printed();
    machine.write(CONFIG, "listeners: none\n");
    assert!(!machine.systemctl(&["reload"]), "`systemctl reload` reports the failure");
    eventually("the program has noticed the file", || (printed() != earlier).then_some(()));

    // Past the check of ExecReload: the program itself refuses too.
    let earlier = printed();
    machine.signal("HUP");
    eventually("the program has answered the signal", || (printed() != earlier).then_some(()));
    machine.await_state("the service is active as before", |state| *state == before);
    assert!(service.has_backend(backend.address()), "the running configuration is kept");
}

#[test]
fn a_process_that_hangs_is_replaced() {
    let Some(service) = Service::install("a_process_that_hangs_is_replaced") else { return };
    let Service { machine, .. } = &service;
    let drop_in = "/etc/systemd/system/warmgate.service.d/watchdog.conf";
    machine.write(drop_in, "[Service]\nWatchdogSec=2\nRestartSec=100ms\n");
    machine.log_notifications();
    assert!(machine.systemctl(&["start"]), "`systemctl start` succeeds");
    service.await_ready();
    // Three signs of life take longer than the watchdog's time, or two and the start.
    eventually("the watchdog was fed thrice", || machine.notifications("WATCHDOG=1").get(2).cloned());
    let before = machine.state();
    assert_eq!(before.restarts, 0, "it is left alone as long as it gives signs of life");

    machine.signal("STOP");
    service.await_restart(before.main_pid);
    let journal = machine.journal();
    assert!(journal.contains("Watchdog timeout"), "the watchdog was the reason");
}

#[test]
fn a_process_that_dies_is_replaced() {
    let Some(service) = Service::start("a_process_that_dies_is_replaced") else { return };
    let before = service.machine.state();
    service.machine.signal("KILL");
    service.await_restart(before.main_pid);
}

#[test]
fn stop_lets_a_stream_end() {
    let Some(service) = Service::start("stop_lets_a_stream_end") else { return };
    let Service { machine, backend, .. } = &service;
    let mut answer = chat(service.listener);
    assert_eq!(answer.status, 200, "the request is served");
    answer.read_until(FIRST_EVENT);

    machine.log_notifications();
    assert!(machine.systemctl(&["stop", "--no-block"]), "`systemctl stop` is accepted");
    machine.await_state("it is stopping", |state| state.active == "deactivating");
    eventually("STOPPING=1 is logged", || machine.notifications("STOPPING=1").pop());
    eventually("/readyz says that it drains", || get(service.admin, "/readyz").filter(|(status, _)| *status == 503));
    eventually("`drain_delay` is over", || is_refused(service.listener).then_some(()));
    backend.release();
    answer.read_until(LAST_EVENT);

    let state = machine.await_state("it has stopped", |state| state.main_pid == 0);
    assert_eq!((state.active.as_str(), state.result.as_str()), ("inactive", "success"), "the exit is clean");
}
