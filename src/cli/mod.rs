//! The command line: what each command is called, takes and prints.

mod engine;
mod explain;
mod key;
pub(crate) mod output;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{self, Config};
use crate::control;
use crate::demo::{self, DemoArgs};
use crate::server;
use crate::sim::EngineArgs;
use crate::simulate::{self, SimulateArgs};
use crate::tls;

/// A load balancer for LLM inference fleets: it sends each request to the backend that already holds the prompt's
/// prefix in its KV cache, unless waiting there costs more than recomputing.
#[derive(Debug, Parser)]
#[command(
    name = "warmgate",
    version,
    after_help = "Start with `warmgate demo`: engines are simulated, nothing is installed."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve: the proxy itself, until SIGTERM (drains) or SIGINT (at once); SIGHUP reloads the configuration
    Run(ConfigArgs),
    /// Check a configuration: every problem at once, with where it is and what would be right; exit status 1 if any
    Check(ConfigArgs),
    /// Try it: simulated engines, the proxy and a little traffic on loopback, compared with round-robin
    Demo(DemoArgs),
    /// Ask the running proxy what it would do with a request: its blocks, and the cost of every backend
    Explain(explain::ExplainArgs),
    /// Make an API key for a caller, and the line of the keys_file that knows it
    Key(key::KeyArgs),
    /// Compare policies on a simulated fleet, on built-in workloads or a recorded trace, in simulated time
    Simulate(SimulateArgs),
    /// Run one simulated engine over HTTP: for trying, tests and benchmarks
    Engine(EngineArgs),
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// The configuration file (YAML); conf/minimal.yaml is the smallest, conf/example.yaml shows every key
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => run(&args.config),
        Command::Check(args) => check(&args.config),
        Command::Demo(args) => demo::run(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Key(args) => key::run(&args),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Engine(args) => engine::run(args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            report(&*error);
            ExitCode::FAILURE
        }
    }
}

fn run(path: &Path) -> Result<ExitCode, Box<dyn Error>> {
    server::run(load(path)?, path)?;
    Ok(ExitCode::SUCCESS)
}

fn check(path: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let name = path.display().to_string();
    let config = match config::load(path) {
        Ok(config) => config,
        Err(problems) => {
            output::print(problems)?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let notes = match tls::Loaded::check(&config) {
        Ok(notes) => notes,
        Err(faults) => {
            let lines: Vec<_> = faults.0.iter().map(|fault| format!("{name}: {fault}")).collect();
            output::print(lines.join("\n"))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    if let Err(error) = control::check_tokenizers(&config) {
        output::print(format_args!("{name}: {error}"))?;
        return Ok(ExitCode::FAILURE);
    }
    let notes = notes.iter().map(|note| format!("\n{name}: note: {note}"));
    output::print(config::check::render(&name, &config) + &notes.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> Result<Config, Box<dyn Error>> {
    Ok(config::load(path)?)
}

/// Prints an error with what caused it.
#[expect(clippy::print_stderr, reason = "the result of the command")]
fn report(error: &dyn Error) {
    let mut text = format!("warmgate: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(&format!(": {source}"));
        cause = source.source();
    }
    eprintln!("{}", text.trim_end());
}
