//! `warmgate run`: the process around a [`Server`]: its runtime, its signals, its service manager.

use std::error::Error;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::heritage::{Elder, Heritage};
use super::program::Program;
use super::signals::{Request, Signals};
use super::upgrade::{Line, News, Successor, UpgradeError, upgrade};
use super::{Server, StartError};
use crate::config::{self, Config, Problems};
use crate::control::Handle;
use crate::handover::HandoverError;
use crate::state::State;
use crate::{logging, systemd};

/// Threads for probes, reloads, operators and all else that is not a client's: a second one, as some of it computes.
const CONTROL_THREADS: usize = 2;

/// How long the end waits for tasks to notice it.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Why the process ended other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its configuration is wrong.
    #[error(transparent)]
    Config(#[from] Problems),
    /// It was to take over from another process, which it does not understand.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// It could not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// What ends the serving.
enum End {
    /// SIGTERM: requests may end first.
    Stop,
    /// SIGINT.
    Quit,
    /// Another process serves.
    HandedOver(Successor),
}

type Upgrading<'a> = Pin<Box<dyn Future<Output = Result<Successor, UpgradeError>> + 'a>>;

/// Serves the configuration in the file `source` until a signal ends the process.
///
/// # Errors
/// See [`RunError`].
pub fn run(source: &Path) -> Result<(), RunError> {
    let mut heritage = Heritage::of_process()?;
    let outcome =
        config::load(source).map_err(RunError::Config).and_then(|config| run_config(config, source, &mut heritage));
    if let Err(error) = &outcome {
        heritage.fail(&with_causes(error));
    }
    outcome
}

/// An error with what caused it, in one sentence.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(&format!(": {source}"));
        cause = source.source();
    }
    text.trim_end().to_owned()
}

fn run_config(config: Config, source: &Path, heritage: &mut Heritage) -> Result<(), RunError> {
    logging::start(config.logging.level);
    let runtime = runtime().map_err(StartError::System)?;
    let state = runtime.block_on(serve(config, source, heritage))?;
    // Ends what is left: kept connections, and requests that are cut, which log themselves as they are dropped.
    runtime.shutdown_timeout(SHUTDOWN_TIME);
    state.flush_logs();
    Ok(())
}

/// The runtime of all but clients' connections, which workers serve.
fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(CONTROL_THREADS).thread_name("warmgate-ctl").enable_all().build()
}

/// Serves to the end; what is to be flushed then.
async fn serve(config: Config, source: &Path, heritage: &mut Heritage) -> Result<Arc<State>, StartError> {
    let mut signals = Signals::install().map_err(StartError::System)?;
    let program = Program::of_process();
    let server = Server::start_with(config, Some(source.to_owned()), heritage).await?;
    for address in server.addresses() {
        log::info!("listening on {address}");
    }
    log::info!("admin on http://{}", server.admin_address());
    let elder = heritage.serving().map_err(StartError::Predecessor)?;
    systemd::ready("serving");
    let watchdog = tokio::spawn(watchdog(server.control().clone()));
    let end = until_ended(&mut signals, &server, &program).await;
    let state = Arc::clone(server.state());
    match end {
        End::Stop => stop(server, elder, &mut signals).await,
        End::Quit => {}
        End::HandedOver(successor) => {
            watchdog.abort();
            retire(server, elder, successor, &mut signals).await;
        }
    }
    watchdog.abort();
    Ok(state)
}

/// Obeys reloads and upgrades until something ends the serving.
async fn until_ended(signals: &mut Signals, server: &Server, program: &Program) -> End {
    let mut upgrading: Option<Upgrading<'_>> = None;
    loop {
        let request = tokio::select! {
            request = signals.next() => request,
            outcome = ended(&mut upgrading) => {
                upgrading = None;
                match outcome {
                    Ok(successor) => return End::HandedOver(successor),
                    Err(error) => failed(&error, server.state()),
                }
                continue;
            }
        };
        match request {
            Request::Reload => reload(server.control()).await,
            Request::Stop => return End::Stop,
            Request::Quit => {
                log::info!("SIGINT: ending at once");
                return End::Quit;
            }
            Request::Upgrade if upgrading.is_some() => log::warn!("SIGUSR2: an upgrade is under way already"),
            Request::Upgrade => match server.estate() {
                Ok(estate) => {
                    let limit = server.state().config.load().server.upgrade.start_timeout;
                    upgrading = Some(Box::pin(upgrade(program, estate, limit)));
                }
                Err(error) => log::error!("upgrade: the listeners cannot be handed over: {error}"),
            },
        }
    }
}

