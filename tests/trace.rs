//! The block trace: what is published can be read, and what the proxy records of its own traffic as well.

mod common_control;

use std::path::{Path, PathBuf};

use common_control::child::{Process, fails_to_start};
use common_control::client::{ask, post_chat};
use common_control::engine::{Answer, Engine, TOKENS};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, long_prompt, streamed};
use serde_json::{Value, json};
use warmgate::trace::{self, TraceLine};

/// Files that lie beside the project.
fn shared() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    std::env::var_os("WARMGATE_SHARED").map_or_else(beside, PathBuf::from)
}

#[test]
fn the_published_conversation_trace_is_read() {
    let path = shared().join("traces/mooncake-conversation.jsonl");
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
        return;
    }
    let requests = trace::read_file(&path).unwrap_or_else(|error| panic!("{error}"));
    assert!(requests.len() > 1000);
    assert!(requests.is_sorted_by_key(|request| request.timestamp));
}

/// Logging with a block trace to `file`; `more` keys of it.
fn recording(file: &Path, more: &str) -> String {
    format!("{{access_log: 'off', block_trace: {{file: {}{more}}}}}", file.display())
}

/// A proxy for `engines` that records, with the file.
async fn recorded(engines: &[&Engine], more: &str) -> (Proxy, Scratch, PathBuf) {
    let folder = Scratch::new();
    let file = folder.path().join("trace.jsonl");
    let settings = Settings { logging: recording(&file, more), ..Settings::new(engines.iter().copied()) };
    (Proxy::with(&settings, engines).await, folder, file)
}

/// Waits until so many lines were written since the start.
async fn until_written(proxy: &Proxy, lines: usize) {
    let lines = Some(lines as f64);
    eventually("the lines are written", async || proxy.metric("warmgate_trace_lines_total").await == lines).await;
}

fn read(file: &Path) -> Vec<TraceLine> {
    trace::read_file(file).unwrap_or_else(|error| panic!("{error}"))
}

fn shared_ids(left: &TraceLine, right: &TraceLine) -> usize {
    left.hash_ids.iter().zip(&right.hash_ids).take_while(|(left, right)| left == right).count()
}

/// The file called `number` files old.
fn older(file: &Path, number: u32) -> PathBuf {
    format!("{}.{number}", file.display()).into()
}

