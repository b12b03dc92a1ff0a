//! The hostile clients as a process: this test program once more, told by lines what to do.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Set for the process that is to be the attackers.
pub(crate) const MARK: &str = "WARMGATE_TEST_ATTACKERS";

/// What stands before a line that is meant for us; the test harness prints lines of its own.
pub(crate) const SAYS: &str = "attackers: ";

/// A running process of hostile clients; killed when dropped.
pub(crate) struct Attackers {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Answers at length, for clients that do not read.
    pub(crate) engine: SocketAddr,
}

// === impl Attackers ===

impl Attackers {
    /// Starts it, with the lowest claim on the processor.
    pub(crate) fn start() -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(program)
            .args(["--exact", "attackers::be_the_attackers", "--ignored", "--nocapture"])
            .env(MARK, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let engine = next(&mut answers).parse().unwrap();
        Self { child, orders, answers, engine }
    }

    /// Lets `count` of them loose.
    pub(crate) fn attack(&mut self, http: SocketAddr, h2c: SocketAddr, count: usize, pause: Duration) {
        writeln!(self.orders, "{http} {h2c} {count} {}", pause.as_millis()).unwrap();
    }

    /// Calls them back, and waits until they have closed their connections.
    pub(crate) fn leave_off(&mut self) {
        writeln!(self.orders, "leave off").unwrap();
        assert_eq!(next(&mut self.answers), "left off");
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next(answers: &mut Lines<BufReader<ChildStdout>>) -> String {
    let said = answers.find_map(|line| line.unwrap().split_once(SAYS).map(|(_, said)| said.to_owned()));
    said.expect("the attackers go on")
}