/// The outcome of the upgrade under way; waits for ever without one.
async fn ended(upgrading: &mut Option<Upgrading<'_>>) -> Result<Successor, UpgradeError> {
    match upgrading {
        Some(upgrading) => upgrading.await,
        None => std::future::pending().await,
    }
}

fn failed(error: &UpgradeError, state: &State) {
    state.metrics.upgrade_failed();
    log::error!("the upgrade has failed, and this process goes on: {}", with_causes(error));
    systemd::ready("serving; the last upgrade has failed");
}

async fn reload(control: &Handle) {
    match control.reload().await {
        Ok(Ok(reloaded)) => log::info!("reload: {reloaded:?}"),
        // The control loop has logged why.
        Ok(Err(_)) => {}
        Err(ended) => log::error!("{ended}"),
    }
}

/// Winds down; a second signal ends it at once. The end waits for that of the process that this one has taken over from,
/// as far as there is time: a service manager takes the end of this one for that of the service.
async fn stop(server: Server, mut elder: Elder, signals: &mut Signals) {
    let config = server.state().config.load_full();
    let time = config.server.drain_delay + config.server.drain_timeout;
    let until = Instant::now() + time;
    let state = Arc::clone(server.state());
    log::info!("SIGTERM: draining, {} requests in flight", state.lifecycle.requests());
    systemd::stopping("draining");
    let stopping = async {
        let cut = server.stop().await;
        elder.hurry().await;
        let _ = timeout_at(until, elder.ended()).await;
        cut
    };
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            cut = &mut stopping => {
                match cut {
                    0 => log::info!("drained; ending"),
                    cut => log::warn!("drain_timeout is over; {cut} requests are cut"),
                }
                return;
            }
            request = signals.next() => match request {
                Request::Reload => log::warn!("no reload while draining"),
                Request::Upgrade => log::warn!("no upgrade while draining"),
                Request::Stop | Request::Quit => return end_at_once(&state),
            },
        }
    }
}

/// Finishes what is in flight while `successor` serves; SIGTERM or SIGINT ends it at once.
async fn retire(mut server: Server, mut elder: Elder, successor: Successor, signals: &mut Signals) {
    let time = server.state().config.load().server.upgrade.drain_timeout;
    let until = Instant::now() + time;
    let Successor { process, mut line } = successor;
    let state = Arc::clone(server.state());
    server.let_go().await;
    systemd::handed_over(process);
    log::info!("upgrade: process {process} serves; this one finishes {} requests", state.lifecycle.requests());
    let retiring = async {
        let hurry = async {
            heed(&mut line, process).await;
            elder.hurry().await;
        };
        let cut = server.retire(hurry).await;
        // The new process waits for this one alone.
        let _ = timeout_at(until, outlive(&mut elder, &mut line, process)).await;
        cut
    };
    tokio::pin!(retiring);
    loop {
        tokio::select! {
            cut = &mut retiring => {
                match cut {
                    0 => log::info!("upgrade: finished; process {process} goes on"),
                    cut => log::warn!("upgrade.drain_timeout is over; {cut} requests are cut"),
                }
                return;
            }
            request = signals.next() => match request {
                Request::Reload | Request::Upgrade => {
                    log::warn!("this process has handed over; process {process} serves");
                }
                Request::Stop | Request::Quit => return end_at_once(&state),
            },
        }
    }
}

/// Waits until the new process is in a hurry, or gone, which is for whoever watches over it to notice.
async fn heed(line: &mut Line, process: u32) {
    if line.news().await == News::Gone {
        log::warn!("process {process}, which had taken over, has ended; this one finishes its requests");
    }
}

/// Waits for the end of the process before this one, and lets it know when it is waited for.
async fn outlive(elder: &mut Elder, line: &mut Line, process: u32) {
    tokio::select! {
        () = elder.ended() => return,
        () = heed(line, process) => {}
    }
    elder.hurry().await;
    elder.ended().await;
}

fn end_at_once(state: &State) {
    log::warn!("ending at once; {} requests are cut", state.lifecycle.requests());
}

/// Tells systemd that the process is alive for as long as the control loop comes round.
async fn watchdog(control: Handle) {
    let Some(every) = systemd::watchdog_interval() else { return };
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if control.beat().await.is_err() {
            return;
        }
        systemd::alive();
    }
}