// === what is recorded ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turns_of_a_conversation_share_their_prefix_and_nothing_of_their_text_is_kept() {
    const MARKER: &str = "a-secret-of-mine";
    let engines = ["turns-one", "turns-two"].map(Engine::up);
    let (proxy, _folder, file) = recorded(&engines.each_ref(), "").await;
    let mut bodies = Vec::new();
    for conversation in ["first", "second"] {
        let mut messages = Vec::new();
        for turn in 0..4 {
            let text = long_prompt(&format!("{MARKER} {conversation} {turn}"));
            messages.push(json!({"role": "user", "content": text}));
            let body = json!({"model": "m", "messages": messages, "user": MARKER});
            let reply = proxy.chat(&body).await;
            assert_eq!(reply.status, 200);
            messages.push(reply.json()["choices"][0]["message"].clone());
            bodies.push(body.to_string());
            // One after another, so that the file's order is ours.
            until_written(&proxy, bodies.len()).await;
        }
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(MARKER) && !text.contains("turns-") && text.len() < 4096, "{text}");

    let lines = read(&file);
    assert_eq!(lines.len(), bodies.len());
    for (line, body) in lines.iter().zip(&bodies) {
        assert_eq!(line.input_length as usize, body.len() / 3, "the engine's count");
        assert_eq!(line.output_length, 1);
        assert_eq!(line.hash_ids.len(), line.input_length.div_ceil(trace::BLOCK_TOKENS) as usize);
        assert!(line.hash_ids.iter().all(|&id| id < 1 << 53));
    }
    for turns in lines.chunks(4) {
        for (turn, pair) in turns.windows(2).enumerate() {
            // Four bytes count as a token of the chain; a turn has 1000 of those tokens, and nearly two ids.
            let whole = (turn + 1) * 4000 / 4 / 512;
            assert!((whole..=whole + 1).contains(&shared_ids(&pair[0], &pair[1])), "{turn}: {pair:?}");
        }
    }
    assert_eq!(shared_ids(&lines[3], &lines[7]), 0, "the conversations begin differently");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_reports_nothing_is_estimated_and_counted() {
    let engine = Engine::up("streams");
    let (proxy, _folder, file) = recorded(&[&engine], "").await;
    let body = streamed(&long_prompt("streamed"));
    for sent in 1..=2 {
        assert_eq!(proxy.chat(&body).await.status, 200);
        until_written(&proxy, sent).await;
    }
    let lines = read(&file);
    let estimate = body.to_string().len() / 4;
    assert!((estimate - 50..estimate + 50).contains(&(lines[0].input_length as usize)), "{lines:?}");
    assert_eq!(lines[0].output_length as usize, TOKENS);
    assert!(lines[0].timestamp <= lines[1].timestamp);
    assert_eq!(lines[0].hash_ids, lines[1].hash_ids, "the same prompt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_prompt_of_a_batch_has_its_line() {
    let engine = Engine::up("batch");
    let (proxy, _folder, file) = recorded(&[&engine], "").await;
    let prompts = ["one", "two"].map(long_prompt);
    let body = json!({"model": "m", "prompt": [prompts[0], prompts[1], prompts[0]]}).to_string();
    assert_eq!(ask(proxy.address(), "POST", "/v1/completions", &body).await.status, 200);
    until_written(&proxy, 3).await;
    let lines = read(&file);
    assert_eq!(lines[0], lines[2]);
    assert_eq!(shared_ids(&lines[0], &lines[1]), 0);
    assert!(lines.iter().all(|line| (900..1100).contains(&line.input_length)), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_served_or_is_no_work_is_not_recorded() {
    let engine = Engine::up("unserved");
    let (proxy, _folder, file) = recorded(&[&engine], "").await;
    let address = proxy.address();
    let prompt = chat("hello").to_string();
    assert_eq!(ask(address, "POST", "/v1/chat/completions", "{").await.status, 400);
    assert_eq!(ask(address, "POST", "/tokenize", &prompt).await.status, 200);
    assert_eq!(ask(address, "POST", "/v1/messages/count_tokens", &prompt).await.status, 200);
    assert_eq!(ask(address, "POST", "/v1/unknown", &prompt).await.status, 200);
    engine.set_answer(Answer::Status(429));
    assert_eq!(ask(address, "POST", "/v1/chat/completions", &prompt).await.status, 429);
    engine.set_answer(Answer::Whole);
    eventually("they have ended", async || proxy.metric("warmgate_requests_in_service").await == Some(0.0)).await;
    assert_eq!(proxy.chat(&streamed("hello")).await.status, 200);
    until_written(&proxy, 1).await;
    assert_eq!(read(&file)[0].output_length as usize, TOKENS, "it is the last one");
}

// === the files ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_bounds_the_bytes_on_disk() {
    const MIB: u64 = 1 << 20;
    const BATCH: usize = 64;
    let engine = Engine::up("rotated-trace");
    let (proxy, folder, file) = recorded(&[&engine], ", max_bytes: 1MiB, files: 2").await;
    let body = json!({"model": "m", "prompt": vec!["short"; BATCH]}).to_string();
    let line_bytes = 70;
    let requests = 5 * MIB as usize / 2 / (BATCH * line_bytes);
    for _ in 0..requests {
        assert_eq!(ask(proxy.address(), "POST", "/v1/completions", &body).await.status, 200);
    }
    until_written(&proxy, requests * BATCH).await;
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["trace.jsonl", "trace.jsonl.1"]);
    let files = [&file, &older(&file, 1)];
    let sizes = files.map(|file| std::fs::metadata(file).unwrap().len());
    assert!(sizes[0] <= MIB && sizes[1] <= MIB && sizes[1] > MIB - 1000, "{sizes:?}");
    let kept: usize = files.iter().map(|file| read(file).len()).sum();
    assert!(kept < requests * BATCH, "more was written than is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_counted_and_the_proxy_serves_on() {
    let engine = Engine::up("full-disk");
    let settings = Settings { logging: recording(Path::new("/dev/full"), ""), ..Settings::new([&engine]) };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    for dropped in 1..=3 {
        assert_eq!(proxy.chat(&chat("hello")).await.status, 200);
        let is_counted = async || proxy.metric("warmgate_trace_dropped_total").await == Some(f64::from(dropped));
        eventually("the line is counted", is_counted).await;
    }
    assert_eq!(proxy.metric("warmgate_trace_lines_total").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_switches_it_on_elsewhere_and_off() {
    let engine = Engine::up("switched");
    let plain = Settings::new([&engine]);
    let proxy = Proxy::with(&plain, &[&engine]).await;
    let folder = Scratch::new();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    let to = |file: &Path, more: &str| Settings { logging: recording(file, more), ..plain.clone() };
    let body = chat(&long_prompt("switched"));
    // It is recorded when it has ended, which is a little after its reply, and by the settings of then.
    let send = async || {
        assert_eq!(proxy.chat(&body).await.status, 200);
        eventually("it has ended", async || proxy.metric("warmgate_requests_in_service").await == Some(0.0)).await;
    };

    send().await;
    proxy.apply(&to(&one, "")).await;
    send().await;
    until_written(&proxy, 1).await;
    proxy.apply(&to(&two, "")).await;
    send().await;
    until_written(&proxy, 2).await;
    // Another setting of the same file begins a new one.
    proxy.apply(&to(&two, ", files: 3")).await;
    send().await;
    until_written(&proxy, 3).await;
    // A reload that changes nothing of it does not.
    proxy.apply(&Settings { retry: "{max_attempts: 2}".into(), ..to(&two, ", files: 3") }).await;
    send().await;
    until_written(&proxy, 4).await;
    proxy.apply(&plain).await;
    send().await;

    let files = [&one, &older(&two, 1), &two].map(|file| read(file));
    assert_eq!(files.each_ref().map(Vec::len), [1, 1, 2]);
    let ids: Vec<_> = files.iter().flatten().map(|line| &line.hash_ids).collect();
    assert!(ids.iter().all(|&other| other == ids[0]), "one process, one salt: {ids:?}");
    assert_eq!(proxy.metric("warmgate_trace_lines_total").await, Some(4.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_opened_refuses_the_reload_and_the_start() {
    let engine = Engine::up("no-trace");
    let proxy = Proxy::with(&Settings::new([&engine]), &[&engine]).await;
    let nowhere = proxy.scratch().path().join("no/such/folder/trace");
    let settings = Settings { logging: recording(&nowhere, ""), ..Settings::new([&engine]) };
    proxy.rewrite(&settings);
    let reply = proxy.reload().await;
    assert_eq!(reply.status, 422, "{}", reply.body);
    assert!(reply.body.contains("block trace") && reply.body.contains("no/such/folder"), "{}", reply.body);
    let ended = fails_to_start(proxy.file()).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for part in ["block trace", "no/such/folder/trace", "folder has to exist"] {
        assert!(ended.stderr.contains(part), "{part} in {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_process_loses_no_line_and_the_next_one_begins_anew() {
    let engine = Engine::up("restarted");
    let (scratch, folder) = (Scratch::new(), Scratch::new());
    let trace = folder.path().join("trace");
    let settings = Settings { logging: recording(&trace, ""), ..Settings::new([&engine]) };
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let body: Value = chat(&long_prompt("restarted"));
    for requests in [3, 1] {
        let mut process = Process::ready(&file).await;
        process.until_state("restarted", "healthy").await;
        for _ in 0..requests {
            assert_eq!(post_chat(process.address(), &body).await.status, 200);
        }
        process.signal("TERM");
        process.ended().await;
    }
    let (new, old) = (read(&trace), read(&older(&trace, 1)));
    assert_eq!((new.len(), old.len()), (1, 3));
    assert_eq!(old[0].hash_ids, old[2].hash_ids);
    assert!(new[0].hash_ids.iter().all(|id| !old[0].hash_ids.contains(id)), "each process has its own salt");
}
