//! `warmgate demo`: simulated engines behind the real proxy, the same conversations through `cost` and through
//! round-robin, and what it did to the time to first token.
//!
//! Everything runs in this process, on loopback. Each policy gets engines of its own, with cold caches, and the
//! conversations are generated from a seed, so both get the same work.

mod conversation;
mod fleet;
mod load;
mod model;
mod report;

use std::error::Error;
use std::io::{IsTerminal, stderr};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;

use crate::cli::output::print;
use conversation::Shape;
use fleet::Fleet;
use load::{Results, drive};

/// What the demo does.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// Simulated engines behind the proxy
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=64))]
    backends: u16,
    /// Conversations held through each policy
    #[arg(long, default_value_t = 80, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    conversations: u32,
    /// Seed of the conversations
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// Where the proxy listens afterwards; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// End after the comparison instead of serving until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Print the comparison as JSON and end
    #[arg(long)]
    json: bool,
}

/// Runs the demo.
///
/// # Errors
/// When an address cannot be listened on, the fleet does not become ready, or the result cannot be written.
pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(demonstrate(args))
}

async fn demonstrate(args: &DemoArgs) -> Result<ExitCode, Box<dyn Error>> {
    let shape = Shape { conversations: args.conversations, ..Shape::default() };
    let warm = Fleet::start("cost", args.backends, args.listen).await?;
    if !args.json {
        print(format_args!("{} simulated engines (8,000 prompt tokens a second each), {shape}", args.backends))?;
        let (address, admin) = (warm.address(), warm.admin_address());
        print(format_args!("  proxy   http://{address}   admin http://{admin}   policy cost"))?;
    }
    let with_cost = measure("cost", &warm, &shape, args.seed).await;
    let blind = Fleet::start("round_robin", args.backends, SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let with_round_robin = measure("round_robin", &blind, &shape, args.seed).await;
    blind.stop().await;
    if args.json {
        print(report::json(&with_cost, &with_round_robin))?;
    } else {
        print(format_args!("\n{}", report::comparison(&with_cost, &with_round_robin)))?;
    }
    if !args.once && !args.json {
        print(report::invitation(warm.address(), warm.admin_address()))?;
        tokio::signal::ctrl_c().await?;
    }
    warm.stop().await;
    let failed = with_cost.failed + with_round_robin.failed;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(policy: &str, fleet: &Fleet, shape: &Shape, seed: u64) -> Results {
    let mut progress = Progress::new(policy, shape.requests());
    drive(fleet.address(), shape, seed, |results| progress.show(results)).await
}

/// Says how far it is: rewriting one line on a terminal, else a line now and then.
struct Progress<'a> {
    policy: &'a str,
    requests: u32,
    is_terminal: bool,
    shown_tenths: u32,
}

// === impl Progress ===

impl<'a> Progress<'a> {
    fn new(policy: &'a str, requests: u32) -> Self {
        Self { policy, requests, is_terminal: stderr().is_terminal(), shown_tenths: 0 }
    }

    #[expect(clippy::print_stderr, reason = "progress is for whoever waits, not for the result")]
    fn show(&mut self, results: &Results) {
        let done = results.done();
        let line = report::progress(self.policy, done, self.requests, results);
        if self.is_terminal {
            let end = if done == self.requests { "\n" } else { "" };
            eprint!("\r{line}{end}");
            return;
        }
        let tenths = done * 10 / self.requests.max(1);
        if tenths > self.shown_tenths {
            self.shown_tenths = tenths;
            eprintln!("{line}");
        }
    }
}
