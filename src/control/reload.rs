//! The configuration file, and the files of keys that it names, while the program runs: when they change, and what a
//! changed configuration may not change.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_128;

use super::TokenizerError;
use crate::config::{self, Config, Problems};
use crate::state::LogError;
use crate::tls;

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
    /// Files of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Faults),
}

/// The configuration file, and those of keys that it names.
pub(super) struct Source {
    /// The configuration file first. Of each, the hash of what was last read, so that news of an unchanged file goes
    /// unnoticed.
    files: Vec<(PathBuf, Option<u128>)>,
}

/// News of these files.
pub(super) struct FileNews {
    settled: mpsc::Receiver<()>,
    /// The folders that are watched.
    folders: Vec<PathBuf>,
    names: Arc<Mutex<Vec<OsString>>>,
    /// None where the system gives no news of files; SIGHUP and POST /reload work all the same.
    watcher: Option<RecommendedWatcher>,
}

// === impl Source ===

impl Source {
    /// The file at `path`, from which `config` was read.
    pub(super) fn new(path: PathBuf, config: &Config) -> Self {
        let mut source = Self { files: vec![(path, None)] };
        source.look(config.secret_files());
        source
    }

    /// The configuration in the file now.
    pub(super) fn read(&mut self) -> Result<Config, Problems> {
        let mut others = self.others();
        loop {
            // Before they are read: what is written in between is then still news.
            self.look(others);
            let config = config::load_again(self.path())?;
            others = config.secret_files();
            // If it names other files, those have to be looked at before they are read, too.
            if others == self.others() {
                return Ok(config);
            }
        }
    }

    /// Whether a file holds something else than when it was last read. A file that is absent, as between a removal and
    /// its replacement, has not changed yet.
    pub(super) fn has_changed(&self) -> bool {
        self.files.iter().any(|(path, seen)| content_hash(path).is_some_and(|hash| *seen != Some(hash)))
    }

    fn path(&self) -> &Path {
        &self.files[0].0
    }

    fn others(&self) -> Vec<PathBuf> {
        self.files[1..].iter().map(|(path, _)| path.clone()).collect()
    }

    /// Notes what is in the configuration file and in `others`.
    fn look(&mut self, others: Vec<PathBuf>) {
        let paths = [self.path().to_owned()].into_iter().chain(others);
        self.files = paths
            .map(|path| {
                let hash = content_hash(&path);
                (path, hash)
            })
            .collect();
    }
}

fn content_hash(path: &Path) -> Option<u128> {
    config::regular::read(path).ok().map(|content| xxh3_128(&content))
}

/// Says which files of keys every user of this machine can read.
pub(super) fn warn_of_open_secrets(config: &Config) {
    for note in config::check::open_secrets(config) {
        log::warn!("{note}");
    }
}

// === impl FileNews ===

impl FileNews {
    /// Watches the files of `source`; without one there is never news.
    pub(super) fn of(source: Option<&Source>) -> Self {
        let (tell, settled) = mpsc::channel(1);
        let names = Arc::<Mutex<Vec<OsString>>>::default();
        let mut news = Self { settled, folders: Vec::new(), names: Arc::clone(&names), watcher: None };
        if source.is_none() {
            return news;
        }
        let (raw, events) = mpsc::channel(1);
        match watcher(names, raw) {
            Ok(watcher) => news.watcher = Some(watcher),
            Err(error) => log::warn!("changes of files are not noticed ({error}); SIGHUP reloads"),
        }
        tokio::spawn(settle(events, tell));
        news.follow(source);
        news
    }

    /// Watches what `source` names now. It is the folders that are watched, not the files: editors and Kubernetes put a
    /// new file in the old one's place.
    pub(super) fn follow(&mut self, source: Option<&Source>) {
        let (Some(source), Some(watcher)) = (source, &mut self.watcher) else { return };
        let files = || source.files.iter().map(|(path, _)| path);
        let mut folders: Vec<PathBuf> = files().map(|path| folder_of(path).to_owned()).collect();
        folders.sort_unstable();
        folders.dedup();
        *self.names.lock() = files().filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect();
        for left in self.folders.iter().filter(|folder| !folders.contains(folder)) {
            // It may be gone, and its watch with it.
            let _ = watcher.unwatch(left);
        }
        for new in folders.iter().filter(|folder| !self.folders.contains(folder)) {
            if let Err(error) = watcher.watch(new, RecursiveMode::NonRecursive) {
                log::warn!("changes in {} are not noticed ({error}); SIGHUP reloads", new.display());
            }
        }
        self.folders = folders;
    }

    /// Returns when something happened to a file, or beside it, and is over. Safe to cancel.
    pub(super) async fn next(&mut self) {
        if self.settled.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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

/// Tells of what happens to files of these names, in the folders that it will be told to watch.
fn watcher(names: Arc<Mutex<Vec<OsString>>>, tell: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let concerns = |path: &PathBuf| {
            path.ends_with(KUBERNETES_LINK)
                || path.file_name().is_some_and(|name| names.lock().iter().any(|known| known == name))
        };
        let is_change = event.is_ok_and(|event| !event.kind.is_access() && event.paths.iter().any(concerns));
        if is_change {
            // A full queue holds news already.
            let _ = tell.try_send(());
        }
    })
}
