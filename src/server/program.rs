//! The program that this process runs, and how the next version of it is started.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::handover::{self, launcher};

/// This program's file, also where another has replaced it.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What the system puts behind the path of a program whose file was replaced.
const DELETED: &str = " (deleted)";

/// The environment variables that mean the process that they were given to, not those it starts.
const OWN_VARIABLES: [&str; 5] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_FDS_FIRST_FD"];

/// How this process was started, and how the next one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    arguments: Vec<OsString>,
}

// === impl Program ===

impl Program {
    /// Of this process. To be asked at its start, when what it was started by is still there.
    pub(super) fn of_process() -> Self {
        let mut arguments = env::args_os();
        let name = arguments.next().unwrap_or_default();
        let path = resolved(&name, &env::current_dir().unwrap_or_default(), env::current_exe);
        Self { path, arguments: arguments.collect() }
    }

    /// A launcher for it: this very program, whatever has become of its file.
    pub(super) fn launcher(&self, control: OwnedFd) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("warmgate").arg(launcher::COMMAND).arg("--").arg(&self.path).args(&self.arguments);
        command.stdin(Stdio::from(control)).env(handover::VARIABLE, "1");
        for variable in OWN_VARIABLES {
            command.env_remove(variable);
        }
        command
    }
}

/// The program's path. The name that it was started by, where that is a path: it may be a link that now leads to a new
/// version, and the system knows only what it led to.
fn resolved(name: &OsStr, folder: &Path, own_file: impl FnOnce() -> io::Result<PathBuf>) -> PathBuf {
    let named = Path::new(name);
    if named.components().count() > 1 || named.is_absolute() {
        return folder.join(named);
    }
    // Without /proc, what finds it now will find it again.
    let file = own_file().unwrap_or_else(|_| named.to_owned());
    let replaced = file.to_str().and_then(|text| text.strip_suffix(DELETED)).map(PathBuf::from);
    replaced.unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_where_the_next_version_will_be() {
        let path = |name: &str, own: &str| {
            resolved(OsStr::new(name), Path::new("/srv"), || Ok(own.into())).to_str().unwrap().to_owned()
        };
        assert_eq!(path("/opt/current/warmgate", "/opt/v1/warmgate"), "/opt/current/warmgate", "a link is kept");
        assert_eq!(path("bin/warmgate", "/srv/bin/warmgate (deleted)"), "/srv/bin/warmgate");
        assert_eq!(path("./warmgate", "/srv/warmgate"), "/srv/./warmgate");
        assert_eq!(path("warmgate", "/usr/bin/warmgate (deleted)"), "/usr/bin/warmgate", "found by PATH, and replaced");
        assert_eq!(path("", "/usr/bin/warmgate"), "/usr/bin/warmgate");
    }
}
