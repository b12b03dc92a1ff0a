//! Callers and operators over the life of a process: reloads of the keys, the admin listener's token, the commands.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

mod common_control;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common_control::client::{Connection, Reply, ask, get};
use common_control::engine::Engine;
use common_control::proxy::Proxy;
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, logs, within};
use sha2::{Digest, Sha256};

const ONE: &str = "wg-the-first-key-of-these-tests";
const TWO: &str = "wg-the-second-key-of-these-tests";

fn caller(label: &str, key: &str, more: &str) -> String {
    let digest: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("  - {{label: {label}, hash: 'sha256:{digest}'{more}}}\n")
}

/// Puts other callers in the file, without a moment in which it is half written.
fn rewrite(keys: &Path, callers: &str) {
    let next = keys.with_extension("next");
    std::fs::write(&next, format!("keys:\n{callers}")).unwrap();
    std::fs::rename(next, keys).unwrap();
}

async fn chat_with(proxy: &Proxy, listener: usize, key: &str) -> Reply {
    let mut connection = Connection::open(proxy.addresses()[listener]).await.unwrap();
    let header = format!("authorization: Bearer {key}\r\n");
    connection.ask("POST", "/v1/chat/completions", &header, &chat("hello").to_string()).await.unwrap()
}

async fn with_token(proxy: &Proxy, method: &str, path: &str, token: &str) -> Reply {
    let mut connection = Connection::open(proxy.admin()).await.unwrap();
    connection.ask(method, path, &format!("authorization: Bearer {token}\r\n"), "").await.unwrap()
}

fn warmgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmgate"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

