//! `warmgate launch`: a process between the old one and the new one, for as long as the new one starts.
//!
//! When the new process serves, the launcher ends, and whoever adopts orphans becomes the new one's parent. Under systemd
//! that is systemd itself, which waits on a stop, and notices a death, only of a main process that is its child. Until
//! then the launcher tells how the new process ends, and ends it if the old one does not want it or has ended itself: no
//! process that nobody wants is left behind.
//!
//! Its standard input is a socket by which it gets the new process's standard input, and reports.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{descriptors, frame};

/// What the launcher does for the old process.
pub(crate) const COMMAND: &str = "launch";

/// The byte by which the old process says that the new one is to go on by itself.
pub(crate) const RELEASE: u8 = b'R';

/// What becomes of the new process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// It has this process id.
    Started(u32),
    /// It could not be started, for this reason.
    Unstarted(String),
    /// It ended like this.
    Ended(String),
}

/// Starts a program, and stays until the old process has released it or does not want it.
///
/// # Errors
/// When standard input is no such socket, or the old process has ended. The new one is ended then.
pub(crate) fn launch(program: &Path, arguments: &[OsString]) -> io::Result<ExitCode> {
    let control = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let input = descriptors::receive(&control)?.pop().ok_or(io::ErrorKind::InvalidData)?;
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        // What is meant for the service and sent to all its processes. Handlers go no further than this process.
        let kinds = [SignalKind::hangup(), SignalKind::quit(), SignalKind::user_defined2()];
        let _swallowed: Vec<Signal> = kinds.into_iter().map(signal).collect::<io::Result<_>>()?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::from(input)).kill_on_drop(true);
        let started = command.spawn();
        // The other end is the new process's alone.
        drop(command);
        match started {
            Ok(child) => watch(child, control).await,
            Err(error) => {
                tell(&control, &Report::Unstarted(error.to_string()))?;
                Ok(ExitCode::FAILURE)
            }
        }
    })
}

async fn watch(mut child: Child, control: StdStream) -> io::Result<ExitCode> {
    tell(&control, &Report::Started(child.id().unwrap_or(0)))?;
    control.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(control.try_clone()?)?;
    let mut byte = [0];
    tokio::select! {
        status = child.wait() => {
            control.set_nonblocking(false)?;
            tell(&control, &Report::Ended(status?.to_string()))?;
            Ok(ExitCode::FAILURE)
        }
        told = stream.read(&mut byte) => match told {
            Ok(1) if byte == [RELEASE] => {
                // Dropping it would end it, and nothing runs after this.
                std::mem::forget(child);
                Ok(ExitCode::SUCCESS)
            }
            _ => {
                child.kill().await?;
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

fn tell(mut control: &StdStream, report: &Report) -> io::Result<()> {
    frame::write(&mut control, report)
}
