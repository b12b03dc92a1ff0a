//! What the logs say of requests, and do not say.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use common_control::child::Process;
use common_control::client::{Connection, ask, get, post_chat};
use common_control::engine::{Answer, Engine};
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, streamed};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const SECRET: &str = "xyzzy-secret-plugh";

/// Sends the secret in every place that a client has for one, and meets every kind of end.
async fn send_secrets(address: std::net::SocketAddr, engines: &[Engine; 2]) -> usize {
    let header = format!("authorization: Bearer {SECRET}\r\nx-api-key: {SECRET}\r\ncookie: a={SECRET}\r\n");
    let chat = json!({
        "model": "m", "user": SECRET,
        "messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": SECRET}],
        "tools": [{"type": "function", "function": {"name": SECRET, "description": SECRET}}],
    });
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let anthropic = json!({"model": "m", "system": SECRET, "messages": [{"role": "user", "content": SECRET}]});
    let broken = format!("{{\"messages\": [{{\"content\": \"{SECRET}\", ");
    let mut sent = 0;
    let mut connection = Connection::open(address).await.unwrap();
    let answers =
        [Answer::Whole, Answer::Status(500), Answer::Status(503), Answer::Status(400), Answer::Reset, Answer::Whole];
    for answer in answers {
        engines[0].set_answer(answer);
        for (path, body) in [
            ("/v1/chat/completions", chat.to_string()),
            (&format!("/v1/chat/completions?key={SECRET}"), streamed.to_string()),
            ("/v1/messages", anthropic.to_string()),
            ("/v1/completions", json!({"model": "m", "prompt": SECRET}).to_string()),
            ("/v1/chat/completions", broken.clone()),
            ("/v1/unknown", SECRET.to_owned()),
        ] {
            sent += 1;
            let reply =
                connection.ask("POST", path, &header, &body).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            if reply.header("connection") == Some("close") {
                connection = Connection::open(address).await.unwrap();
            }
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_and_keys_are_in_no_log_at_any_level() {
    let engines = ["secret-one", "secret-two"].map(Engine::up);
    for (level, target) in [("trace", "file"), ("debug", "stdout"), ("trace", "stderr")] {
        let scratch = Scratch::new();
        let log = scratch.path().join("access.log");
        let access_log = if target == "file" { log.display().to_string() } else { target.to_owned() };
        let logging = format!("{{level: {level}, access_log: {access_log}}}");
        let key = scratch.file("key", SECRET);
        let digest: String = Sha256::digest(SECRET).iter().map(|byte| format!("{byte:02x}")).collect();
        let keys = scratch.file("keys", format!("keys: [{{label: a, hash: 'sha256:{digest}'}}]"));
        let settings = Settings {
            logging,
            auth: format!("{{keys_file: {}}}", keys.display()),
            pool: format!("engine: generic, policy: round_robin, api_key_file: {}", key.display()),
            ..Settings::new(&engines)
        };
        let mut process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
        for engine in &engines {
            process.until_state(engine.name(), "healthy").await;
        }
        let sent = send_secrets(process.address(), &engines).await;
        let explained = ask(process.admin, "POST", "/explain", &chat(SECRET).to_string()).await;
        assert_eq!(explained.status, 200);
        assert!(!explained.body.contains(SECRET), "{}", explained.body);
        assert!(!get(process.admin, "/metrics").await.body.contains(SECRET));
        process.signal("TERM");
        process.ended().await;

        let lines_at = |target: &str| match target {
            "file" => {
                std::fs::read_to_string(&log).map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
            }
            "stdout" => process.stdout(),
            _ => process.stderr(),
        };
        let is_access_line = |line: &String| line.starts_with(r#"{"time":"#);
        let at_target = async || lines_at(target).iter().filter(|line| is_access_line(line)).count();
        eventually("a line a request", async || at_target().await == sent).await;
        for place in ["file", "stdout", "stderr"] {
            let lines: Vec<String> = lines_at(place);
            assert!(!lines.iter().any(|line| line.contains(SECRET)), "{place} at {level}: {lines:#?}");
            assert!(place == target || !lines.iter().any(is_access_line), "access lines in {place}, not {target}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_access_log_has_one_json_line_a_request() {
    let engine = Engine::up("accessed");
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    let logging = format!("{{access_log: {}}}", log.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    let mut connection = Connection::open(proxy.address()).await.unwrap();
    let headers = "x-request-id: an-id-of-mine\r\n";
    let body = chat("hello").to_string();
    let lines = || std::fs::read_to_string(&log).unwrap();
    let until = async |count| eventually("the line", async || lines().lines().count() == count).await;
    connection.ask("POST", "/v1/chat/completions?a=b", headers, &body).await.unwrap();
    until(1).await;
    proxy.chat(&streamed("hello")).await;
    until(2).await;
    ask(proxy.address(), "POST", "/v1/chat/completions", "{").await;
    until(3).await;
    let lines: Vec<Value> = lines().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let [plain, stream, wrong] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(plain["request_id"], "an-id-of-mine");
    assert_eq!((&plain["method"], &plain["path"]), (&json!("POST"), &json!("/v1/chat/completions")));
    assert_eq!((&plain["pool"], &plain["backend"], &plain["model"]), (&json!("main"), &json!("accessed"), &json!("m")));
    assert_eq!((&plain["status"], &plain["reason"], &plain["attempts"]), (&json!(200), &json!("served"), &json!(1)));
    assert_eq!(plain["request_bytes"], body.len());
    assert!(plain["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{plain}");
    assert!(humantime::parse_rfc3339(plain["time"].as_str().unwrap()).is_ok(), "{plain}");
    assert_eq!((&stream["stream"], &plain["stream"]), (&json!(true), &json!(false)));
    assert!(stream["ttft_millis"].is_number() && plain["ttft_millis"].is_null(), "{stream} {plain}");
    assert_eq!(
        (&wrong["status"], &wrong["reason"], &wrong["attempts"]),
        (&json!(400), &json!("bad_request"), &json!(0))
    );

    // A reload moves the log without losing a line.
    let moved = proxy.scratch().path().join("moved.log");
    let logging = format!("{{access_log: {}}}", moved.display());
    proxy.apply(&Settings { logging, ..settings }).await;
    post_chat(proxy.address(), &chat("hello")).await;
    eventually("a line in the new file", async || {
        std::fs::read_to_string(&moved).unwrap_or_default().lines().count() == 1
    })
    .await;
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_make_up_is_cut_in_the_access_log() {
    const MARKER: &str = "the-end-of-it";
    let engine = Engine::up("endless");
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    let logging = format!("{{level: trace, access_log: {}}}", log.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let mut process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
    process.until_state("endless", "healthy").await;
    let endless = |piece: &str, bytes: usize| format!("x{}{MARKER}", piece.repeat(bytes / piece.len()));
    let mut sent = 0;
    // Characters of one byte and of three: the limit falls within one of the latter.
    for piece in ["a", "\u{20ac}"] {
        let body = json!({"model": endless(piece, 1 << 20), "messages": []}).to_string();
        assert_eq!(ask(process.address(), "POST", "/v1/chat/completions", &body).await.status, 200);
        sent += 1;
    }
    let path = format!("/{}", endless("a", 32 << 10));
    for (method, status) in [("POST", 200), ("GET", 200), (&endless("A", 16 << 10), 0)] {
        let mut connection = Connection::open(process.address()).await.unwrap();
        let reply = connection.ask(method, &path, "", "{}").await.unwrap();
        assert!(status == 0 || reply.status == status, "{}", reply.body);
        sent += 1;
    }
    // More than a header may have, and refused; the log has a line of it all the same.
    let mut connection = Connection::open(process.address()).await.unwrap();
    let big = format!("x-big: {}\r\n", endless("a", 40 << 10));
    let refused = connection.ask("GET", &path, &big, "").await.unwrap();
    assert_eq!(refused.status, 431, "{}", refused.body);
    sent += 1;
    process.signal("TERM");
    process.ended().await;

    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), sent, "each has its line");
    for line in text.lines() {
        assert!(line.len() < 2048, "no line is long: {} bytes, {}...", line.len(), &line[..200]);
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let length = |key: &str| line[key].as_str().unwrap_or_default().len();
        assert!(length("model") <= 128 && length("path") <= 256 && length("method") <= 32, "{line}");
        // Of a request that is refused on its way in nothing is known.
        let is_known = line["path"] != "-";
        assert!(!is_known || length("model") > 120 || length("path") == 256, "what fits of it is there: {line}");
    }
    let logs = [text, process.stdout().join("\n"), process.stderr().join("\n")];
    assert!(logs.iter().all(|log| !log.contains(MARKER)), "the end of what is endless is in no log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_log_that_was_moved_aside_is_begun_anew_by_a_reload_that_changes_nothing() {
    let engine = Engine::up("rotated");
    let scratch = Scratch::new();
    let logs = Scratch::new();
    let log = logs.path().join("access.log");
    let logging = format!("{{access_log: {}}}", log.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
    process.until_state("rotated", "healthy").await;
    let ids = |name: &str| {
        let text = std::fs::read_to_string(logs.path().join(name)).unwrap_or_default();
        let id = |line| serde_json::from_str::<Value>(line).expect("a line of JSON")["request_id"].clone();
        text.lines().map(id).collect::<Vec<_>>()
    };
    let chat = async |id: &str| {
        let mut connection = Connection::open(process.address()).await.unwrap();
        let header = format!("x-request-id: {id}\r\n");
        let body = chat("hello").to_string();
        assert_eq!(connection.ask("POST", "/v1/chat/completions", &header, &body).await.unwrap().status, 200);
    };
    let move_aside = |name: &str| std::fs::rename(&log, logs.path().join(name)).unwrap();

    chat("first").await;
    eventually("the first line", async || ids("access.log") == ["first"]).await;
    move_aside("access.log.1");
    let reply = ask(process.admin, "POST", "/reload", "").await;
    assert_eq!(reply.json()["outcome"], "unchanged", "{}", reply.body);
    assert!(log.exists(), "the command makes a new file");
    chat("second").await;
    eventually("the second line", async || ids("access.log") == ["second"]).await;
    assert_eq!(ids("access.log.1"), ["first"], "the old file is left alone");

    move_aside("access.log.2");
    process.signal("HUP");
    eventually("the signal makes a new file", async || log.exists()).await;
    process.until_logged("Unchanged").await;
    chat("third").await;
    eventually("the third line", async || ids("access.log") == ["third"]).await;
    assert_eq!((ids("access.log.1"), ids("access.log.2")), (vec![json!("first")], vec![json!("second")]));
}
