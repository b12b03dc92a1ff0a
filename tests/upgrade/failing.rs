//! Upgrades that fail, and signals that come at the wrong time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common_control::child::Process;
use crate::common_control::client::{get, open_stream, post_chat};
use crate::common_control::engine::{Answer, Engine, is_whole_stream};
use crate::common_control::settings::Settings;
use crate::common_control::{Scratch, chat, eventually, streamed};
use crate::service::{Service, is_running};
use crate::{SERVER, settings};

/// Puts an executable script in a program's place, as an installation does.
fn replace(program: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let next = program.with_extension("next");
    std::fs::write(&next, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(next, program).unwrap();
}

/// A program of its own, to be replaced.
fn install(scratch: &Scratch) -> PathBuf {
    let program = scratch.path().join("warmgate");
    put_back(&program);
    program
}

fn put_back(program: &Path) {
    let next = program.with_extension("next");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_warmgate"), &next).unwrap();
    std::fs::rename(next, program).unwrap();
}

async fn serves(service: &Service) -> bool {
    post_chat(service.address(), &chat("hello")).await.status == 200
        && get(service.admin(), "/readyz").await.status == 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_configuration_leaves_the_old_process_serving_and_says_why() {
    let (engine, scratch) = (Engine::up("bad"), Scratch::new());
    let good = settings(&engine).to_string();
    let file = scratch.file("warmgate.yaml", &good);
    let mut service = Service::start(&file).await;
    scratch.file("warmgate.yaml", good.replace("round_robin", "round_robbin"));
    service.signal("USR2");
    service.first.until_logged("the upgrade has failed, and this process goes on: the new process refuses").await;
    let lines = service.first.stderr();
    let why = lines.iter().find(|line| line.contains("the upgrade has failed")).unwrap();
    let metrics = get(service.admin(), "/metrics").await.body;
    assert!(metrics.lines().any(|line| line == "warmgate_upgrades_failed_total 1"), "{metrics}");
    assert!(why.contains("round_robbin") && why.contains("did you mean"), "{why}");
    assert_eq!(service.first.logged("warmgate: "), 1, "the new process says it too: {lines:?}");
    assert!(serves(&service).await);
    eventually("the new process ends", async || service.started().iter().all(|id| !is_running(*id))).await;

    scratch.file("warmgate.yaml", &good);
    service.first.forget_log();
    service.upgrade().await;
    assert!(serves(&service).await, "a second attempt works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_cannot_be_bound_leaves_the_old_process_serving() {
    let (engine, scratch) = (Engine::up("taken"), Scratch::new());
    let file = scratch.file("warmgate.yaml", settings(&engine).to_string());
    let service = Service::start(&file).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listeners = format!("[{{address: '127.0.0.1:0'}}, {{address: '{address}'}}]");
    scratch.file("warmgate.yaml", Settings { listeners, ..settings(&engine) }.to_string());
    service.signal("USR2");
    service.first.until_logged(&format!("the new process refuses: cannot listen on {address}")).await;
    assert!(serves(&service).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_dies_or_is_another_or_is_gone_leaves_the_old_process_serving() {
    let (engine, scratch) = (Engine::up("dies"), Scratch::new());
    let program = install(&scratch);
    let file = scratch.file("warmgate.yaml", settings(&engine).to_string());
    let mut service = Service::of(Process::start_program(&program, &file).await);
    let attempts = [
        ("kill -SEGV $$", "ended before it served (signal: 11"),
        ("exit 3", "ended before it served (exit status: 3)"),
        // More than any message is long.
        ("printf '\\377\\377\\377\\377' >&0; exec sleep 600", "does not keep to the protocol"),
    ];
    for (script, why) in attempts {
        replace(&program, script);
        service.signal("USR2");
        service.first.until_logged(why).await;
        assert!(serves(&service).await, "{script}");
        eventually("the new process ends", async || service.started().iter().all(|id| !is_running(*id))).await;
    }
    std::fs::remove_file(&program).unwrap();
    service.signal("USR2");
    service.first.until_logged("warmgate cannot be started: No such file").await;
    assert!(serves(&service).await);

    put_back(&program);
    service.first.forget_log();
    service.upgrade().await;
    assert!(serves(&service).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_hangs_is_ended_and_leaves_the_old_process_serving() {
    let (engine, scratch) = (Engine::up("hangs"), Scratch::new());
    let program = install(&scratch);
    let server = SERVER.replace('}', ", upgrade: {start_timeout: 1s}}");
    let file = scratch.file("warmgate.yaml", Settings { server, ..settings(&engine) }.to_string());
    let service = Service::of(Process::start_program(&program, &file).await);
    for attempt in 1..=2 {
        replace(&program, "exec sleep 600");
        service.signal("USR2");
        eventually("it is given up", async || service.first.logged("did not serve within 1s") == attempt).await;
        assert!(serves(&service).await);
        assert!(service.started().iter().all(|id| !is_running(*id)), "it has ended before that is said");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigusr2_is_refused_and_sigterm_stops_both() {
    let (engine, scratch) = (Engine::up("second"), Scratch::new());
    let program = install(&scratch);
    let file = scratch.file("warmgate.yaml", settings(&engine).to_string());
    let mut service = Service::of(Process::start_program(&program, &file).await);
    eventually("it is ready", async || get(service.admin(), "/readyz").await.status == 200).await;
    engine.set_answer(Answer::Gated);
    let (mut stream, _) = open_stream(service.address(), &streamed("hello")).await;
    engine.emit(1);
    replace(&program, "exec sleep 600");
    service.signal("USR2");
    eventually("a process is started", async || service.started().len() == 1).await;
    service.signal("USR2");
    service.first.until_logged("an upgrade is under way already").await;
    service.signal("HUP");
    service.first.until_logged("reload: Unchanged").await;
    service.signal("TERM");
    service.first.until_logged("draining").await;
    eventually("the new process is ended", async || !is_running(service.started()[0])).await;
    assert!(service.first.is_running(), "a stream is in flight");
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()));
    let (status, took) = service.first.ended().await;
    assert_eq!(status.code(), Some(0), "{:?}", service.first.stderr());
    assert!(took < Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_handed_over_ignores_what_is_no_longer_its_own() {
    let (engine, scratch) = (Engine::up("stray"), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings(&engine).to_string())).await;
    service.signal("QUIT");
    service.first.until_logged("SIGQUIT is ignored").await;
    engine.set_answer(Answer::Gated);
    let (mut stream, _) = open_stream(service.address(), &streamed("hello")).await;
    engine.emit(1);
    service.upgrade().await;
    for signal in ["HUP", "USR2", "QUIT"] {
        service.first.signal(signal);
    }
    eventually("it has answered them", async || {
        service.first.logged("this process has handed over") == 2 && service.first.logged("SIGQUIT is ignored") == 2
    })
    .await;
    service.signal("QUIT");
    eventually("the new one ignores it too", async || service.first.logged("SIGQUIT is ignored") == 3).await;
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()));
    assert_eq!(service.started().len(), 1);
    assert!(serves(&service).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_successor_dies_says_so_and_finishes() {
    let (engine, scratch) = (Engine::up("lost"), Scratch::new());
    let mut service = Service::start(&scratch.file("warmgate.yaml", settings(&engine).to_string())).await;
    engine.set_answer(Answer::Gated);
    engine.emit(1);
    let (mut stream, _) = open_stream(service.address(), &streamed("hello")).await;
    service.upgrade().await;
    service.signal("KILL");
    service.first.until_logged("which had taken over, has ended").await;
    engine.emit(3);
    engine.finish();
    assert!(is_whole_stream(&stream.rest().await.unwrap()));
    assert_eq!(service.first.ended().await.0.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_ends_with_the_old_one_that_has_not_handed_over() {
    let (engine, scratch) = (Engine::up("orphan"), Scratch::new());
    let program = install(&scratch);
    let file = scratch.file("warmgate.yaml", settings(&engine).to_string());
    let service = Service::of(Process::start_program(&program, &file).await);
    replace(&program, "exec sleep 600");
    service.signal("USR2");
    eventually("a process is started", async || service.started().len() == 1).await;
    service.signal("KILL");
    eventually("the new process is ended", async || !is_running(service.started()[0])).await;
}
