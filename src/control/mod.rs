//! The control loop: from the configuration file and what backends show to the snapshot that decisions read.
//!
//! One task owns the [`table`] and is the only one that publishes. Tasks of the backends ([`probe`]) report to it;
//! everyone else asks it by a [`Handle`]. A burst of reports is applied whole before one snapshot is published.

mod discovery;
pub mod engine;
mod event_sources;
mod events;
mod health;
mod leaving;
mod probe;
mod reload;
mod server_info;
mod settings;
mod speaking;
mod table;
mod tokenizers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

pub use reload::{Refused, Reloaded};
pub use tokenizers::{TokenizerError, check_tokenizers};

use crate::config::Config;
use crate::handover::state::Learned;
use crate::pool::Snapshot;
use crate::queue::Room;
use crate::state::State;
use crate::tls::{self, CertificateNews};
use crate::{systemd, time, without_stalling};
use probe::Report;
use reload::{FileNews, Source};
use table::Table;
use tokenizers::Tokenizers;

/// Reports that may wait: a few for each of many backends. A full queue makes the tasks wait, not this loop.
const REPORT_QUEUE: usize = 4096;

/// How often silence of engines and the end of removed backends are looked for.
const TICK: Duration = Duration::from_millis(500);

/// Asks the control loop.
#[derive(Debug, Clone)]
pub struct Handle(mpsc::Sender<Command>);

/// The loop has ended, which it does only with the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the control loop has ended")]
pub struct Ended;

/// What is asked for of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOrder {
    /// It shall empty; its conversations may go on for this long, or as long as its pool's configuration says.
    Drain(Option<Duration>),
    /// It shall take requests again.
    Undrain,
}

enum Command {
    Reload(oneshot::Sender<Result<Reloaded, Refused>>),
    Drain { backend: String, order: DrainOrder, reply: oneshot::Sender<usize> },
    Beat(oneshot::Sender<()>),
}

struct Loop {
    state: Arc<State>,
    source: Option<Source>,
    table: Table,
    tokenizers: Tokenizers,
    tls: Arc<tls::Store>,
    /// Why renewed files were refused, as was logged; none once they were good.
    refused_files: Option<tls::Faults>,
}

/// Starts the loop with the configuration in `state`, and publishes its first snapshot before it returns. `source` is
/// the file that reloads read, `tls` what listeners use.
///
/// # Errors
/// [`TokenizerError`] if the configuration names a tokenizer that cannot be used.
pub fn start(
    state: Arc<State>,
    source: Option<PathBuf>,
    tls: Arc<tls::Store>,
) -> Result<(Handle, JoinHandle<()>), TokenizerError> {
    start_with(state, source, tls, || None)
}

/// The same with what another process has learned, which is asked for when everything else is in place.
pub(crate) fn start_with(
    state: Arc<State>,
    source: Option<PathBuf>,
    tls: Arc<tls::Store>,
    learned: impl FnOnce() -> Option<Learned>,
) -> Result<(Handle, JoinHandle<()>), TokenizerError> {
    let (reports, incoming) = mpsc::channel(REPORT_QUEUE);
    let (handle, commands) = mpsc::channel(16);
    let tokenizers = Tokenizers::default().load(&state.config.load())?;
    let mut table = Table::new(Arc::clone(&state), reports);
    table.apply(&state.config.load(), &tokenizers, &tls, time::now());
    if let Some(learned) = learned() {
        table.inherit(&learned, time::now());
    }
    let source = source.map(|path| Source::new(path, &state.config.load()));
    reload::warn_of_open_secrets(&state.config.load());
    let mut control = Loop { state, source, table, tokenizers, tls, refused_files: None };
    control.publish();
    Ok((Handle(handle), tokio::spawn(control.run(commands, incoming))))
}

/// Lets those that wait for room look again: something about backends has changed, or time has.
fn stir(snapshot: &Snapshot) {
    for pool in snapshot.pools() {
        pool.pool.stir(Room::Anywhere);
    }
}

// === impl Handle ===

impl Handle {
    /// Reads the configuration file again and applies it.
    ///
    /// # Errors
    /// [`Refused`]: the running configuration stays.
    pub async fn reload(&self) -> Result<Result<Reloaded, Refused>, Ended> {
        self.ask(Command::Reload).await
    }

    /// Drains every backend of this name, or ends that; how many there are. One that a reload has removed can be given
    /// another deadline, but not be kept.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn drain(&self, backend: &str, order: DrainOrder) -> Result<usize, Ended> {
        self.ask(|reply| Command::Drain { backend: backend.to_owned(), order, reply }).await
    }

    /// Returns when the loop has come round: it is alive.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn beat(&self) -> Result<(), Ended> {
        self.ask(Command::Beat).await
    }

    async fn ask<R>(&self, command: impl FnOnce(oneshot::Sender<R>) -> Command) -> Result<R, Ended> {
        let (reply, answer) = oneshot::channel();
        self.0.send(command(reply)).await.map_err(|_| Ended)?;
        answer.await.map_err(|_| Ended)
    }
}

