//! Programs that start the proxy under a condition: each is a script of its own, so that a kill reaches the proxy itself.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common_control::Scratch;

/// A script that becomes the proxy under `launcher` (`prlimit --nofile=64 --` for instance), behind the command `before`.
pub(crate) fn program(scratch: &Scratch, launcher: &str, before: &str) -> PathBuf {
    let binary = env!("CARGO_BIN_EXE_warmgate");
    let text = format!("#!/bin/sh\nexec {launcher} sh -ec '{before}; exec \"$@\"' sh {binary} \"$@\"\n");
    let script = scratch.file("program", text);
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// Whether a command is there and permitted; says on the terminal that a test is skipped if not.
pub(crate) fn is_permitted(command: &[&str]) -> bool {
    let tried = Command::new(command[0]).args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_permitted = tried.is_ok_and(|status| status.success());
    if !is_permitted {
        println!("skipped: `{}` is not permitted here", command.join(" "));
    }
    is_permitted
}

/// A file as the process of this id sees it.
pub(crate) fn seen_by(process: u32, path: &Path) -> PathBuf {
    let within = path.strip_prefix("/").expect("paths of the tests are absolute");
    Path::new("/proc").join(process.to_string()).join("root").join(within)
}
