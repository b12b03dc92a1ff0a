//! The process: how signals end it, what ends with it, and why it does not start.

mod common_control;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;

use common_control::child::{Process, fails_to_start};
use common_control::client::{Connection, get, open_stream, post_chat};
use common_control::engine::{Answer, Engine, is_whole_stream};
use common_control::settings::Settings;
use common_control::{Scratch, chat, eventually, streamed, within};

/// Far longer than any of these tests takes: who waits for it has not ended for the right reason.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A process in front of one engine, whose answers are gated.
async fn start(engine: &Engine, server: &str) -> (Process, Scratch) {
    let scratch = Scratch::new();
    let settings = Settings { server: server.into(), ..Settings::new([engine]) };
    let file = scratch.file("warmgate.yaml", settings.to_string());
    let process = Process::ready(&file).await;
    engine.set_answer(Answer::Gated);
    (process, scratch)
}

async fn until_refused(address: SocketAddr) {
    eventually("connections are refused", async || TcpStream::connect(address).await.is_err()).await;
}

// === SIGTERM ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_fails_readiness_serves_on_and_lets_streams_end() {
    let engine = Engine::up("term");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 2s, drain_timeout: 60s}").await;
    let (address, admin) = (process.address(), process.admin);
    let (mut stream, _) = open_stream(address, &streamed("hello")).await;
    engine.emit(1);

    process.signal("TERM");
    eventually("it is not ready", async || get(admin, "/readyz").await.status == 503).await;
    assert_eq!(get(admin, "/healthz").await.status, 200, "it lives");
    engine.set_answer(Answer::Whole);
    let mut connection = Connection::open(address).await.expect("it still accepts");
    let reply = connection.chat(&chat("hello")).await.unwrap();
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")), "{reply:?}");
    assert!(connection.is_closed().await, "what it says, it does");

    until_refused(address).await;
    assert!(process.is_running(), "a stream is in flight");
    assert_eq!(get(admin, "/readyz").await.status, 503, "operators see it to the end");
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()), "the stream ended whole");
    let (status, took) = process.ended().await;
    assert_eq!(status.code(), Some(0), "{:?}", process.stderr());
    assert!(took < DRAIN_TIMEOUT / 2, "it ended when nothing was in flight, not {took:?} later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_waits_for_its_next_request_does_not_hold_the_process() {
    let engine = Engine::up("idle");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 100ms, drain_timeout: 60s}").await;
    engine.set_answer(Answer::Whole);
    let mut used = Connection::open(process.address()).await.unwrap();
    assert_eq!(used.chat(&chat("hello")).await.unwrap().status, 200);
    let mut unused = Connection::open(process.address()).await.unwrap();
    process.signal("TERM");
    assert!(used.is_closed().await && unused.is_closed().await);
    let (status, took) = process.ended().await;
    assert_eq!(status.code(), Some(0));
    assert!(took < DRAIN_TIMEOUT / 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_goes_on_asking_loses_no_request() {
    let engine = Engine::up("asking");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 1s, drain_timeout: 60s}").await;
    engine.set_answer(Answer::Whole);
    let address = process.address();
    let mut connection = Connection::open(address).await.unwrap();
    let (mut served, mut is_term) = (0, false);
    // A client that keeps to the protocol: it opens a connection only where the last reply said close.
    loop {
        let reply = connection.chat(&chat("hello")).await.expect("no request is cut");
        assert_eq!(reply.status, 200);
        served += 1;
        if served == 20 {
            process.signal("TERM");
            is_term = true;
        }
        if reply.header("connection") == Some("close") {
            assert!(is_term);
            match Connection::open(address).await {
                Ok(next) => connection = next,
                Err(_) => break,
            }
        }
    }
    let (status, _) = process.ended().await;
    assert_eq!(status.code(), Some(0));
    assert!(served > 20, "it served on through the delay");
}

