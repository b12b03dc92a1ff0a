//! `warmgate simulate` as a command: what it prints, what it draws, and what it says to input that makes no sense.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The fields of a policy's object.
const FIELDS: [&str; 15] = [
    "policy",
    "hit_ratio",
    "prefill_tokens",
    "ttft_mean",
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "e2e_mean",
    "skew_tokens",
    "skew_requests",
    "goodput",
    "requests",
    "failed",
    "utilization",
    "speed",
];

/// Two requests in Mooncake's form, of which the second finds a block of the first.
const TRACE: &str = "\
{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 20, \"hash_ids\": [7, 8]}
{\"timestamp\": 5000, \"input_length\": 1200, \"output_length\": 20, \"hash_ids\": [7, 9, 10]}
";

/// What the command did.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// A file of this test, gone when it ends.
struct Scratch(PathBuf);

// === impl Ended ===

impl Ended {
    fn json(&self) -> Vec<Value> {
        assert_eq!((self.code, &*self.stderr), (Some(0), ""), "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }
}

// === impl Scratch ===

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("warmgate-simulate-{}-{name}", std::process::id())))
    }

    fn with(name: &str, text: &str) -> Self {
        let scratch = Self::new(name);
        std::fs::write(&scratch.0, text).unwrap();
        scratch
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs `warmgate simulate` with the words of `words` and then `more`.
fn simulate(words: &str, more: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmgate"));
    let output = command.arg("simulate").args(words.split_whitespace()).args(more).output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    Ended { code: output.status.code(), stdout, stderr }
}

/// What the command says to words that it refuses: nothing on standard output.
fn refusal(words: &str) -> String {
    let ended = simulate(words, &[]);
    assert!(ended.code.is_some_and(|code| code != 0) && ended.stdout.is_empty(), "{words}: {}", ended.stdout);
    ended.stderr
}

#[test]
fn json_has_an_object_a_policy_with_the_documented_fields() {
    let results = simulate("--requests 60 --speed 2 --policies cost,random,pooled --json", &[]).json();
    let names: Vec<_> = results.iter().map(|result| result["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["cost", "random", "pooled"]);
    for result in &results {
        let fields: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
        let mut documented = FIELDS;
        documented.sort_unstable();
        assert_eq!(fields, documented);
        assert!(FIELDS[1..].iter().all(|field| result[field].is_number()), "{result}");
        assert_eq!(["requests", "failed", "speed"].map(|field| result[field].as_f64().unwrap()), [60.0, 0.0, 2.0]);
        for share in ["hit_ratio", "goodput", "utilization"] {
            assert!((0.0..=1.0).contains(&result[share].as_f64().unwrap()), "{share} in {result}");
        }
    }
}

#[test]
fn faults_add_what_came_before_and_after_them() {
    let words = "--requests 60 --speed 1 --policies cost --json --fault slow@8:0:2 --fault restart@5:1:1";
    let results = simulate(words, &[]).json();
    assert!(results[0]["ttft_p90_before"].is_number(), "{}", results[0]);
    assert_eq!(results[0]["ttft_p90_after"].as_array().unwrap().len(), 2);
}

#[test]
fn the_table_has_a_line_a_policy_and_each_run_is_the_same() {
    let words = "--requests 60 --speed 2 --policies cost,least_request,cost --seeds 2";
    let [first, second] = [(); 2].map(|()| simulate(words, &[]));
    assert_eq!((first.code, &first.stdout), (Some(0), &second.stdout));
    let starts = |name: &str| first.stdout.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((starts("Simulated: conversation, 60 requests"), starts("cost "), starts("least_request ")), (1, 1, 1));
}

#[test]
fn a_plot_is_drawn() {
    let plot = Scratch::new("plot.svg");
    let ended = simulate("--requests 60 --speed 2 --policies cost,random --plot", &[plot.path()]);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let drawn = std::fs::read_to_string(plot.path()).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    assert!(drawn.contains("cost") && drawn.contains("random"), "it names what it shows");
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_and_nothing_is_printed() {
    let ended = simulate("--requests 20 --speed 2 --policies cost --plot /nonexistent/plot.svg", &[]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.stderr.contains("--plot /nonexistent/plot.svg: "), "{}", ended.stderr);
}

#[test]
fn a_trace_is_replayed() {
    let trace = Scratch::with("trace.jsonl", TRACE);
    let results = simulate("--speed 1 --policies cost,round_robin --json --trace", &[trace.path()]).json();
    let of = |field: &str| [0, 1].map(|at: usize| results[at][field].as_f64().unwrap());
    assert_eq!(of("requests"), [2.0, 2.0]);
    assert_eq!(of("prefill_tokens"), [1_288.0, 1_800.0], "a block of 512 is found where the first request was");
    assert_eq!(of("hit_ratio"), [1.0 / 3.0, 0.0], "of three whole blocks");
}

#[test]
fn a_bad_line_of_a_trace_is_told_with_its_place_and_nothing_is_written() {
    let trace = Scratch::with("bad.jsonl", &TRACE.replace("1200", "\"many\""));
    let plot = Scratch::new("bad.svg");
    let ended = simulate("--speed 1 --trace", &[trace.path(), "--plot", plot.path()]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    let place = format!("{}:2:", trace.path());
    assert!(ended.stderr.contains(&place) && ended.stderr.contains("input_length"), "{}", ended.stderr);
    assert!(!plot.0.exists(), "no picture of nothing");
}

#[test]
fn a_trace_that_is_not_there_is_told_once() {
    let text = refusal("--trace /nonexistent/trace.jsonl");
    assert!(text.contains("/nonexistent/trace.jsonl: cannot be read: "), "{text}");
    assert_eq!(text.matches("No such file").count(), 1, "{text}");
}

#[test]
fn names_that_do_not_exist_are_told_with_those_that_do() {
    for (words, said) in [
        ("--workload chat", ["'chat'", "shared-prefix, conversation, agentic, rag, no-sharing, burst"]),
        ("--policies cost,bets", ["'bets'", "round_robin, random, pooled"]),
        ("--engine h100", ["'h100'", "reference, prefill_first, linear, small"]),
        ("--events guessed", ["'guessed'", "exact, assumed"]),
    ] {
        let text = refusal(words);
        assert!(said.iter().all(|said| text.contains(said)), "{words}: {text}");
    }
}

#[test]
fn faults_that_cannot_happen_are_told() {
    for (words, said) in [
        ("--fault restart@5", "restart@SECONDS:BACKEND"),
        ("--fault burn@5:1", "none of restart, slow, add"),
        ("--fault slow@5:8:2", "--fault slow@5:8:2: backends are 0 to 7 then"),
        ("--fault slow@5:2:2 --backends 2", "backends are 0 to 1 then"),
    ] {
        let text = refusal(words);
        assert!(text.contains(said), "{words}: {text}");
    }
    let grown = simulate("--requests 20 --speed 1 --policies cost --fault slow@5:8:2 --fault add@4", &[]);
    assert_eq!(grown.code, Some(0), "the ninth is there by then: {}", grown.stderr);
}

#[test]
fn options_that_make_no_sense_together_are_told() {
    for (words, said) in [
        ("--workload shared-prefix --utilization 0.5", "--utilization: shared-prefix is a closed loop"),
        ("--workload shared-prefix --speed 2", "--speed: shared-prefix is a closed loop"),
        ("--workload rag --clients 4", "--clients: only shared-prefix has clients"),
        ("--speed 2 --utilization 0.5", "cannot be used with"),
        ("--trace t.jsonl --workload rag", "cannot be used with"),
        ("--trace t.jsonl --requests 9", "cannot be used with"),
        ("--kv-tokens 1000 --requests 20", "expected at least"),
        (
            "--workload shared-prefix --kv-tokens 2000",
            "an engine has room for 1800 in blocks of 225; expected at least 2700",
        ),
        ("--decode-ms 1", "--decode-ms 1: a step of this engine takes 4 ms"),
        ("--speed 0.00001", "days at 0.00001 times the workload's speed"),
        ("--utilization 0.99", "expected a number from 0.01 to 0.98"),
        ("--speed 0", "expected a number from"),
        ("--requests 100000 --seeds 200", "--seeds: 200 times 100000 requests; expected at most 2000000"),
        ("--requests 0", "0 is not in 1..="),
    ] {
        let text = refusal(words);
        assert!(text.contains(said), "{words}: {text}");
    }
}

#[test]
fn a_utilization_that_few_requests_cannot_reach_is_told_with_what_they_can() {
    let trace = Scratch::with("short.jsonl", TRACE);
    let ended = simulate("--utilization 0.6 --trace", &[trace.path()]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    for said in ["0.6 cannot be reached with these 2 requests", "use --speed, or more requests"] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
}

#[test]
fn the_small_workload_runs_as_it_is() {
    let words = "--workload shared-prefix --requests 400 --policies cost,prefix_affinity,round_robin --json";
    let results = simulate(words, &[]).json();
    let of = |field: &str| [0, 1, 2].map(|at: usize| results[at][field].as_f64().unwrap());
    let [cost, affinity, turns] = of("hit_ratio");
    assert!(cost > turns + 0.1 && affinity > turns + 0.1, "{cost}, {affinity}, {turns}");
    assert!(of("utilization").iter().all(|busy| (0.2..0.98).contains(busy)), "{:?}", of("utilization"));
}

#[test]
fn a_reader_that_has_gone_ends_it_quietly_and_a_full_disk_is_an_error() {
    let ended = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmgate"));
        command.args(["simulate", "--requests", "50", "--speed", "1", "--policies", "cost", "--json"]);
        let output = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(ended(writer.into()), (Some(0), String::new()));
    let (code, said) = ended(std::fs::File::create("/dev/full").unwrap().into());
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("warmgate: standard output: "), "{said}");
}
