//! What README.md and docs/routing.md show of the simulator is what their commands print. Figures of policies that go by hashes
//! change with what is hashed, and nobody looks for that there.
//!
//! To the digit, so on x86-64 alone: see [`crate`].

use std::process::Command;

use crate::simulated::simulate;

const README: &str = include_str!("../../README.md");
const ROUTING: &str = include_str!("../../docs/routing.md");

/// The lines behind the one that is `first`, down to that where `ends`.
fn lines_behind(text: &'static str, first: &str, ends: impl Fn(&str) -> bool) -> Vec<&'static str> {
    text.lines().skip_while(|line| *line != first).skip(1).take_while(|line| !ends(line)).collect()
}

#[test]
fn the_example_in_readme_is_what_its_command_prints() {
    let command = README.lines().find_map(|line| line.strip_prefix("    $ warmgate simulate ")).unwrap();
    let shown = lines_behind(README, &format!("    $ warmgate simulate {command}"), |line| line.starts_with('('));
    let shown = shown.iter().map(|line| line.trim()).collect::<Vec<_>>();
    let ended = Command::new(env!("CARGO_BIN_EXE_warmgate")).arg("simulate").args(command.split(' ')).output().unwrap();
    let printed = String::from_utf8(ended.stdout).unwrap();
    let printed: Vec<&str> = printed.lines().map(str::trim).collect();
    let without_end = |lines: &[&str]| lines.join("\n").trim_end().to_owned();
    assert!(shown.len() > 5, "there is no example");
    assert_eq!(without_end(&shown), without_end(&printed), "README.md shows the first of these");
}

#[test]
fn the_table_of_the_small_workload_is_what_its_command_prints() {
    let behind = lines_behind(ROUTING, "    warmgate simulate --workload shared-prefix", |line| line.starts_with('#'));
    let rows: Vec<&str> = behind.into_iter().filter(|line| line.starts_with("| `")).collect();
    let compared = simulate("--workload shared-prefix", &[]);
    for row in &rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let figures = compared.of(cells[0].trim_matches('`'));
        let printed = [
            format!("{:.1}", figures.hit_ratio * 100.0),
            format!("{:.0}", figures.prefill_tokens),
            format!("{:.0}", figures.ttft_p50 * 1e3),
            format!("{:.0}", figures.ttft_p90 * 1e3),
            format!("{:.2}", figures.skew_requests),
        ];
        let shown: Vec<String> = cells[1..].iter().map(|cell| cell.replace(',', "")).collect();
        assert_eq!(shown, printed, "docs/routing.md has {row}");
    }
    assert_eq!(rows.len(), 8, "a row for each policy");
}