/// Opens a stream, and breaks it off when the process drains as far as `until` waits for.
async fn break_off_after(engine: &Engine, process: &mut Process, until: impl AsyncFn(&Process)) -> Connection {
    let (mut stream, head) = open_stream(process.address(), &streamed("hello")).await;
    assert_eq!(head.header("connection"), Some("keep-alive"), "nobody knew better then");
    engine.emit(1);
    within("its first token", stream.chunk()).await.expect("a stream");
    process.signal("TERM");
    until(process).await;
    engine.stop().await;
    engine.start();
    let rest = stream.rest().await.expect("its end");
    assert!(rest.contains("upstream_broke_off"), "{rest}");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_stream_breaks_off_in_a_drain_is_told_with_its_next_answer() {
    let engine = Engine::up("broken-early");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 60s, drain_timeout: 60s}").await;
    let is_draining = async |process: &Process| {
        eventually("it drains", async || get(process.admin, "/readyz").await.status == 503).await;
    };
    let mut connection = break_off_after(&engine, &mut process, is_draining).await;
    engine.set_answer(Answer::Whole);
    let reply = connection.chat(&chat("hello")).await.expect("its request is not lost");
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")), "{reply:?}");
    assert!(connection.is_closed().await);
    process.signal("TERM");
    assert_eq!(process.ended().await.0.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_stream_breaks_off_at_the_end_does_not_hold_the_process() {
    let engine = Engine::up("broken-late");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 0s, drain_timeout: 60s}").await;
    let is_refused = async |process: &Process| until_refused(process.address()).await;
    let mut connection = break_off_after(&engine, &mut process, is_refused).await;
    assert!(connection.is_closed().await);
    let (status, took) = process.ended().await;
    assert_eq!(status.code(), Some(0), "{:?}", process.stderr());
    assert!(took < DRAIN_TIMEOUT / 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_after_drain_timeout_is_cut() {
    let engine = Engine::up("cut");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 0s, drain_timeout: 300ms}").await;
    let (mut stream, _) = open_stream(process.address(), &streamed("hello")).await;
    engine.emit(1);
    process.signal("TERM");
    let (status, _) = process.ended().await;
    assert_eq!(status.code(), Some(0), "{:?}", process.stderr());
    assert!(stream.rest().await.is_err(), "the stream has no end");
    assert_eq!(process.logged("1 requests are cut"), 1, "{:?}", process.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_at_once() {
    let engine = Engine::up("twice");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 60s, drain_timeout: 60s}").await;
    let (mut stream, _) = open_stream(process.address(), &streamed("hello")).await;
    process.signal("TERM");
    process.until_logged("draining").await;
    assert!(process.is_running());
    process.signal("TERM");
    let (status, took) = process.ended().await;
    assert_eq!(status.code(), Some(0));
    assert!(took < DRAIN_TIMEOUT / 2, "{took:?}");
    assert!(stream.rest().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_requests_are_in_the_access_log() {
    let engine = Engine::up("last");
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    let logging = format!("{{access_log: {}}}", log.display());
    let file = scratch.file("warmgate.yaml", Settings { logging, ..Settings::new([&engine]) }.to_string());
    let mut process = Process::ready(&file).await;
    for _ in 0..20 {
        assert_eq!(post_chat(process.address(), &chat("hello")).await.status, 200);
    }
    process.signal("TERM");
    process.ended().await;
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_end_cuts_off_has_a_line_in_the_access_log() {
    let short = "{drain_delay: 0s, drain_timeout: 300ms}";
    for (signal, server) in [("TERM", short), ("INT", "{drain_delay: 60s, drain_timeout: 60s}")] {
        let engine = Engine::up("cut-logged");
        let scratch = Scratch::new();
        let log = scratch.path().join("access.log");
        let logging = format!("{{access_log: {}}}", log.display());
        let settings = Settings { logging, server: server.into(), ..Settings::new([&engine]) };
        let mut process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
        assert_eq!(post_chat(process.address(), &chat("hello")).await.status, 200);
        engine.set_answer(Answer::Gated);
        engine.emit(1);
        let (mut stream, _) = open_stream(process.address(), &streamed("hello")).await;
        within("its first token", stream.chunk()).await.unwrap();
        // No part of an answer to this one has come.
        let mut waiting = Connection::open(process.address()).await.unwrap();
        let body = chat("hello").to_string();
        waiting.send("POST", "/v1/chat/completions", "x-request-id: waiting\r\n", &body).await.unwrap();
        eventually("both are at the engine", async || engine.open_posts() == 2).await;

        process.signal(signal);
        let (status, _) = process.ended().await;
        assert_eq!(status.code(), Some(0), "{signal}: {:?}", process.stderr());
        assert!(stream.rest().await.is_err(), "{signal}: the stream has no end");
        let text = std::fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3, "{signal}: each request has one line: {text}");
        assert_eq!(lines[0]["reason"], "served", "{signal}: what ended before was not cut: {text}");
        let cut = |is_stream: bool| {
            let mut found = lines[1..].iter().filter(|line| line["stream"] == is_stream);
            found.next().unwrap_or_else(|| panic!("{signal}: one of both is missing: {text}"))
        };
        for (line, status) in [(cut(true), 200), (cut(false), 503)] {
            let got = (&line["reason"], &line["status"], &line["backend"], &line["path"]);
            let path = json!("/v1/chat/completions");
            assert_eq!(got, (&json!("cut"), &json!(status), &json!("cut-logged"), &path), "{signal}: {line}");
        }
        assert_eq!(cut(false)["request_id"], "waiting", "{signal}: the line is that request's");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_over_http_2_end_whole_as_well() {
    let engine = Engine::up("two");
    let scratch = Scratch::new();
    let listeners = "[{address: '127.0.0.1:0', h2c: true}]".into();
    let server = "{drain_delay: 100ms, drain_timeout: 60s}".into();
    let settings = Settings { listeners, server, ..Settings::new([&engine]) };
    let mut process = Process::ready(&scratch.file("warmgate.yaml", settings.to_string())).await;
    engine.set_answer(Answer::Gated);
    let stream = TcpStream::connect(process.address()).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut bodies = Vec::new();
    for _ in 0..8 {
        let request = http::Request::post("http://test/v1/chat/completions").body(()).unwrap();
        let (reply, mut body) = client.clone().ready().await.unwrap().send_request(request, false).unwrap();
        body.send_data(streamed("hello").to_string().into(), true).unwrap();
        bodies.push(within("a reply", reply).await.unwrap().into_body());
    }
    process.signal("TERM");
    until_refused(process.address()).await;
    assert!(process.is_running(), "streams are in flight");
    engine.finish();
    for mut body in bodies {
        let mut text = Vec::new();
        while let Some(bytes) = within("a frame", body.data()).await {
            text.extend_from_slice(&bytes.expect("the stream is not cut"));
        }
        assert!(is_whole_stream(&String::from_utf8(text).unwrap()));
    }
    let (status, took) = process.ended().await;
    assert_eq!(status.code(), Some(0));
    assert!(took < DRAIN_TIMEOUT / 2, "{took:?}");
    drop(client);
    // How it ended does not matter: the streams are through.
    let _ = driver.await.unwrap();
}

// === other signals ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigint_ends_at_once() {
    let engine = Engine::up("int");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 60s, drain_timeout: 60s}").await;
    let (mut stream, _) = open_stream(process.address(), &streamed("hello")).await;
    process.signal("INT");
    let (status, took) = process.ended().await;
    assert_eq!(status.code(), Some(0), "{:?}", process.stderr());
    assert!(took < DRAIN_TIMEOUT / 2, "{took:?}");
    assert!(stream.rest().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigquit_does_nothing() {
    let engine = Engine::up("quit");
    let (mut process, _scratch) = start(&engine, "{drain_delay: 0s, drain_timeout: 60s}").await;
    let (mut stream, _) = open_stream(process.address(), &streamed("hello")).await;
    process.signal("QUIT");
    process.until_logged("SIGQUIT is ignored").await;
    assert!(process.is_running());
    assert_eq!(get(process.admin, "/readyz").await.status, 200);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()));
    assert_eq!(post_chat(process.address(), &chat("hello")).await.status, 200);
}

// === what keeps it from starting ===

/// The one line it says, exit code 1, and nobody left at `address`.
async fn refuses_to_start(file: PathBuf, parts: &[&str]) {
    let ended = within("its end", fails_to_start(&file)).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("warmgate: ")).collect();
    assert_eq!(lines.len(), 1, "one line says why: {}", ended.stderr);
    for part in parts {
        assert!(lines[0].contains(part), "{part:?} in {}", lines[0]);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_is_named() {
    let engine = Engine::up("taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let scratch = Scratch::new();
    let listeners = format!("[{{address: '127.0.0.1:0'}}, {{address: '{address}'}}]");
    let settings = Settings { listeners, ..Settings::new([&engine]) };
    refuses_to_start(scratch.file("a.yaml", settings.to_string()), &[&address, "another port", "in use"]).await;

    let settings = Settings { admin: format!("{{address: '{address}'}}"), ..Settings::new([&engine]) };
    refuses_to_start(scratch.file("b.yaml", settings.to_string()), &[&address, "another port", "in use"]).await;
    assert_eq!(engine.probes(), 0, "nothing was begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_certificate_is_named() {
    let engine = Engine::up("bad-tls");
    let scratch = Scratch::new();
    let start = async |certificate: &PathBuf, key: &PathBuf, parts: &[&str]| {
        let tls = format!("{{certificate: {}, key: {}}}", certificate.display(), key.display());
        let listeners = format!("[{{address: '127.0.0.1:0', tls: {tls}}}]");
        let settings = Settings { listeners, ..Settings::new([&engine]) };
        refuses_to_start(scratch.file("tls.yaml", settings.to_string()), parts).await;
    };
    let made = |name: &str| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = scratch.file(&format!("{name}.crt"), made.cert.pem());
        (certificate, scratch.file(&format!("{name}.key"), made.signing_key.serialize_pem()))
    };
    let ((certificate, key), (_, other_key)) = (made("one"), made("two"));
    let garbage = scratch.file("garbage.pem", "not a certificate\n");
    start(&garbage, &key, &["garbage.pem", "PEM"]).await;
    start(&certificate, &garbage, &["garbage.pem", "PEM"]).await;
    start(&certificate, &other_key, &["one.crt"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_log_that_cannot_be_opened_is_named() {
    let engine = Engine::up("no-log");
    let scratch = Scratch::new();
    let nowhere = scratch.path().join("no-folder/access.log");
    let logging = format!("{{access_log: {}}}", nowhere.display());
    let settings = Settings { logging, ..Settings::new([&engine]) };
    let parts = ["access log", "no-folder/access.log", "folder has to exist"];
    refuses_to_start(scratch.file("warmgate.yaml", settings.to_string()), &parts).await;
    assert_eq!(engine.probes(), 0, "nothing was begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_is_explained() {
    let scratch = Scratch::new();
    let file = scratch.file("warmgate.yaml", "pools: [{name: p, backends: [{url: 'ftp://x'}]}]\n");
    let ended = fails_to_start(&file).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("listeners") && ended.stderr.contains("pools[0].backends[0].url"),
        "{}",
        ended.stderr
    );
    let ended = fails_to_start(&scratch.path().join("absent.yaml")).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("absent.yaml"), "{}", ended.stderr);
}
