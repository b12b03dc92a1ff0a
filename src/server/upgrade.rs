//! The old process's side of a binary upgrade: starts the new one and hands over to it (`crate::handover`).
//!
//! Until the new process says that it serves, nothing has changed here, and whatever goes wrong ends it and leaves this
//! one serving. Dropping the future of [`upgrade`] ends the new process too, and so does the end of this one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::time::timeout;

use super::program::Program;
use crate::handover::collect::collect;
use crate::handover::launcher::Report;
use crate::handover::state::FORMAT;
use crate::handover::{Listening, Offer, PROTOCOL, Reply, descriptors, frame, launcher};
use crate::state::State;
use crate::time;

/// How long a process that has closed its end may take to end as well, for the log to know how.
const EXIT_TIME: Duration = Duration::from_secs(1);

/// What is handed over.
pub(super) struct Estate {
    pub(super) listeners: Vec<Listening>,
    pub(super) sockets: Vec<OwnedFd>,
    /// Where what was learned is found when the new process asks for it.
    pub(super) state: Arc<State>,
}

/// The process that has taken over.
#[derive(Debug)]
pub(super) struct Successor {
    /// Its process id.
    pub(super) process: u32,
    pub(super) line: Line,
}

/// What is left of the conversation: the new process sees by its end when this one ends.
#[derive(Debug)]
pub(super) struct Line(UnixStream);

/// What a new process has to say to the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It stops, and waits for the old one.
    Hurry,
    /// It has ended.
    Gone,
}

/// A new process that is ended when this is dropped, unless it was released.
struct Launch {
    launcher: Child,
    control: UnixStream,
}

/// Why no new process took over.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// It could not be started.
    #[error("{} cannot be started", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It said that it will not serve.
    #[error("the new process refuses: {0}")]
    Refused(String),
    /// It ended without a word.
    #[error("the new process ended before it served ({0})")]
    Ended(String),
    /// It is not this program, or something is wrong between the two.
    #[error("the new process does not keep to the protocol")]
    Stream(#[source] io::Error),
    /// It took too long.
    #[error("the new process did not serve within {0:?} (server.upgrade.start_timeout)")]
    TooLate(Duration),
}

// === impl Line ===

impl Line {
    /// What the new process says next. Safe to cancel.
    pub(super) async fn news(&mut self) -> News {
        match self.0.read(&mut [0]).await {
            Ok(1) => News::Hurry,
            _ => News::Gone,
        }
    }
}

// === impl Launch ===

impl Launch {
    /// Starts `program` with `input` as its standard input.
    async fn start(program: &Program, input: OwnedFd) -> Result<Self, UpgradeError> {
        let unstarted = |source| UpgradeError::Start { program: program.path.clone(), source };
        let (ours, theirs) = StdStream::pair().map_err(unstarted)?;
        // A few bytes always fit.
        descriptors::send(&ours, &[input.as_fd()]).map_err(unstarted)?;
        drop(input);
        ours.set_nonblocking(true).map_err(unstarted)?;
        let control = UnixStream::from_std(ours).map_err(unstarted)?;
        let launcher = program.launcher(theirs.into()).spawn().map_err(unstarted)?;
        let mut launch = Self { launcher, control };
        match read(&mut launch.control).await.map_err(unstarted)? {
            Report::Started(process) => log::info!("upgrade: process {process} is starting"),
            Report::Unstarted(reason) | Report::Ended(reason) => return Err(unstarted(io::Error::other(reason))),
        }
        Ok(launch)
    }

    /// How the new process ended, if it does so soon.
    async fn soon_ended(&mut self) -> Option<String> {
        match timeout(EXIT_TIME, read(&mut self.control)).await {
            Ok(Ok(Report::Ended(status))) => Some(status),
            _ => None,
        }
    }

    /// Lets the new process go on by itself; returns when the launcher has ended.
    async fn release(mut self) {
        // A launcher that somebody has ended has released it already.
        let _ = self.control.write_all(&[launcher::RELEASE]).await;
        let _ = timeout(EXIT_TIME, self.launcher.wait()).await;
    }

