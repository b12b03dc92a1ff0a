//! What operators are given (docs/operations.md, conf/alerts.yaml, conf/dashboard.json) agrees with the program and with itself.
//!
//! Metrics are held against README.md's table, which tests/admin.rs holds against /metrics of a running proxy. Expressions
//! are not parsed here: `promtool check rules` does that where it is installed.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]
#![allow(clippy::print_stdout, reason = "what is skipped, and what came of it, is for people")]

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use warmgate::metrics::Reason;

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of the table whose header has this first cell, as cells.
fn table<'a>(document: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let start = format!("| {first} |");
    let rows = document.lines().skip_while(|line| !line.starts_with(&start)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
        kept.map(|char| if char == ' ' { '-' } else { char }).collect()
    };
    headings.map(anchor).collect()
}

/// The names of README.md's table, as /metrics has them.
fn documented_metrics() -> BTreeSet<String> {
    let readme = read("README.md");
    let rows = table(&readme, "metric (`warmgate_...`)");
    let names = rows.iter().flat_map(|cells| quoted(cells[0]));
    names.map(|name| if name.starts_with("process_") { name.into() } else { format!("warmgate_{name}") }).collect()
}

/// The program's metrics that an expression names, without the endings of histograms.
fn metrics_in(expression: &str) -> Vec<String> {
    let words = expression.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    let ours = words.filter(|word| word.starts_with("warmgate_") || word.starts_with("process_"));
    let base = |word: &str| {
        let endings = ["_bucket", "_sum", "_count"];
        endings.iter().find_map(|ending| word.strip_suffix(ending)).unwrap_or(word).to_owned()
    };
    ours.map(base).collect()
}

fn check_metrics(place: &str, expression: &str, documented: &BTreeSet<String>) {
    let named = metrics_in(expression);
    assert!(!named.is_empty() || expression.starts_with("up{"), "{place} asks for nothing of ours: {expression}");
    let unknown: Vec<_> = named.iter().filter(|name| !documented.contains(*name)).collect();
    assert!(unknown.is_empty(), "{place} names metrics that README.md does not have: {unknown:?}");
    let is_closed = |open: char, close: char| expression.matches(open).count() == expression.matches(close).count();
    assert!(is_closed('(', ')') && is_closed('{', '}') && is_closed('[', ']'), "{place}: {expression}");
}

#[test]
fn every_alert_has_what_it_takes_and_a_place_in_the_runbook() {
    let (rules, runbook, documented) = (yaml("conf/alerts.yaml"), read("docs/operations.md"), documented_metrics());
    let anchors = anchors(&runbook);
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let mut names = BTreeSet::new();
    for rule in rules {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let name = text(&rule["alert"]).expect("an alert has a name");
        check_metrics(&name, &text(&rule["expr"]).unwrap(), &documented);
        assert!(text(&rule["for"]).is_some(), "{name} has no `for`");
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        for note in ["summary", "description"] {
            assert!(text(&rule["annotations"][note]).is_some(), "{name} has no {note}");
        }
        let link = text(&rule["annotations"]["runbook_url"]).unwrap();
        let anchor = link.split_once("docs/operations.md#").unwrap_or_else(|| panic!("{name}: {link}")).1;
        assert!(anchors.contains(anchor), "{name}: {anchor} is no heading of docs/operations.md");
        assert!(names.insert(name), "an alert twice");
    }
    let explained: BTreeSet<String> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("### Warmgate"))
        .map(|rest| format!("Warmgate{rest}"))
        .collect();
    assert_eq!(explained, names, "the alerts of docs/operations.md and of conf/alerts.yaml");
}

#[test]
fn the_rules_are_what_prometheus_takes() {
    let rules = format!("{}/conf/alerts.yaml", env!("CARGO_MANIFEST_DIR"));
    match Command::new("promtool").args(["check", "rules", &rules]).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => println!("skipped: promtool: {error}"),
    }
}

#[test]
fn every_panel_asks_for_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(&read("conf/dashboard.json")).unwrap();
    let documented = documented_metrics();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["type"] == "datasource" && variable["name"] == "datasource"));
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        check_metrics("a variable", variable["query"].as_str().unwrap(), &documented);
    }
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: an id twice");
        assert!(places.insert(panel["gridPos"].to_string()), "{title}: two panels in one place");
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            check_metrics(title, target["expr"].as_str().unwrap(), &documented);
        }
    }
}

#[test]
fn every_reason_of_the_access_log_is_explained() {
    let runbook = read("docs/operations.md");
    let rows = table(&runbook, "reason");
    let explained: BTreeSet<_> = rows.iter().flat_map(|cells| quoted(cells[0])).collect();
    let reasons: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(explained, reasons, "the reasons of docs/operations.md and of the program");
    assert!(rows.iter().all(|cells| cells.len() == 3 && cells.iter().all(|cell| !cell.is_empty())), "{rows:?}");
    let used = table(&runbook, "code").iter().flat_map(|cells| quoted(cells[2])).collect::<BTreeSet<_>>();
    assert!(used.is_subset(&reasons), "{used:?}");
}

#[test]
fn every_code_of_an_error_reply_is_explained() {
    let source = read("src/proxy/reject.rs");
    let body = source.split_once("fn code(&self)").unwrap().1.split_once("\n    }\n").unwrap().0;
    let codes: BTreeSet<_> = body.split('"').skip(1).step_by(2).collect();
    assert!(codes.len() > 15, "{codes:?}");
    let runbook = read("docs/operations.md");
    let explained: BTreeSet<_> = table(&runbook, "code").iter().flat_map(|cells| quoted(cells[0])).collect();
    assert_eq!(explained, codes, "the codes of docs/operations.md and of the program");
}

#[test]
fn the_table_of_limits_has_the_defaults_of_the_configuration() {
    let (example, runbook) = (yaml("conf/example.yaml"), read("docs/operations.md"));
    let rows = table(&runbook, "key");
    assert!(rows.len() > 20, "{rows:?}");
    for cells in rows {
        let key = quoted(cells[0]).next().unwrap();
        let value = key.split('.').fold(&example, |value, part| match part.strip_suffix("[]") {
            Some(list) => &value[list][0],
            None => &value[part],
        });
        let default = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        assert_eq!(cells[1], default, "{key} in docs/operations.md and in conf/example.yaml");
    }
}

#[test]
fn links_within_the_runbook_lead_somewhere() {
    let runbook = read("docs/operations.md");
    let anchors = anchors(&runbook);
    let targets = runbook.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    for target in targets {
        match target.split_once('#') {
            Some(("", anchor)) => assert!(anchors.contains(anchor), "{target}"),
            Some((file, anchor)) => assert!(self::anchors(&read(&format!("docs/{file}"))).contains(anchor), "{target}"),
            None => assert!(!read(&format!("docs/{target}")).is_empty(), "{target}"),
        }
    }
}