// === reloads ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_of_keys_is_taken_over_and_what_was_used_stays() {
    let engine = Engine::up("keyed");
    // A folder of its own, which the configuration is not in.
    let folder = Scratch::new();
    let keys = folder.file("keys.yaml", format!("keys:\n{}", caller("a", ONE, ", requests_per_minute: 2")));
    let settings = Settings { auth: format!("{{keys_file: {}}}", keys.display()), ..Settings::new([&engine]) };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    assert_eq!((chat_with(&proxy, 0, ONE).await.status, chat_with(&proxy, 0, TWO).await.status), (200, 401));

    // The file alone changes: nobody asks for a reload.
    let both = [caller("a", ONE, ", requests_per_minute: 2"), caller("b", TWO, "")].concat();
    rewrite(&keys, &both);
    eventually("the new key is known", async || chat_with(&proxy, 0, TWO).await.status == 200).await;
    assert_eq!((chat_with(&proxy, 0, ONE).await.status, chat_with(&proxy, 0, ONE).await.status), (200, 429));

    let wrong = format!("{}  - {{label: c, hash: S3CRET-of-somebody}}\n", both.replace("a, hash", "z, hash"));
    rewrite(&keys, &wrong);
    let refused = proxy.reload().await;
    let line = format!("{}:4:22: keys[2].hash: expected sha256: and 64 hexadecimal digits", keys.display());
    assert!(refused.status == 422 && refused.body.contains(&line), "{}", refused.body);
    assert!(!refused.body.contains("S3CRET") && logs::count(&["S3CRET"]) == 0, "what may be a key is not shown");
    assert_eq!(chat_with(&proxy, 0, ONE).await.status, 429, "the callers in force are the same, whole");

    rewrite(&keys, &caller("b", TWO, ""));
    assert_eq!(proxy.reload().await.status, 200);
    assert_eq!((chat_with(&proxy, 0, ONE).await.status, chat_with(&proxy, 0, TWO).await.status), (401, 200));
    let page = get(proxy.admin(), "/metrics").await.body;
    assert!(page.contains(r#"caller="b""#) && !page.contains(r#"caller="a""#), "a caller that is gone has no series");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_in_the_place_of_a_file_is_refused_and_reloads_go_on() {
    let engine = Engine::up("piped");
    let folder = Scratch::new();
    let keys = folder.file("keys.yaml", format!("keys:\n{}", caller("a", ONE, "")));
    let settings = Settings { auth: format!("{{keys_file: {}}}", keys.display()), ..Settings::new([&engine]) };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    for file in [keys.as_path(), proxy.file()] {
        let aside = file.with_extension("aside");
        std::fs::rename(file, &aside).unwrap();
        assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        // Its other end: whoever reads it waits for as long as the test goes on.
        let _held = OpenOptions::new().read(true).write(true).open(file).unwrap();
        let refused = within("an answer", proxy.reload()).await;
        assert!(refused.status == 422 && refused.body.contains("not a regular file"), "{}", refused.body);
        assert_eq!(chat_with(&proxy, 0, ONE).await.status, 200, "the callers in force are the same");
        std::fs::rename(&aside, file).unwrap();
        assert_eq!(within("an answer", proxy.reload()).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_may_be_open_while_another_is_not() {
    let engine = Engine::up("open");
    let scratch = Scratch::new();
    let keys = scratch.file("keys.yaml", format!("keys:\n{}", caller("a", ONE, "")));
    let settings = Settings {
        listeners: "[{address: '127.0.0.1:0'}, {address: '127.0.0.1:0', requires_key: false}]".into(),
        auth: format!("{{keys_file: {}}}", keys.display()),
        ..Settings::new([&engine])
    };
    let proxy = Proxy::with(&settings, &[&engine]).await;
    for (listener, key, status) in [(0, "", 401), (0, ONE, 200), (1, "", 200), (1, "unknown", 200)] {
        assert_eq!(chat_with(&proxy, listener, key).await.status, status, "listener {listener} with {key:?}");
    }
}

// === the admin listener ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_need_the_token_but_for_the_open_pages() {
    let engine = Engine::up("guarded");
    let scratch = Scratch::new();
    let token = scratch.file("token", "an-operators-token\n");
    let admin = |more: &str| format!("{{address: '127.0.0.1:0', token_file: {}{more}}}", token.display());
    let settings = Settings { admin: admin(""), ..Settings::new([&engine]) };
    let proxy = Proxy::start(&settings).await;
    eventually("it is ready", async || get(proxy.admin(), "/readyz").await.status == 200).await;
    assert_eq!(get(proxy.admin(), "/healthz").await.status, 200);
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/metrics"),
        ("GET", "/backends"),
        ("POST", "/explain"),
        ("POST", "/reload"),
        ("POST", "/backends/guarded/drain"),
        ("GET", "/nowhere"),
        ("GET", "/healthz/../metrics"),
    ] {
        let reply = ask(proxy.admin(), method, path, "").await;
        assert_eq!(reply.status, 401, "{method} {path}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer realm=\"warmgate admin\""), "{method} {path}");
        let wrong = with_token(&proxy, method, path, "an-operators-toke").await;
        assert_eq!(wrong.status, 401, "{method} {path} with a wrong token");
        assert_ne!(with_token(&proxy, method, path, "an-operators-token").await.status, 401, "{method} {path}");
    }
    proxy.rewrite(&Settings { admin: admin(", open_paths: [/metrics]"), ..settings });
    std::fs::write(&token, "another-token").unwrap();
    eventually("both changes are in force", async || {
        let opened = get(proxy.admin(), "/metrics").await.status == 200;
        opened && with_token(&proxy, "GET", "/backends", "another-token").await.status == 200
    })
    .await;
    assert_eq!(get(proxy.admin(), "/healthz").await.status, 401);
    assert_eq!(with_token(&proxy, "GET", "/backends", "an-operators-token").await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_sends_the_token_and_speaks_of_the_caller() {
    let engine = Engine::up("explained");
    let scratch = Scratch::new();
    let (token, body) = (scratch.file("token", "t0ken\n"), scratch.file("body.json", chat("hello").to_string()));
    let limits = ", tokens_per_minute: 1000, models: [m], priority: low";
    let keys = scratch.file("keys.yaml", format!("keys:\n{}{}", caller("a", ONE, limits), caller("b", TWO, "")));
    let settings = Settings {
        admin: format!("{{address: '127.0.0.1:0', token_file: {}}}", token.display()),
        auth: format!("{{keys_file: {}}}", keys.display()),
        ..Settings::new([&engine])
    };
    let proxy = Proxy::start(&settings).await;
    let (admin, body, token) = (proxy.admin().to_string(), body.display().to_string(), token.display().to_string());
    let explain = async |more: &[&str]| {
        let mut command = warmgate(&[&["explain", "--admin", &admin, "--body", &body], more].concat());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (output.status.success(), said(&output))
    };
    let (is_good, refused) = explain(&[]).await;
    assert!(
        !is_good && refused.contains("wants the token of its admin.token_file: give its file as --token-file"),
        "{refused}"
    );
    let (is_good, plain) = explain(&["--token-file", &token]).await;
    assert!(is_good && plain.contains("pool main") && !plain.contains("caller:"), "{plain}");
    let (is_good, of_a) = explain(&["--token-file", &token, "--caller", "a"]).await;
    assert!(is_good && of_a.contains("label a, priority low, tokens_left 1000"), "{of_a}");
    let (is_good, of_nobody) = explain(&["--token-file", &token, "--caller", "nobody"]).await;
    assert!(!is_good && of_nobody.contains("no caller has this label"), "{of_nobody}");
    let (is_good, of_another) = explain(&["--token-file", &token, "--caller", "a&b c", "--path", "/v1/ä b"]).await;
    assert!(!is_good && of_another.contains("no caller has this label"), "whatever is in it: {of_another}");
    for (path, caller, expected) in [
        ("v1/completions", "b", r#"`path` is "v1/completions"; expected one that begins with /"#),
        ("/invocations", "a", "those that it may call are `paths` of its line in the keys_file"),
        ("/invocations", "b", "carries no prompt that is known at its path"),
        ("/v1/%63hat/completions", "a", "tokens_left 1000"),
    ] {
        let (_, said) = explain(&["--token-file", &token, "--caller", caller, "--path", path]).await;
        assert!(said.contains(expected), "{path}: {said}");
    }
    let another = engine.address().to_string();
    let mut command = warmgate(&["explain", "--admin", &another, "--body", &body]);
    let elsewhere = tokio::task::spawn_blocking(move || said(&command.output().unwrap())).await.unwrap();
    assert!(elsewhere.contains("is no admin listener"), "{elsewhere}");
    std::fs::write(&body, r#"{"model":"other","messages":[]}"#).unwrap();
    let (is_good, denied) = explain(&["--token-file", &token, "--caller", "a"]).await;
    assert!(!is_good && denied.contains("this API key may not use it"), "{denied}");
}

// === commands ===

#[test]
fn a_new_key_is_one_that_its_line_knows() {
    let output = warmgate(&["key", "--label", "team-a"]).output().unwrap();
    let text = said(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(output.status.success() && lines.len() == 4, "{text}");
    let (key, line) = (lines[1], lines[3]);
    assert_eq!(line.trim(), caller("team-a", key, "").trim().replace("team-a", "'team-a'"));

    let mut child = warmgate(&["key", "--label", "team-a", "--stdin"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{key}\n").as_bytes()).unwrap();
    assert_eq!(said(&child.wait_with_output().unwrap()).trim_end(), line, "the same key has the same line");
    let again = said(&warmgate(&["key"]).output().unwrap());
    assert!(!again.contains(key), "each key is another: {again}");
}

#[test]
fn files_of_keys_can_be_credentials_of_systemd() {
    let (scratch, credentials) = (Scratch::new(), Scratch::new());
    let config = scratch.file(
        "warmgate.yaml",
        "listeners: [{address: '127.0.0.1:0'}]\n\
         admin: {address: '0.0.0.0:9090', token_file: 'credential:token'}\n\
         auth: {keys_file: 'credential:keys'}\n\
         pools: [{name: p, api_key_file: 'credential:engine', backends: []}]\n",
    );
    credentials.file("keys", format!("keys:\n{}", caller("a", ONE, "")));
    credentials.file("token", "t0ken\n");
    credentials.file("engine", "k3y\n");
    let config = config.display().to_string();
    let check = |folder: Option<&Path>| {
        let mut command = warmgate(&["check", "--config", &config]);
        command.env_remove("CREDENTIALS_DIRECTORY");
        folder.map(|folder| command.env("CREDENTIALS_DIRECTORY", folder));
        let output = command.output().unwrap();
        (output.status.success(), said(&output))
    };
    let (is_good, text) = check(Some(credentials.path()));
    assert!(is_good && text.contains("1 pool"), "{text}");
    assert!(text.contains("admin.address: the token goes to 0.0.0.0:9090 in the clear"), "{text}");
    let (is_good, text) = check(None);
    assert!(!is_good && text.matches("CREDENTIALS_DIRECTORY is not set").count() == 3, "{text}");
    let (is_good, text) = check(Some(scratch.path()));
    assert!(!is_good && text.contains("auth.keys_file: found `credential:keys`; cannot read it"), "{text}");
}
