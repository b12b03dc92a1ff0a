//! The command line: what each command is called, takes and prints.

mod engine;
mod explain;
mod key;
pub(crate) mod output;

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config;
use crate::control;
use crate::demo::{self, DemoArgs};
use crate::handover::launcher;
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
    /// Serve: the proxy itself, until SIGTERM (drains) or SIGINT (at once); SIGHUP reloads the configuration,
    /// SIGUSR2 lets a new process take over
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
    /// Start the process that takes over in an upgrade; `run` calls it
    #[command(name = launcher::COMMAND, hide = true)]
    Launch(LaunchArgs),
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// The configuration file (YAML); conf/minimal.yaml is the smallest, conf/example.yaml shows every key
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct LaunchArgs {
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
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
        Command::Launch(args) => launch(&args.command),
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
    // Where the system gives huge pages unasked, memory that is touched here and there is resident as a whole: an idle
    // process takes twice as much. A system that cannot do without them is no reason not to run.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    server::run(path)?;
    Ok(ExitCode::SUCCESS)
}

fn launch(command: &[OsString]) -> Result<ExitCode, Box<dyn Error>> {
    let (program, arguments) = command.split_first().ok_or("the program to start is missing")?;
    Ok(launcher::launch(Path::new(program), arguments)?)
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

/// Prints an error with what caused it.
#[expect(clippy::print_stderr, reason = "the result of the command")]
fn report(error: &dyn Error) {
    eprintln!("warmgate: {}", server::with_causes(error));
}