    /// Ends the new process; returns when it has ended.
    async fn end(mut self) {
        drop(self.control);
        // It ends when it has ended the new process, which cannot refuse.
        let _ = self.launcher.wait().await;
    }
}

/// Starts `program` and hands `estate` over; returns when the new process serves.
///
/// # Errors
/// [`UpgradeError`]: the new process is ended, and this one is as it was.
pub(super) async fn upgrade(program: &Program, estate: Estate, limit: Duration) -> Result<Successor, UpgradeError> {
    let (ours, theirs) = StdStream::pair().map_err(UpgradeError::Stream)?;
    ours.set_nonblocking(true).map_err(UpgradeError::Stream)?;
    let mut stream = UnixStream::from_std(ours).map_err(UpgradeError::Stream)?;
    let launching = timeout(limit, Launch::start(program, theirs.into())).await;
    let mut launch = launching.map_err(|_| UpgradeError::TooLate(limit))??;
    let outcome = match timeout(limit, hand_over(&mut stream, estate)).await {
        Ok(Ok(Reply::Serving { process })) => Ok(process),
        Ok(Ok(Reply::Failed { reason })) => {
            // It says the same in the log, if it is left to.
            launch.soon_ended().await;
            Err(UpgradeError::Refused(reason.replace('\n', "; ")))
        }
        Ok(Ok(Reply::Ready { .. })) => Err(UpgradeError::Stream(io::Error::other("it is ready twice"))),
        Ok(Err(error)) => Err(match launch.soon_ended().await {
            Some(status) => UpgradeError::Ended(status),
            None => UpgradeError::Stream(error),
        }),
        Err(_) => Err(UpgradeError::TooLate(limit)),
    };
    match outcome {
        Ok(process) => {
            launch.release().await;
            Ok(Successor { process, line: Line(stream) })
        }
        Err(error) => {
            launch.end().await;
            Err(error)
        }
    }
}

/// The conversation; what the new process said last.
async fn hand_over(stream: &mut UnixStream, estate: Estate) -> io::Result<Reply> {
    let Estate { listeners, sockets, state } = estate;
    let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    stream.async_io(Interest::WRITABLE, || descriptors::send(&*stream, &descriptors)).await?;
    drop(sockets);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let offer = Offer { protocol: PROTOCOL, version, listeners, state_format: FORMAT };
    stream.write_all(&frame::encode(&offer)?).await?;
    match read(stream).await? {
        Reply::Ready { state_format, max_state_bytes } => {
            let learned = match state_format {
                FORMAT => learned(state, max_state_bytes).await,
                _ => Vec::new(),
            };
            stream.write_all(&(learned.len() as u64).to_le_bytes()).await?;
            stream.write_all(&learned).await?;
            drop(learned);
            read(stream).await
        }
        other => Ok(other),
    }
}

/// What was learned, on a thread that serves no requests; nothing where both bounds leave no room for it.
async fn learned(state: Arc<State>, max_bytes: u64) -> Vec<u8> {
    let max_bytes = max_bytes.min(state.config.load().server.upgrade.max_state_bytes);
    let collected = tokio::task::spawn_blocking(move || {
        let snapshot = state.snapshot.load_full();
        collect(&snapshot, &state.index, &state.responses, max_bytes, time::now()).encode()
    });
    match collected.await {
        Ok(Ok(bytes)) if bytes.len() as u64 <= max_bytes => bytes,
        Ok(Ok(_)) => Vec::new(),
        Ok(Err(error)) => {
            log::error!("upgrade: what was learned cannot be written: {error}");
            Vec::new()
        }
        Err(error) => {
            log::error!("upgrade: what was learned cannot be collected: {error}");
            Vec::new()
        }
    }
}

async fn read<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<T> {
    let mut head = [0; frame::LENGTH_BYTES];
    stream.read_exact(&mut head).await?;
    let mut body = vec![0; frame::length(head)?];
    stream.read_exact(&mut body).await?;
    frame::decode(&body)
}
