//! What a request costs through warmgate, a bare Pingora pass-through of the same build, nginx, HAProxy, and the routers that
//! are published for the same purpose, from end to end.
//!
//!     cargo bench --bench proxy                        # all of it, a quarter of an hour
//!     cargo bench --bench proxy -- post-32KB latency   # what has one of these in its name
//!     cargo bench --bench proxy -- --proxies=warmgate sse
//!     cargo bench --bench proxy -- --apart              # proxies on half of the cores, engines and load on the other half
//!     cargo bench --bench proxy -- --save              # writes benches/results/proxy-DATE.md too
//!     cargo bench --bench proxy -- --warm              # writes build/warm.ld, and measures nothing
//!     benches/routers.sh                               # installs the routers first, and measures what they can take
//!
//! Engines, proxies and load are processes of their own on loopback; this program starts itself again for those that are
//! its own. CPU time is that of the proxy's process by the scheduler's clock. Proxies take turns in each round, and ratios
//! are made within a round, so that a machine that others use as well matters less. nginx, HAProxy and the routers are
//! measured where they are installed.
//!
//! `warmgate` is the default configuration with the access log off, as it is with the others: cost policy, locality by its
//! own decisions. `warmgate, exact` has a tokenizer (of words, made for this) and follows the engines' KV events. There the
//! engines make tokens of each prompt as well, on the same cores: its requests a second and latencies have that in them,
//! its CPU time has not.

#![expect(clippy::print_stdout, reason = "it prints what it measured")]

mod arrivals;
mod canned;
mod check;
mod client;
mod closed;
mod comparison;
mod configs;
mod cores;
mod engine;
mod figures;
mod fleet;
mod load;
mod machine;
mod memory;
mod message;
mod model;
mod open;
mod options;
mod pass_through;
mod process;
mod prose;
mod questions;
mod routers;
mod subject;
mod table;
mod teller;
mod warm;
mod workload;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use canned::Canned;
use cores::Cores;
use fleet::Fleet;
use options::Options;
use process::PART;
use subject::{Kind, Setting, Subject};
use workload::Workload;

/// The allocator of the program, for the pass-through.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A folder that goes when this is dropped.
struct Folder(PathBuf);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.split_first() {
        Some((first, part)) if first == PART => run_part(part),
        _ => Options::parse(&args).map_err(io::Error::other).and_then(|options| bench(&options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One of the processes that this program is besides.
fn run_part(part: &[String]) -> io::Result<()> {
    match part {
        [name, model] if name == "engines" => engine::run(Path::new(model)),
        [name, listen, threads, engines @ ..] if name == "pass-through" => {
            let engines = engines.iter().map(|engine| engine.parse().map_err(io::Error::other));
            let threads = threads.parse().map_err(io::Error::other)?;
            pass_through::run(listen, engines.collect::<io::Result<_>>()?, threads)
        }
        _ => Err(io::Error::other("no such part")),
    }
}

fn bench(options: &Options) -> io::Result<()> {
    let workloads = workloads();
    // `make bench` gives all benchmarks the same filters.
    if !closed::is_wanted(options, &workloads) && !options.wants(open::NAME) && !options.wants(memory::NAME) {
        return Ok(());
    }
    let cores = if options.are_apart { Cores::apart()? } else { Cores::shared()? };
    // Half of those that this process has is for the load; the rest is for engines.
    let threads = std::thread::available_parallelism()?.get().div_ceil(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let kinds: Vec<Kind> = options.kinds.iter().copied().filter(|kind| kind.is_installed()).collect();
    let missing = options.kinds.iter().filter(|kind| !kinds.contains(kind)).map(|kind| kind.name());
    let missing: Vec<&str> = missing.collect();
    if !missing.is_empty() {
        eprintln!("not installed and left out: {}", missing.join(", "));
    }
    let folder = Folder::new()?;
    let model = folder.0.join("model");
    model::write(&model)?;
    let description = machine::describe(&kinds, &cores);
    let setting = Setting { fleet: Fleet::start(&model)?, cores, folder: folder.0.clone(), model };
    if options.is_for_list {
        return runtime.block_on(warm::write(&setting, &workloads));
    }
    println!("{description}");
    let tables = runtime.block_on(measure(options, &kinds, &setting, &workloads))?;
    let text = format!("{description}\n{tables}");
    if let Some(name) = &options.saved_as {
        let file = machine::results_file(name);
        std::fs::create_dir_all(file.parent().unwrap_or(&file))?;
        std::fs::write(&file, format!("# Proxies compared\n\n`{}`\n\n{text}", command_line()))?;
        eprintln!("written to {}", file.display());
    }
    Ok(())
}

/// What prints the figures.
fn command_line() -> String {
    let args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    ["cargo", "bench", "--bench", "proxy", "--"].map(String::from).into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

async fn measure(
    options: &Options,
    kinds: &[Kind],
    setting: &Setting,
    workloads: &[Arc<Workload>],
) -> io::Result<String> {
    let mut subjects = Vec::new();
    for &kind in kinds {
        subjects.push(Subject::start(kind, setting).await?);
    }
    check::check(&setting.fleet, workloads, &subjects).await?;
    let mut text = String::new();
    let [closed, routers] = closed::measure(options, &setting.fleet, workloads, &subjects).await?;
    add(&mut text, "Closed loop", closed);
    add(&mut text, "Closed loop, routers beside warmgate", routers);
    let posts = workloads.iter().find(|workload| workload.name == "POST-32KB");
    let posts = posts.ok_or_else(|| io::Error::other("no workload for the open loop"))?;
    add(&mut text, "Open loop, 200 requests of 32 KB a second", open::measure(options, posts, &subjects).await?);
    drop(subjects);
    add(&mut text, "At rest", memory::measure(options, kinds, setting).await?);
    Ok(text)
}

fn add(text: &mut String, title: &str, table: Option<table::Table>) {
    if let Some(table) = table {
        let table = format!("## {title}\n\n{table}\n");
        println!("{table}");
        text.push_str(&table);
    }
}

/// The stems of large prompts are few, so that the engines' caches have room for them.
fn workloads() -> Vec<Arc<Workload>> {
    const KB: usize = 1024;
    let workloads = [
        Workload::get(),
        Workload::chats("POST-2KB", 2 * KB, 64, Canned::Plain),
        Workload::chats("POST-32KB", 32 * KB, 32, Canned::Plain),
        Workload::chats("POST-48KB", 48 * KB, 16, Canned::Plain),
        Workload::chats("POST-256KB", 256 * KB, 8, Canned::Plain),
        Workload::chats("POST-1MB", 1024 * KB, 4, Canned::Plain),
        Workload::chats("SSE-16", 2 * KB, 64, Canned::Stream(16)),
        Workload::chats("SSE-500", 2 * KB, 64, Canned::Stream(500)),
    ];
    workloads.into_iter().map(Arc::new).collect()
}

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("warmgate-bench-proxy-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
