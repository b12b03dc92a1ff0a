//! What makes no sense, told before anything runs.

use std::time::Duration;

use super::args::SimulateArgs;
use super::setup::Setup;
use super::workload::{Builtin, Workload};

/// The longest simulated time in which sessions start. Engines are polled each second of it, busy or not.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 30);

/// Most requests of all seeds together: they are made before the first run, and come to about 1.8 kB each while two runs
/// go on, so 4 GB in all.
const MOST_REQUESTS: usize = 2_000_000;

/// Options that say nothing about this workload.
pub(super) fn options(args: &SimulateArgs) -> Result<(), String> {
    let Some(builtin) = args.builtin() else { return Ok(()) };
    let name = builtin.name();
    match [("--utilization", args.utilization), ("--speed", args.speed)].iter().find(|(_, value)| value.is_some()) {
        Some((option, _)) if builtin.is_closed() => {
            Err(format!("{option}: {name} is a closed loop, whose clients set the load; use --clients"))
        }
        _ if args.clients.is_some() && !builtin.is_closed() => {
            let closed: Vec<_> = Builtin::ALL.into_iter().filter(|builtin| builtin.is_closed()).collect();
            let closed = closed.iter().map(|builtin| builtin.name()).collect::<Vec<_>>().join(", ");
            Err(format!("--clients: only {closed} has clients; use --utilization or --speed for {name}"))
        }
        _ => Ok(()),
    }
}

/// More than fits into memory.
pub(super) fn amount(requests: usize, seeds: usize) -> Result<(), String> {
    match requests.saturating_mul(seeds) {
        ..=MOST_REQUESTS => Ok(()),
        _ => {
            Err(format!("--seeds: {seeds} times {requests} requests; expected at most {MOST_REQUESTS} requests in all"))
        }
    }
}

/// A workload that the fleet cannot serve, or that takes too long at the setup's speed.
pub(super) fn work(workload: &Workload, setup: &Setup) -> Result<(), String> {
    let block_tokens = u64::from(workload.block_tokens.get());
    let room = u64::from(setup.engine.kv_blocks) * block_tokens;
    let turns = workload.sessions.iter().flat_map(|session| &session.turns);
    let tokens = turns.map(|turn| u64::from(turn.prompt_tokens) + u64::from(turn.output_tokens)).max().unwrap_or(0);
    if tokens > room {
        let least = tokens.next_multiple_of(block_tokens);
        return Err(format!(
            "--kv-tokens: the longest request has {tokens} tokens of prompt and answer, an engine has room for {room} in \
             blocks of {block_tokens}; expected at least {least}"
        ));
    }
    let last = workload.sessions.iter().map(|session| session.start).max().unwrap_or_default();
    let [days, most] = [last.div_f64(setup.speed), LONGEST].map(|time| time.as_secs() / (60 * 60 * 24));
    if days >= most {
        return Err(format!(
            "--speed: sessions start for {days} days at {} times the workload's speed; expected less than \
                            {most} days",
            setup.speed
        ));
    }
    Ok(())
}

/// A fault can only happen to a backend that is there at its time.
pub(super) fn faults(setup: &Setup) -> Result<(), String> {
    let mut faults = setup.faults.clone();
    faults.sort_by_key(|fault| fault.at);
    let mut backends = setup.backends;
    for fault in faults {
        match fault.kind.backend() {
            None => backends += 1,
            Some(backend) if backend < backends => {}
            Some(_) => return Err(format!("--fault {fault}: backends are 0 to {} then", backends - 1)),
        }
    }
    Ok(())
}
