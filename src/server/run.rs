//! `warmgate run`: the process around a [`Server`]: its runtime, its signals, its service manager.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval};

use super::signals::{Request, Signals};
use super::{Server, StartError};
use crate::config::Config;
use crate::control::Handle;
use crate::state::State;
use crate::{logging, systemd};

/// How long the end waits for tasks to notice it.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Serves the checked `config`, read from `source`, until a signal ends the process.
///
/// # Errors
/// See [`StartError`].
pub fn run(config: Config, source: &Path) -> Result<(), StartError> {
    logging::start(config.logging.level);
    let runtime = runtime(&config).map_err(StartError::System)?;
    let state = runtime.block_on(serve(config, source))?;
    // Ends what is left: kept connections, and requests that are cut, which log themselves as they are dropped.
    runtime.shutdown_timeout(SHUTDOWN_TIME);
    state.flush_logs();
    Ok(())
}

fn runtime(config: &Config) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = config.server.threads {
        builder.worker_threads(threads.get() as usize);
    }
    builder.thread_name("warmgate").enable_all().build()
}

async fn serve(config: Config, source: &Path) -> Result<Arc<State>, StartError> {
    let mut signals = Signals::install().map_err(StartError::System)?;
    let server = Server::start(config, Some(source.to_owned())).await?;
    for address in server.addresses() {
        log::info!("listening on {address}");
    }
    log::info!("admin on http://{}", server.admin_address());
    systemd::ready("serving");
    let watchdog = tokio::spawn(watchdog(server.control().clone()));
    let is_graceful = until_stopped(&mut signals, server.control()).await;
    let state = Arc::clone(server.state());
    if is_graceful {
        stop(server, &mut signals).await;
    }
    watchdog.abort();
    Ok(state)
}

/// Obeys reloads until asked to stop; whether requests may end first.
async fn until_stopped(signals: &mut Signals, control: &Handle) -> bool {
    loop {
        match signals.next().await {
            Request::Reload => match control.reload().await {
                Ok(Ok(reloaded)) => log::info!("reload: {reloaded:?}"),
                // The control loop has logged why.
                Ok(Err(_)) => {}
                Err(ended) => log::error!("{ended}"),
            },
            Request::Stop => return true,
            Request::Quit => {
                log::info!("SIGINT: ending at once");
                return false;
            }
        }
    }
}

/// Winds down; a second signal ends it at once.
async fn stop(server: Server, signals: &mut Signals) {
    let state = Arc::clone(server.state());
    log::info!("SIGTERM: draining, {} requests in flight", state.lifecycle.requests());
    systemd::stopping("draining");
    let stopping = server.stop();
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
                Request::Stop | Request::Quit => {
                    log::warn!("ending at once; {} requests are cut", state.lifecycle.requests());
                    return;
                }
            },
        }
    }
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
