//! The binary upgrade and socket activation under a real systemd.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::fleet::{FIRST_EVENT, LAST_EVENT, chat, get};
use crate::machine::{LIMIT, Machine, UnitState, eventually, text};
use crate::{CONFIG, Service};

impl Service {
    /// Waits until another process than `old` is the main one.
    fn await_upgrade(&self, old: &UnitState) -> UnitState {
        let state = self.machine.await_state("another process is the main one", |state| {
            assert_eq!((state.active.as_str(), state.restarts), ("active", 0), "it is an upgrade, not a restart");
            state.main_pid != old.main_pid
        });
        self.await_ready();
        state
    }
}

/// Whether there is such a process in the machine.
fn is_running(machine: &Machine, id: u32) -> bool {
    machine.run(&["test", "-e", &format!("/proc/{id}")]).status.success()
}

fn status_text(machine: &Machine) -> String {
    let shown = machine.run(&["systemctl", "show", "--property=StatusText", "--value", "warmgate.service"]);
    text(&shown.stdout).trim().to_owned()
}

/// The committed socket unit, with these addresses in place of its own.
fn socket_unit(addresses: &[SocketAddr]) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/warmgate.socket");
    let unit = std::fs::read_to_string(path).expect("the unit is committed");
    let lines: String = addresses.iter().map(|address| format!("ListenStream={address}\n")).collect();
    let others = unit.lines().filter(|line| !line.starts_with("ListenStream="));
    let others: String = others.map(|line| format!("{line}\n")).collect();
    others.replace("[Socket]\n", &format!("[Socket]\n{lines}"))
}

/// A request whose answer is not read yet.
fn ask(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT).expect("someone listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket has a time limit");
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("it fits");
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the answer comes, and the connection closes");
    text
}

#[test]
fn an_upgrade_changes_the_main_process_and_nothing_else() {
    let Some(service) = Service::install("an_upgrade_changes_the_main_process_and_nothing_else") else { return };
    let Service { machine, backend, .. } = &service;
    let drop_in = "/etc/systemd/system/warmgate.service.d/watchdog.conf";
    machine.write(drop_in, "[Service]\nWatchdogSec=2\n");
    machine.log_notifications();
    assert!(machine.systemctl(&["start"]), "`systemctl start` succeeds");
    service.await_ready();
    let before = machine.state();
    let mut stream = chat(service.listener);
    stream.read_until(FIRST_EVENT);

    machine.signal("USR2");
    let after = service.await_upgrade(&before);
    assert!(is_running(machine, before.main_pid), "the old process has a stream");
    let fed = |state: &UnitState| {
        let notifications = machine.notifications("WATCHDOG=1");
        let from = format!("PID {} ", state.main_pid);
        notifications.iter().filter(|line| line.contains(&from)).count()
    };
    eventually("the new process feeds the watchdog for longer than its time", || (fed(&after) >= 3).then_some(()));
    assert_eq!(machine.state(), after, "systemd is content with it");
    assert_eq!(machine.notifications("STOPPING=1"), Vec::<String>::new(), "nothing stops");

    backend.release();
    stream.read_until(LAST_EVENT);
    // Or its connection would have its time to ask again.
    drop(stream);
    eventually("the old process ends", || (!is_running(machine, before.main_pid)).then_some(()));
    assert_eq!(machine.state(), after);
    assert!(machine.systemctl(&["stop"]), "`systemctl stop` stops the new process");
    let state = machine.state();
    assert_eq!((state.active.as_str(), state.result.as_str(), state.main_pid), ("inactive", "success", 0));
}

#[test]
fn a_stop_leaves_the_streams_of_a_process_that_has_handed_over_their_time() {
    let test = "a_stop_leaves_the_streams_of_a_process_that_has_handed_over_their_time";
    let Some(service) = Service::start(test) else { return };
    let Service { machine, backend, .. } = &service;
    let mut stream = chat(service.listener);
    stream.read_until(FIRST_EVENT);
    let before = machine.state();
    machine.signal("USR2");
    service.await_upgrade(&before);
    assert!(machine.systemctl(&["stop", "--no-block"]), "`systemctl stop` is accepted");
    eventually("nobody listens", || get(service.listener, "/v1/models").is_none().then_some(()));
    backend.release();
    stream.read_until(LAST_EVENT);
    let state = machine.await_state("it has stopped", |state| state.main_pid == 0 && state.active == "inactive");
    assert_eq!(state.result, "success");
}

