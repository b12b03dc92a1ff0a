//! Processes of the bench, and what the kernel says of them. A process ends when its guard is dropped.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

/// The first argument of this program where it is one of its own parts; what follows says which.
pub(crate) const PART: &str = "--part";

/// A process and its children.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Ends it once its own standard input closes, which happens as well when this program is killed.
    guard: Child,
}

/// What the guard does.
const GUARD: &str = "read _; kill \"$0\" 2>/dev/null";

/// What each thread has been on a processor until some moment, in nanoseconds.
#[derive(Debug)]
pub(crate) struct CpuTime(HashMap<String, u64>);

// === impl Process ===

impl Process {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).spawn()?;
        let pid = child.id().to_string();
        let guard = Command::new("sh").args(["-c", GUARD, &pid]).stdin(Stdio::piped()).spawn();
        match guard {
            Ok(guard) => Ok(Self { child, guard }),
            Err(error) => {
                child.kill()?;
                Err(error)
            }
        }
    }

    /// This program in another part, with what it prints in its first line.
    pub(crate) fn start_part(part: &[&str]) -> io::Result<(Self, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = Self::start(command.arg(PART).args(part).stdout(Stdio::piped()))?;
        let mut line = String::new();
        if let Some(stdout) = process.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok((process, line))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// What all its threads have been on a processor, by the scheduler's clock. Those that have ended since an earlier look
    /// had been idle for long.
    pub(crate) fn cpu_time(&self) -> io::Result<CpuTime> {
        let mut threads = HashMap::new();
        for pid in self.pids()? {
            for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
                let path = thread?.path().join("schedstat");
                // It may end in this moment.
                let Ok(said) = fs::read_to_string(&path) else { continue };
                let spent = said.split(' ').next().and_then(|nanos| nanos.parse().ok());
                let spent = spent.ok_or_else(|| io::Error::other("the kernel keeps no schedstat"))?;
                threads.insert(path.display().to_string(), spent);
            }
        }
        Ok(CpuTime(threads))
    }

    /// All its threads, by their ids.
    pub(crate) fn threads(&self) -> io::Result<Vec<i32>> {
        let mut threads = Vec::new();
        for pid in self.pids()? {
            let names = fs::read_dir(format!("/proc/{pid}/task"))?
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            threads.extend(names.filter_map(|name| name.parse::<i32>().ok()));
        }
        Ok(threads)
    }

    /// Resident memory, bytes. What processes share counts for each.
    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        let resident = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        };
        Ok(self.pids()?.into_iter().filter_map(resident).sum::<u64>() * 1024)
    }

    /// Itself and its children.
    fn pids(&self) -> io::Result<Vec<u32>> {
        let mut pids = vec![self.child.id()];
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The command, in parentheses, may have anything in it; the parent is the second word behind.
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
            if parent == Some(self.child.id()) {
                pids.push(pid);
            }
        }
        Ok(pids)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Politely first: a process with children of its own has to end those.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        for _ in 0..20 {
            if self.has_ended() {
                return;
            }
            pause(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl CpuTime ===

impl CpuTime {
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        let spent = |(thread, now): (&String, &u64)| now.saturating_sub(*earlier.0.get(thread).unwrap_or(&0));
        Duration::from_nanos(self.0.iter().map(spent).sum())
    }
}

/// For threads that have nothing else to do.
pub(crate) fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "there is no runtime on this thread")]
    thread::sleep(time);
}