// === impl Loop ===

impl Loop {
    /// Runs until every [`Handle`] is dropped.
    async fn run(mut self, mut commands: mpsc::Receiver<Command>, mut reports: mpsc::Receiver<Report>) {
        let mut news = FileNews::of(self.source.as_ref());
        let mut certificates = CertificateNews::of(Arc::clone(&self.tls));
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => {
                        self.obey(command);
                        news.follow(self.source.as_ref());
                    }
                    None => return,
                },
                Some(report) = reports.recv() => self.observe(report, &mut reports),
                () = news.next() => {
                    self.follow_file();
                    news.follow(self.source.as_ref());
                }
                () = certificates.next() => self.renew(),
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        // Whoever asked may have left; what was asked for is done all the same.
        match command {
            Command::Reload(reply) => {
                let _ = reply.send(self.reload());
            }
            Command::Drain { backend, order, reply } => {
                let found = self.table.drain(&backend, order, time::now());
                if found > 0 {
                    self.publish();
                }
                let _ = reply.send(found);
            }
            Command::Beat(reply) => {
                let _ = reply.send(());
            }
        }
    }

    fn observe(&mut self, first: Report, reports: &mut mpsc::Receiver<Report>) {
        let mut changes = self.table.observe(first);
        while let Ok(report) = reports.try_recv() {
            changes |= self.table.observe(report);
        }
        if changes {
            self.publish();
        }
    }

    fn publish(&mut self) {
        let snapshot = self.table.snapshot();
        let before = self.state.snapshot.swap(Arc::new(snapshot));
        stir(&before);
        stir(&self.state.snapshot.load());
    }

    fn tick(&mut self) {
        if self.table.tick(time::now()) {
            self.publish();
        } else {
            // Time alone can make room.
            stir(&self.state.snapshot.load());
        }
    }

    fn follow_file(&mut self) {
        // What a process finishes, it finishes as it began it; the file may be another process's by now.
        if self.state.lifecycle.is_draining() {
            return;
        }
        if self.source.as_ref().is_some_and(Source::has_changed) {
            // Nobody waits for the outcome; log and metric have it.
            let _ = self.reload();
        }
    }

    /// Applies the file, or refuses it whole; the log says why, whoever asked.
    fn reload(&mut self) -> Result<Reloaded, Refused> {
        systemd::reloading();
        let outcome = self.read_and_apply();
        systemd::ready(match &outcome {
            Ok(_) => "serving",
            Err(_) => "serving; the last reload was refused",
        });
        if let Err(refused) = &outcome {
            log::error!("the configuration file is refused; the running configuration stays: {refused}");
        }
        self.state.metrics.reloaded(outcome.is_ok());
        outcome
    }

    fn read_and_apply(&mut self) -> Result<Reloaded, Refused> {
        let source = self.source.as_mut().ok_or(Refused::NoFile)?;
        let old = self.state.config.load_full();
        let new = source.read()?;
        reload::check(&old, &new)?;
        let tokenizers = without_stalling(|| self.tokenizers.load(&new))?;
        let tls = without_stalling(|| self.tls.load(&new))?;
        self.state.set_logging(&old.logging, &new.logging)?;
        let is_renewed = self.tls.publish(tls);
        self.refused_files = None;
        if *old == new && !is_renewed {
            return Ok(Reloaded::Unchanged);
        }
        self.apply(new, tokenizers);
        Ok(Reloaded::Applied)
    }

    /// Takes over files of TLS that were renewed while the configuration stays what it is.
    fn renew(&mut self) {
        let config = self.state.config.load_full();
        match without_stalling(|| self.tls.load(&config)) {
            Ok(loaded) => {
                self.refused_files = None;
                if self.tls.publish(loaded) {
                    self.table.apply(&config, &self.tokenizers, &self.tls, time::now());
                    self.publish();
                    log::info!("renewed certificates are in force");
                }
            }
            // They are tried again and again.
            Err(faults) if self.refused_files.as_ref() == Some(&faults) => {}
            Err(faults) => {
                log::error!("changed certificates are refused; those in force stay: {faults}");
                self.refused_files = Some(faults);
            }
        }
    }

    fn apply(&mut self, config: Config, tokenizers: Tokenizers) {
        self.tokenizers = tokenizers;
        self.state.set_bounds(&config);
        self.state.set_callers(&config.auth);
        reload::warn_of_open_secrets(&config);
        self.state.config.store(Arc::new(config));
        self.table.apply(&self.state.config.load(), &self.tokenizers, &self.tls, time::now());
        self.publish();
        log::info!("the configuration was reloaded");
    }
}
