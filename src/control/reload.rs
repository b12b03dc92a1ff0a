//! The configuration file while the program runs: when it changes, and what a changed one may not change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::TokenizerError;
use crate::config::{self, Config, Problems};
use crate::state::LogError;

/// How long a file must be left alone before it is read: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(200);

/// The longest that a file which does not come to rest is waited for.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Kubernetes replaces this link in the folder; the file in it is a link through it, and stays as it is.
const KUBERNETES_LINK: &str = "..data";

/// A reload that did what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reloaded {
    /// The file's configuration is in force from now on.
    Applied,
    /// It was already.
    Unchanged,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The program was started without a file.
    #[error("there is no configuration file to read")]
    NoFile,
    /// The file is wrong.
    #[error(transparent)]
    Problems(#[from] Problems),
    /// It changes what a running process cannot change.
    #[error("{} cannot change while the process runs; let another take over (SIGUSR2) or restart it for that", .0.join(", "))]
    NeedsRestart(Vec<&'static str>),
    /// The new access log or block trace cannot be opened.
    #[error("{0}: {source}", source = .0.source)]
    Log(#[from] LogError),
    /// A tokenizer that it names cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The configuration file.
pub(super) struct Source {
    path: PathBuf,
    /// What was last read, so that news of an unchanged file goes unnoticed.
    seen: Option<Vec<u8>>,
}

/// News of the configuration file.
pub(super) struct FileNews {
    settled: mpsc::Receiver<()>,
    /// None where the system gives no news of files; SIGHUP and POST /reload work all the same.
    _watcher: Option<RecommendedWatcher>,
}

// === impl Source ===

impl Source {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { seen: std::fs::read(&path).ok(), path }
    }

    /// The configuration in the file now.
    pub(super) fn read(&mut self) -> Result<Config, Problems> {
        self.seen = std::fs::read(&self.path).ok();
        config::load(&self.path)
    }

    /// Whether the file holds something else than when it was last read. A file that is absent, as between a removal
    /// and its replacement, has not changed yet.
    pub(super) fn has_changed(&self) -> bool {
        std::fs::read(&self.path).is_ok_and(|content| self.seen.as_ref() != Some(&content))
    }
}

// === impl FileNews ===

impl FileNews {
    /// Watches the file of `source`; without one there is never news.
    pub(super) fn of(source: Option<&Source>) -> Self {
        let (tell, settled) = mpsc::channel(1);
        let Some(source) = source else { return Self { settled, _watcher: None } };
        let (raw, events) = mpsc::channel(1);
        let watcher = watch(&source.path, raw);
        if let Err(error) = &watcher {
            log::warn!("changes of {} are not noticed ({error}); SIGHUP reloads it", source.path.display());
        }
        tokio::spawn(settle(events, tell));
        Self { settled, _watcher: watcher.ok() }
    }

    /// Returns when something happened to the file, or beside it, and is over. Safe to cancel.
    pub(super) async fn next(&mut self) {
        if self.settled.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Passes on one event for each burst of them.
async fn settle(mut events: mpsc::Receiver<()>, tell: mpsc::Sender<()>) {
    while events.recv().await.is_some() {
        let quiet = async { while let Ok(Some(())) = timeout(SETTLE, events.recv()).await {} };
        // A folder that does not come to rest is read all the same.
        let _ = timeout(SETTLE_LIMIT, quiet).await;
        if tell.send(()).await.is_err() {
            return;
        }
    }
}

/// Whether `new` can take the place of `old` in a running process.
pub(super) fn check(old: &Config, new: &Config) -> Result<(), Refused> {
    let keys = config::needs_restart(old, new);
    if keys.is_empty() { Ok(()) } else { Err(Refused::NeedsRestart(keys)) }
}

/// Watches the folder, not the file: editors and Kubernetes put a new file in the old one's place.
fn watch(path: &Path, tell: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let name = path.file_name().map(ToOwned::to_owned);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let concerns = |path: &PathBuf| path.file_name() == name.as_deref() || path.ends_with(KUBERNETES_LINK);
        let is_change = event.is_ok_and(|event| !event.kind.is_access() && event.paths.iter().any(concerns));
        if is_change {
            // A full queue holds news already.
            let _ = tell.try_send(());
        }
    })?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
