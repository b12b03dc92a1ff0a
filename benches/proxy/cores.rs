//! Cores of their own for the proxies, where that is asked for: then requests a second say how much a proxy bears, and not
//! how much of the machine load and engines leave to it.

use std::io;
use std::num::NonZeroUsize;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::process::Process;

/// Which cores are whose.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Those of a proxy; none if everyone has all.
    proxies: Option<CpuSet>,
    /// How many a proxy has.
    pub(crate) count: usize,
}

// === impl Cores ===

impl Cores {
    /// Everyone has all.
    pub(crate) fn shared() -> io::Result<Self> {
        Ok(Self { proxies: None, count: std::thread::available_parallelism().map(NonZeroUsize::get)? })
    }

    /// The first half for proxies, the rest for this process and those that it starts from now on. To be called before
    /// there are other threads.
    pub(crate) fn apart() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let there: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect();
        let (proxies, rest) = there.split_at(there.len() / 2);
        if proxies.is_empty() {
            return Err(io::Error::other("--apart needs two cores"));
        }
        sched_setaffinity(None, &set(rest))?;
        Ok(Self { proxies: Some(set(proxies)), count: proxies.len() })
    }

    /// Gives a proxy that has begun to serve its cores.
    pub(crate) fn assign(&self, process: &Process) -> io::Result<()> {
        let Some(proxies) = &self.proxies else { return Ok(()) };
        for thread in process.threads()? {
            // One that has ended needs none.
            let _ = sched_setaffinity(Pid::from_raw(thread), proxies);
        }
        Ok(())
    }

    /// For the description of the machine.
    pub(crate) fn described(&self) -> String {
        let apart = if self.proxies.is_some() { "of its own" } else { "shared with engines and load" };
        format!("cores of each proxy: {}, {apart}", self.count)
    }
}

fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    set
}
