//! `warmgate simulate`: what a policy does to a fleet, in simulated time.
//!
//! The policy, the index, the accounting and the queue are the ones that serve ([`crate::routing`], [`crate::locality`],
//! [`crate::pool`], [`crate::queue`]); only the engines and the clock are simulated.

mod args;
mod check;
mod fault;
mod fleet;
mod outcome;
mod report;
mod router;
mod run;
mod setup;
mod study;
#[cfg(test)]
mod tests;
mod utilization;
pub mod workload;

use std::error::Error;
use std::process::ExitCode;

pub(crate) use args::SimulateArgs;
pub use fault::{Fault, FaultKind, ParseFaultError};
pub use outcome::{Objective, Outcome, Record, Summary, Times};
pub use run::run;
pub use setup::{Contender, Locality, Setup};

use crate::cli::output::print;
use report::{Progress, Series, draw, table};
use study::{Showing, Study};

/// Runs the comparison and prints it.
///
/// # Errors
/// A trace that cannot be read, a utilization that cannot be reached, a fault at a backend that is not there, or a plot
/// that cannot be written: nothing is printed then but the error. Or the result cannot be printed.
pub(crate) fn simulate(args: &SimulateArgs) -> Result<ExitCode, Box<dyn Error>> {
    let progress = Progress::new();
    let study = Study::prepare(args, &progress)?;
    let results = study.run(&progress);
    progress.clear();
    if let Some(path) = &args.plot {
        let series: Vec<Series> = results.iter().map(Showing::series).collect();
        let picture = draw(&study.title(), &series)?;
        std::fs::write(path, picture).map_err(|error| format!("--plot {}: {error}", path.display()))?;
    }
    let summaries: Vec<_> = results.into_iter().map(|result| result.summary).collect();
    if args.json {
        print(serde_json::to_string_pretty(&summaries)?)?;
    } else {
        print(format_args!("{}\n\n{}", study.title(), table(&summaries, &study.fault_names())))?;
    }
    Ok(ExitCode::SUCCESS)
}
