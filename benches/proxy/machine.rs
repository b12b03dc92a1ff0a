//! What the figures were measured on and with.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use crate::cores::Cores;
use crate::subject::{Kind, PROGRAM};
use crate::warm;

/// A list, one item a line.
pub(crate) fn describe(kinds: &[Kind], cores: &Cores) -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let there = processor.lines().filter(|line| line.starts_with("processor")).count();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let bytes = fs::metadata(PROGRAM).map_or(0, |file| file.len());
    let build = if cfg!(debug_assertions) { "debug, so the figures mean nothing" } else { "release" };
    let mut lines = vec![
        format!("date: {}", humantime::format_rfc3339_seconds(SystemTime::now())),
        format!("machine: {}, {there} cores, Linux {}", processor.unwrap_or("unknown processor"), kernel.trim()),
        cores.described(),
        format!("load average before: {load}"),
        format!("build: {}, {build}, commit {}", first_line("rustc", &["-V"]), commit()),
        format!("warmgate's program: {:.1} MB, {}", bytes as f64 / 1e6, warm::described()),
    ];
    for kind in kinds {
        match kind {
            Kind::Nginx => lines.push(first_line("nginx", &["-v"])),
            Kind::Haproxy => lines.push(first_line("haproxy", &["-v"])),
            Kind::Router(router) => lines.push(format!("{} {}", router.name(), router.version().unwrap_or_default())),
            _ => {}
        }
    }
    lines.iter().map(|line| format!("- {line}\n")).collect()
}

fn commit() -> String {
    first_line("git", &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"])
}

/// What a program says of itself, wherever it says it.
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success());
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().next().unwrap_or("unknown").trim().to_owned()
}

/// Where results of this name are kept.
pub(crate) fn results_file(name: &str) -> std::path::PathBuf {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results").join(format!("{name}-{}.md", &date[..10]))
}
