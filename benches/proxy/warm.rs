//! Which functions of the program requests run through: makes the list by which the linker puts them side by side
//! (`build/warm.ld`), from runs under callgrind.
//!
//! Those whose name many functions have (a generic one is called alike for all types) cannot be told apart by it, and are
//! put behind the others.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use crate::load::Load;
use crate::subject::{Kind, PROGRAM, Setting, Subject};
use crate::workload::Workload;

/// Where the list goes.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/build/warm.ld");

/// What is sent, by the names of the workloads. Large bodies run through the same, for longer.
const WORKLOADS: [&str; 4] = ["GET", "POST-2KB", "POST-32KB", "SSE-16"];

/// Requests of a workload, before it is looked at and then.
const REQUESTS: u64 = 200;

/// Connections, so that they do not find all as they left it.
const CONNECTIONS: usize = 4;

/// From so many functions of one name on, most of them are others.
const MANY: usize = 4;

/// What a hash in a name is written as; it differs from build to build.
const HASH: &str = "????????????????";

const HEAD: &str = "\
/* Functions that requests run through, for the linker to put side by side (build/main.rs). Made, not written:
     cargo bench --bench proxy -- --warm
   needs valgrind, and makes it anew. A name that a build does not have matches nothing. */
SECTIONS
{
  .text.warm : {
";
const FOOT: &str = "  }\n}\nINSERT BEFORE .text;\n";

/// What ran, by the functions' names as patterns.
type Heat = HashMap<String, Ran>;

/// What a function has executed itself, and how often it was called.
#[derive(Debug, Default)]
struct Ran {
    instructions: u64,
    calls: u64,
}

/// Runs the program under callgrind and writes the list.
pub(crate) async fn write(setting: &Setting, workloads: &[Arc<Workload>]) -> io::Result<()> {
    let (mut warm, counts) = (Vec::new(), counts()?);
    for (at, kind) in [Kind::Assumed, Kind::Exact].into_iter().enumerate() {
        let mut heat = Heat::new();
        let out = setting.folder.join(format!("{}.callgrind", kind.id()));
        let subject = Subject::start_under(kind, setting, callgrind(&out)).await?;
        let profiled = workloads.iter().filter(|workload| WORKLOADS.contains(&workload.name));
        for (part, workload) in (1..).zip(profiled) {
            eprintln!("{}, {}", kind.name(), workload.name);
            run(&subject, workload).await?;
            add(&mut heat, &fs::read_to_string(out.with_added_extension(part.to_string()))?);
        }
        // Those that the program does not have are libraries'. Of many, only what the default configuration runs is worth it.
        let is_of_many = |name: &String| counts.get(name).map(|count| *count >= MANY);
        let ran = heat.into_iter().filter(|(_, ran)| ran.is_warm());
        let ran = ran.filter_map(|(name, ran)| Some((is_of_many(&name)?, at, Reverse(ran.instructions), name)));
        warm.extend(ran.filter(|(is_of_many, at, ..)| !is_of_many || *at == 0));
    }
    warm.sort();
    let mut listed = HashSet::new();
    let names: Vec<&String> = warm.iter().map(|(.., name)| name).filter(|name| listed.insert(*name)).collect();
    fs::write(FILE, list(&names))?;
    eprintln!("{} functions, written to {FILE}", names.len());
    Ok(())
}

/// How the program is linked.
pub(crate) fn described() -> String {
    let bytes = fs::read(PROGRAM).unwrap_or_default();
    let warm = object::File::parse(&*bytes)
        .ok()
        .and_then(|program| program.section_by_name(".text.warm").map(|warm| warm.size()));
    match warm {
        Some(bytes) => format!("{:.1} MB of it what requests run through, side by side", bytes as f64 / 1e6),
        None => "its functions as they came".to_owned(),
    }
}

fn callgrind(out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["-q", "--tool=callgrind", "--instr-atstart=no", "--demangle=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command
}

/// Requests that are counted, behind some that make it warm.
async fn run(subject: &Subject, workload: &Arc<Workload>) -> io::Result<()> {
    let mut load = Load::open(subject.address, workload, subject.kind == Kind::Exact, CONNECTIONS).await?;
    load.run(REQUESTS as usize).await?;
    control(subject, &["-i", "on"])?;
    load.run(REQUESTS as usize).await?;
    control(subject, &["-d"])?;
    control(subject, &["-i", "off"])
}

fn control(subject: &Subject, args: &[&str]) -> io::Result<()> {
    let mut command = Command::new("callgrind_control");
    let status = command.args(args).arg(subject.pid().to_string()).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("callgrind_control {args:?}: {status}"))) }
}

/// Adds what callgrind has written (its manual, "Callgrind Format").
fn add(heat: &mut Heat, dump: &str) {
    let (mut names, mut function, mut callee) = (HashMap::new(), "", "");
    let mut lines = dump.lines();
    while let Some(line) = lines.next() {
        match line.split_once('=') {
            Some(("fn", id)) => function = named(&mut names, id),
            Some(("cfn", id)) => callee = named(&mut names, id),
            Some(("calls", calls)) => {
                let calls = calls.split(' ').next().and_then(|calls| calls.parse::<u64>().ok());
                heat.entry(generic(callee)).or_default().calls += calls.unwrap_or_default();
                // What they took is the callee's own.
                lines.next();
            }
            None if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) => {
                let count = line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
                heat.entry(generic(function)).or_default().instructions += count.unwrap_or_default();
            }
            _ => {}
        }
    }
}

/// The name that `(7) name` gives to 7, or that it was given before.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, id: &'a str) -> &'a str {
    match id.split_once(' ') {
        Some((id, name)) => {
            names.insert(id, name);
            name
        }
        None => names.get(id).copied().unwrap_or_default(),
    }
}

/// A mangled name as a pattern for any build: with any hash, and any number that the optimizer has made it unique by.
fn generic(name: &str) -> String {
    // Callgrind counts how deep a function is in itself.
    let name = name.split('\'').next().unwrap_or_default();
    let (name, end) = name.split_once(".llvm.").map_or((name, ""), |(name, _)| (name, ".llvm.*"));
    let hash = name.strip_suffix('E').and_then(|name| name.split_at_checked(name.len().checked_sub(HASH.len())?));
    match hash {
        Some((name, hash)) if name.ends_with("17h") && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{name}{HASH}E{end}")
        }
        _ => format!("{name}{end}"),
    }
}

/// How many functions of the program have a name.
fn counts() -> io::Result<HashMap<String, usize>> {
    let bytes = fs::read(PROGRAM)?;
    let program = object::File::parse(&*bytes).map_err(io::Error::other)?;
    let functions = program.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let mut counts = HashMap::new();
    for name in functions.filter_map(|symbol| symbol.name().ok().map(generic)) {
        *counts.entry(name).or_default() += 1;
    }
    Ok(counts)
}

/// The linker's script.
fn list(names: &[&String]) -> String {
    let mut list = String::from(HEAD);
    for name in names {
        let _ = writeln!(list, "    *(\".text.{name}\")");
    }
    list + FOOT
}

// === impl Ran ===

impl Ran {
    /// Whether requests of one of the workloads run through it: by its calls, or, for loops that never end, by what it does.
    fn is_warm(&self) -> bool {
        self.calls * 2 >= REQUESTS || self.instructions >= 50 * REQUESTS
    }
}
