//! `warmgate engine`: one simulated engine, until it is told to end.

use std::error::Error;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use super::output::print;
use crate::sim::{EngineArgs, KvEventState, SimEngine};

/// Serves until Ctrl-C or SIGTERM. Its address is the result: port 0 takes a free one.
pub(super) fn run(args: EngineArgs) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listen = args.listen;
        let engine = SimEngine::start(args.options()).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        print(format_args!("simulated engine {} on {}", engine.name(), engine.url()))?;
        if let Some(KvEventState { publish, replay, .. }) = engine.state().kv_events {
            let replays = replay.map(|replay| format!(", replays on tcp://{replay}")).unwrap_or_default();
            print(format_args!("KV events on tcp://{publish}{replays}"))?;
        }
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = tokio::signal::ctrl_c() => ended?,
            _ = terminate.recv() => {}
        }
        engine.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}