#[test]
fn an_upgrade_to_a_bad_configuration_changes_nothing() {
    let Some(service) = Service::start("an_upgrade_to_a_bad_configuration_changes_nothing") else { return };
    let Service { machine, .. } = &service;
    let before = machine.state();
    machine.write(CONFIG, "listeners: none\n");
    machine.signal("USR2");
    eventually("the old process says that it failed", || {
        status_text(machine).contains("upgrade has failed").then_some(())
    });
    assert_eq!(machine.state(), before);
    assert!(machine.journal().contains("the new process refuses"), "the journal has the reason");
    service.await_ready();

    service.configure(&[service.backend.address()]);
    machine.signal("USR2");
    service.await_upgrade(&before);
}

#[test]
fn a_service_whose_new_process_dies_is_started_anew() {
    let Some(service) = Service::start("a_service_whose_new_process_dies_is_started_anew") else { return };
    let Service { machine, .. } = &service;
    let before = machine.state();
    let mut stream = chat(service.listener);
    stream.read_until(FIRST_EVENT);
    machine.signal("USR2");
    let after = service.await_upgrade(&before);
    assert!(is_running(machine, before.main_pid), "the old process has a stream");
    machine.signal("KILL");
    service.await_restart(after.main_pid);
    assert_ne!(machine.state().main_pid, before.main_pid);
}

#[test]
fn the_reload_verb_can_mean_an_upgrade() {
    let Some(service) = Service::start("the_reload_verb_can_mean_an_upgrade") else { return };
    let Service { machine, .. } = &service;
    let readme = include_str!("../../systemd/README.md");
    let drop_in = readme.split_once("warmgate.service.d/upgrade.conf\n").expect("the drop-in is documented").1;
    let drop_in = drop_in.split_once("```").expect("it ends").0;
    machine.write("/etc/systemd/system/warmgate.service.d/upgrade.conf", drop_in);
    assert!(machine.run(&["systemctl", "daemon-reload"]).status.success(), "systemd reads the drop-in");
    let before = machine.state();
    assert!(machine.systemctl(&["reload"]), "`systemctl reload` succeeds");
    let after = service.await_upgrade(&before);
    machine.write(CONFIG, "listeners: none\n");
    assert!(!machine.systemctl(&["reload"]), "the check fails");
    assert_eq!(machine.state(), after);
}

#[test]
fn sockets_that_systemd_holds_outlive_crash_and_upgrade() {
    let Some(service) = Service::install("sockets_that_systemd_holds_outlive_crash_and_upgrade") else { return };
    let Service { machine, listener, admin, .. } = &service;
    machine.write("/etc/systemd/system/warmgate.socket", &socket_unit(&[*listener, *admin]));
    // Longer than it takes to connect.
    machine.write("/etc/systemd/system/warmgate.service.d/restart.conf", "[Service]\nRestartSec=2\n");
    assert!(machine.run(&["systemctl", "start", "warmgate.socket"]).status.success(), "the socket unit starts");
    assert_eq!(machine.state().main_pid, 0, "the service waits for a connection");
    assert!(answer(ask(*listener)).starts_with("HTTP/1.1 200 "), "the first connection starts it, and is served");
    service.await_ready();
    let before = machine.state();

    machine.signal("STOP");
    let waiting: Vec<_> = (0..20).map(|_| ask(*listener)).collect();
    machine.signal("KILL");
    let waiting: Vec<_> = waiting.into_iter().chain((0..20).map(|_| ask(*listener))).collect();
    for stream in waiting {
        assert!(answer(stream).starts_with("HTTP/1.1 200 "), "a connection made while no process ran is served");
    }
    let restarted =
        machine.await_state("another process runs", |state| ![0, before.main_pid].contains(&state.main_pid));
    let restarts = restarted.restarts;
    machine.signal("USR2");
    let upgraded = machine.await_state("another process is the main one", |state| {
        assert_eq!((state.active.as_str(), state.restarts), ("active", restarts), "it is an upgrade");
        state.main_pid != restarted.main_pid
    });
    assert!(answer(ask(*listener)).starts_with("HTTP/1.1 200 "));
    machine.signal("KILL");
    assert!(answer(ask(*listener)).starts_with("HTTP/1.1 200 "), "the crash of an upgraded process is survived too");
    machine.await_state("another process runs", |state| ![0, upgraded.main_pid].contains(&state.main_pid));
    let journal = machine.journal();
    assert!(!journal.contains("not used: "), "every socket has its listener: {journal}");
}
