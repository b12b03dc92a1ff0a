//! The proxy as a process that others take over from, one after the other.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::common_control::child::Process;
use crate::common_control::client::get;
use crate::common_control::eventually;

/// A process and its successors, which all write to the first one's log. Dropping it ends them all.
pub(crate) struct Service {
    pub(crate) first: Process,
    /// Process ids of those that have taken over, in order.
    heirs: Vec<u32>,
}

// === impl Service ===

impl Service {
    /// Starts the first process, and waits until it can serve.
    pub(crate) async fn start(file: &Path) -> Self {
        Self::of(Process::ready(file).await)
    }

    /// Of a process that has been started.
    pub(crate) fn of(first: Process) -> Self {
        Self { first, heirs: Vec::new() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.first.address()
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.first.admin
    }

    /// The process that serves.
    pub(crate) fn main(&self) -> u32 {
        self.heirs.last().copied().unwrap_or_else(|| self.first.id())
    }

    /// Sends a signal, by its name, to the process that serves.
    pub(crate) fn signal(&self, name: &str) {
        assert!(kill(name, self.main()), "process {} is there", self.main());
    }

    /// Lets another process take over, and waits until it serves.
    pub(crate) async fn upgrade(&mut self) {
        let before = self.started().len();
        self.signal("USR2");
        eventually("a process takes over", async || {
            assert_eq!(self.first.logged("upgrade has failed"), 0, "{:?}", self.first.stderr());
            self.taken_over().len() > self.heirs.len()
        })
        .await;
        self.heirs = self.taken_over();
        assert_eq!(self.started().len(), before + 1, "one process was started");
        assert_eq!(get(self.admin(), "/healthz").await.status, 200);
    }

    /// Process ids of those that have taken over, by the log.
    fn taken_over(&self) -> Vec<u32> {
        self.ids(" serves; this one finishes")
    }

    /// Process ids of all that were started to take over.
    pub(crate) fn started(&self) -> Vec<u32> {
        self.ids(" is starting")
    }

    fn ids(&self, behind: &str) -> Vec<u32> {
        let lines = self.first.stderr();
        let id = |line: &String| line.split_once(behind)?.0.rsplit_once("upgrade: process ")?.1.parse().ok();
        lines.iter().filter_map(id).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for id in self.started() {
            kill("KILL", id);
        }
    }
}

/// Whether there is such a process; one that has ended and is not waited for counts as gone.
pub(crate) fn is_running(id: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn kill(signal: &str, id: u32) -> bool {
    let output = Command::new("sh").args(["-c", &format!("kill -{signal} {id}")]).output();
    output.unwrap().status.success()
}
